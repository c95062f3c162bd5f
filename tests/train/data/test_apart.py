"""Data sets that this process reads, and that are given to others as they were."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

from entrypoint import ExitCode, Failure
from train.data import custom

OPENED: list[Any] = []


class Packed(Dataset[Any]):
    """Opens its file at the first read, and keeps it open."""

    file: Any = None

    def __init__(self, path: Path) -> None:
        self.path, self.table = path, np.arange(9)

    def __len__(self) -> int:
        return 9

    def __getitem__(self, row: int) -> int:
        if self.file is None:
            self.file = self.path.open("rb", buffering=0)
            OPENED.append(self.file)
        self.file.seek(row)
        return int(self.file.read(1)[0])


class Reader:
    def __init__(self, packed: Packed) -> None:
        self.inner, self.read = packed, packed.__getitem__

    def __getitem__(self, row: int) -> int:
        return self.read(row)


@dataclass(frozen=True, slots=True)
class Slotted:
    packed: Packed
    __hidden: dict[str, Packed] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_Slotted__hidden", {"x": self.packed})

    def __getitem__(self, row: int) -> int:
        return self.__hidden["x"][row]


@pytest.fixture
def packed(tmp_path: Path) -> Iterator[Packed]:
    (tmp_path / "packed").write_bytes(bytes(range(100, 109)))
    yield Packed(tmp_path / "packed")
    while OPENED:
        OPENED.pop().close()


def read(dataset: Any, row: int) -> Any:
    return dataset[row % 9]


NESTED: dict[str, Callable[[Packed], Any]] = {
    "itself": lambda packed: packed,
    "subset": lambda packed: Subset(packed, range(5)),  # type: ignore[arg-type]
    "two-in-one": lambda packed: ConcatDataset([packed, packed]),
    "a-method-of-another": Reader,
    "slots": Slotted,
    "a-list": lambda packed: [packed[0] if packed.file else 0, packed],
}


@pytest.mark.parametrize("around", NESTED.values(), ids=NESTED)
def test_what_is_opened_at_a_read_is_opened_in_the_copy(packed: Packed, around: Callable[[Packed], Any]) -> None:
    (made,), _ = custom.make_fork_safe([around(packed)], read)
    assert isinstance(made, custom.ForkSafeProxy)
    found = made[1]
    assert (found if isinstance(found, int) else found[1]) == 101
    assert packed.file is None


def test_a_forked_process_gets_the_data_set_as_it_was(packed: Packed) -> None:
    (made,), _ = custom.make_fork_safe([packed], read)
    assert (made[3], made.current is packed) == (103, False)
    child = os.fork()
    if child == 0:
        os._exit(0 if made.current is packed and made[4] == 104 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_data_is_not_copied(packed: Packed) -> None:
    packed.names = [str(number) for number in range(2000)]
    packed.tensor, packed.kind = torch.zeros(3), Enum("Kind", "ONE TWO").ONE  # type: ignore[attr-defined]
    (made,), _ = custom.make_fork_safe([packed], read)
    for name in ("table", "names", "tensor", "kind", "path"):
        assert getattr(made.local_copy, name) is getattr(packed, name)


def test_what_both_splits_share_their_copies_share(packed: Packed) -> None:
    (one, other), _ = custom.make_fork_safe([Subset(packed, [0, 1]), Subset(packed, [2, 3])], read)
    assert one.local_copy.dataset is other.local_copy.dataset is not packed


def test_what_a_copy_has_opened_goes_with_it(packed: Packed) -> None:
    closed: list[str] = []

    class Circle(Packed):
        def __getitem__(self, row: int) -> int:
            if self.file is None:
                self.file, self.again = set(), self.__getitem__
                weakref.finalize(self.file, closed.append, "closed")
            return row

    made, _ = custom.make_fork_safe([Circle(packed.path)], read)
    custom.renew_copies([*made, None])
    assert (closed, made[0].local_copy.file) == (["closed"], None)


def test_a_circle_is_copied(packed: Packed) -> None:
    packed.me = [packed]
    (made,), _ = custom.make_fork_safe([packed], read)
    assert made.local_copy.me[0] is made.local_copy


def test_an_end_that_would_close_what_both_have_is_not_met(packed: Packed) -> None:
    class Closing(Packed):
        def __del__(self) -> None:
            if self.file:
                self.file.close()

    closing = Closing(packed.path)
    assert closing[1] == 101
    assert custom.make_fork_safe([closing], read)[0] == [closing]
    assert closing[2] == 102
    (made,), _ = custom.make_fork_safe([Closing(packed.path)], read)
    assert (type(made.local_copy), made[3]) == (Closing, 103)


class Chain:
    def __init__(self, then: Any) -> None:
        self.then = then

    def __getitem__(self, row: int) -> int:
        return row


def test_what_is_too_deep_or_too_much_stays_as_it_is() -> None:
    deep: Any = None
    for _ in range(5000):
        deep = Chain(deep)
    wide = Chain([[Chain(number) for number in range(500)] for _ in range(50)])
    assert custom.make_fork_safe([deep, wide], read)[0] == [deep, wide]


def test_a_copy_that_cannot_be_read_is_not_taken(packed: Packed) -> None:
    def only_itself(dataset: Any, row: int) -> Any:
        return {id(packed): 1}[id(dataset)]

    assert custom.make_fork_safe([packed], only_itself)[0] == [packed]


def test_a_stop_is_not_taken_for_an_error_of_the_copy(packed: Packed) -> None:
    def stopped(dataset: Any, row: int) -> Any:
        raise Failure("asked to stop", fix="start again", code=ExitCode.STOPPED)

    with pytest.raises(Failure, match="asked to stop"):
        custom.make_fork_safe([packed], stopped)


@pytest.mark.parametrize("given", [None, 3, "text", np.zeros(3), SimpleNamespace(a=1), list(range(2000))], ids=repr)
def test_what_opens_nothing_is_not_copied(given: Any) -> None:
    assert custom.make_fork_safe([given], read)[0][0] is given


def sought(file: int, path: Path) -> Any:
    return lambda row: (os.lseek(file, row, 0), os.read(file, 1))


def beside(file: int, path: Path) -> Any:
    return lambda row: os.pread(file, 1, row)


def mapped(file: int, path: Path) -> Any:
    found = mmap.mmap(file, 0, access=mmap.ACCESS_READ)
    return lambda row: found[row]


@pytest.mark.parametrize(("way", "shared"), [(sought, True), (beside, False), (mapped, False)])
def test_of_files_that_were_open_before_those_are_told_whose_position_moves(
    packed: Packed, way: Callable[[int, Path], Any], shared: bool
) -> None:
    with packed.path.open("rb") as file:
        packed.at = way(file.fileno(), packed.path)
        _, told = custom.make_fork_safe([packed], lambda dataset, row: dataset.at(row % 9))
    assert told == (str(packed.path) if shared else None)


def test_a_file_that_a_data_set_opens_which_cannot_be_copied_is_told_too(packed: Packed) -> None:
    class Listed(list[int]):
        def __getitem__(self, row: Any) -> Any:
            return packed[row]

    assert custom.make_fork_safe([Listed()], read)[1] == str(packed.path)


def test_files_that_are_written_are_not_told(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log, (tmp_path / "log").open("rb") as other:
        assert {log.fileno(), other.fileno()} & custom.open_file_positions().keys() == {other.fileno()}
