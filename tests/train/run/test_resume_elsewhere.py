"""A run that goes on with other ranks or on another machine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from jobs import built

from entrypoint import ExitCode, Failure
from train.distributed.device import describe_arithmetic
from train.run import resume

BITWISE = "train.reproducible=bitwise"


def told(folder: Path, *settings: str, **changed: object) -> list[str]:
    """What is said where these facts of the checkpoint were others."""
    with built(folder, *settings) as trainer:
        arithmetic = describe_arithmetic(trainer.runtime.device)
        arithmetic = {name: changed.get(name, value) for name, value in arithmetic.items()}
        facts = {"arithmetic": arithmetic, "world_size": changed.get("world_size", 1)}
        return resume.machine_notes(trainer.config, facts, trainer.runtime)


def test_the_same_place_needs_no_word(tmp_path: Path) -> None:
    assert told(tmp_path) == told(tmp_path, BITWISE) == []


@pytest.mark.parametrize(("mode", "promise"), [("fast", "other rounding"), ("bitwise", "same bits")])
def test_another_number_of_ranks_is_said_with_what_it_means(tmp_path: Path, mode: str, promise: str) -> None:
    (said,) = told(tmp_path, f"train.reproducible={mode}", world_size=2)
    assert said.startswith("the run goes on with 1 rank instead of 2: ")
    assert said.endswith(promise)


@pytest.mark.parametrize("other", [{"threads": 7}, {"device": "NVIDIA H100"}, {"torch": "2.0"}], ids=str)
def test_other_arithmetic_is_said_where_bits_are_not_promised(tmp_path: Path, other: dict[str, object]) -> None:
    assert [said.split()[0] for said in told(tmp_path, **other)] == list(other)


@pytest.mark.parametrize("other", [{"threads": 7}, {"device": "NVIDIA H100"}, {"torch": "2.0"}], ids=str)
def test_other_arithmetic_is_refused_where_they_are(tmp_path: Path, other: dict[str, object]) -> None:
    with pytest.raises(Failure) as caught:
        told(tmp_path, BITWISE, **other)
    assert caught.value.code == ExitCode.LAUNCH_CONFLICT
    assert caught.value.found.startswith(next(iter(other)))


def test_a_checkpoint_that_says_nothing_of_its_machine_is_taken(tmp_path: Path) -> None:
    with built(tmp_path, BITWISE) as trainer:
        assert resume.machine_notes(trainer.config, {"world_size": 1}, trainer.runtime) == []


@pytest.mark.parametrize(("environ", "threads"), [({}, 1), ({"OMP_NUM_THREADS": "2"}, 2)], ids=["ours", "the-users"])
def test_bitwise_computes_with_one_thread_unless_the_user_says_so(
    tmp_path: Path, environ: dict[str, str], threads: int
) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with built(tmp_path, BITWISE, environ=environ) as trainer:
            assert describe_arithmetic(trainer.runtime.device)["threads"] == threads
    finally:
        torch.set_num_threads(before)
