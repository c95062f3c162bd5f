"""Each process that reads a user's data set calls the factory itself."""

from __future__ import annotations

import mmap
import os
import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from entrypoint import ExitCode, Failure
from train.config.schema import DataConfig
from train.data import custom

MODULE = """
import random
import numpy as np, torch
CALLS = []
class Drawn:
    def __init__(self):
        CALLS.append(self)
        self.drawn = random.random(), np.random.rand(), float(torch.rand(1))
    def __len__(self):
        return 9
    def __getitem__(self, row):
        return np.full((8, 8, 3), row, np.uint8), row % 2
def make(data):
    return Drawn(), Drawn()
"""


@pytest.fixture
def factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[custom.FactoryCall]:
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (tmp_path / "users_drawn.py").write_text(MODULE)
    yield custom.FactoryCall(DataConfig(name="users_drawn:make"))
    sys.modules.pop("users_drawn", None)


def in_a_fork(check: Callable[[], object]) -> bool:
    child = os.fork()
    if child == 0:
        os._exit(0 if check() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_process_calls_the_factory_once(factory: custom.FactoryCall) -> None:
    splits = factory.splits()
    assert factory.splits() is splits
    assert factory.split(0) is splits[0]
    assert factory.split(1) is splits[1]


def test_a_forked_process_calls_it_again(factory: custom.FactoryCall) -> None:
    inherited = factory.splits()
    assert in_a_fork(lambda: factory.splits() is not inherited and factory.splits() is factory.splits())
    assert factory.splits() is inherited


def test_what_is_released_is_freed_and_made_again(factory: custom.FactoryCall) -> None:
    factory.splits()
    calls = sys.modules["users_drawn"].CALLS
    factory.release()
    assert factory.returned is None
    factory.splits()
    assert len(calls) == 4


def test_each_call_draws_the_same_and_leaves_the_readers_generators_alone(factory: custom.FactoryCall) -> None:
    first = factory.split(1).drawn
    factory.release()
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(7)
    expected = random.random(), np.random.rand(), float(torch.rand(1))
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(7)
    assert factory.split(1).drawn == first
    assert (random.random(), np.random.rand(), float(torch.rand(1))) == expected


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    (tmp_path / "packed").write_bytes(bytes(range(100, 109)))
    return tmp_path / "packed"


def sought(file: int) -> Callable[[int], object]:
    return lambda row: (os.lseek(file, row, 0), os.read(file, 1))


def beside(file: int) -> Callable[[int], object]:
    return lambda row: os.pread(file, 1, row)


def mapped(file: int) -> Callable[[int], object]:
    found = mmap.mmap(file, 0, access=mmap.ACCESS_READ)
    return lambda row: found[row]


@pytest.mark.parametrize(("way", "shared"), [(sought, True), (beside, False), (mapped, False)])
def test_of_files_that_stay_open_those_are_told_whose_position_moves(
    packed: Path, way: Callable[[int], Callable[[int], object]], shared: bool
) -> None:
    with packed.open("rb") as file:
        read = way(file.fileno())
        told = custom.find_moved_file([partial(read, 0), partial(read, 8)], lambda: None)
    assert told == (str(packed) if shared else None)


def test_a_file_that_is_closed_on_release_is_not_told(packed: Path) -> None:
    file = packed.open("rb")
    read = sought(file.fileno())
    assert custom.find_moved_file([partial(read, 0), partial(read, 8)], file.close) is None


def raising(error: Exception) -> Callable[[], object]:
    def read() -> Any:
        raise error

    return read


def test_a_stop_is_not_taken_for_a_bad_sample() -> None:
    bad = raising(Failure("bad", fix="mend it", code=ExitCode.DATA))
    assert custom.find_moved_file([bad, raising(OSError())], lambda: None) is None
    with pytest.raises(Failure, match="asked to stop"):
        custom.find_moved_file(
            [raising(Failure("asked to stop", fix="start again", code=ExitCode.STOPPED))], lambda: None
        )


def test_files_that_are_written_are_not_told(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log, (tmp_path / "log").open("rb") as other:
        assert {log.fileno(), other.fileno()} & custom.open_file_positions().keys() == {other.fileno()}
