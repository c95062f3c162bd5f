"""DDP has many ranks; DataParallel and none have one, and say so."""

from __future__ import annotations

from typing import Literal

import pytest

from entrypoint import ExitCode, Failure
from train.config import checks
from train.config.schema import RunConfig, TrainConfig


@pytest.mark.parametrize("kind", ["dp", "none"])
def test_one_process_is_refused_as_several_with_the_numbers_and_both_ways_out(kind: Literal["dp", "none"]) -> None:
    with pytest.raises(Failure, match=f"train.parallel {kind} is one process") as caught:
        checks.refuse_conflicts(RunConfig(train=TrainConfig(parallel=kind)), 4)
    assert (caught.value.code, caught.value.found) == (ExitCode.USAGE, "4 ranks")
    assert "train.parallel=ddp" in caught.value.fix
    assert "--procs-per-node 1" in caught.value.fix


@pytest.mark.parametrize(("kind", "ranks"), [("ddp", 1), ("ddp", 64), ("dp", 1), ("none", 1)])
def test_what_goes_together_is_not_refused(kind: Literal["ddp", "dp", "none"], ranks: int) -> None:
    checks.refuse_conflicts(RunConfig(train=TrainConfig(parallel=kind)), ranks)


def test_only_data_parallel_has_a_line_that_says_why_not_to_use_it() -> None:
    (warning,) = checks.conflict_warnings(RunConfig(train=TrainConfig(parallel="dp")))
    assert "slower than ddp" in warning
    assert checks.conflict_warnings(RunConfig()) == ()
    assert checks.conflict_warnings(RunConfig(train=TrainConfig(parallel="none"))) == ()


def test_compiled_code_is_refused_where_one_process_feeds_all_gpus() -> None:
    with pytest.raises(Failure, match=r"does not go with train\.parallel dp") as caught:
        checks.refuse_conflicts(RunConfig(train=TrainConfig(parallel="dp", compile="default")))
    assert caught.value.code == ExitCode.USAGE
    checks.refuse_conflicts(RunConfig(train=TrainConfig(parallel="none", compile="default")))


def test_synchronized_batchnorm_of_several_ranks_is_refused_on_the_cpu() -> None:
    with pytest.raises(Failure, match="sync_batchnorm needs GPUs") as caught:
        checks.refuse_conflicts(RunConfig(train=TrainConfig(sync_batchnorm=True)), 2, "cpu")
    assert (caught.value.code, caught.value.found) == (ExitCode.USAGE, "2 ranks on the CPU")


@pytest.mark.parametrize(("on", "device", "ranks"), [(True, "cuda", 2), (True, "cpu", 1), (False, "cpu", 2)])
def test_synchronized_batchnorm_is_not_refused_elsewhere(on: bool, device: str, ranks: int) -> None:
    checks.refuse_conflicts(RunConfig(train=TrainConfig(sync_batchnorm=on)), ranks, device)
