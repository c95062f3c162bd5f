"""What train.reproducible bitwise can and cannot do, in numbers."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from entrypoint import ExitCode, Failure
from train.config import checks, load, resume_rules
from train.config.load import keep_last_overrides
from train.config.schema import RunConfig

EIGHT = ("train.reproducible=bitwise", "train.global_batch_size=64", "train.micro_batch_size=8")


def config(*settings: str) -> RunConfig:
    return load.load_config(None, keep_last_overrides([*EIGHT, *settings]))


def refused(world: int, *settings: str) -> Failure:
    with pytest.raises(Failure) as caught:
        checks.refuse_bitwise_conflicts(config(*settings), world)
    return caught.value


@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_powers_of_two_that_divide_the_micro_batches_are_taken(world: int) -> None:
    checks.refuse_bitwise_conflicts(config(), world)


@pytest.mark.parametrize(("world", "fewer"), [(3, 2), (6, 4), (16, 8)])
def test_other_worlds_are_refused_with_the_legal_ones(world: int, fewer: int) -> None:
    failure = refused(world)
    assert (failure.code, failure.expected) == (ExitCode.LAUNCH_CONFLICT, "one of 1, 2, 4, 8")
    assert f"start {fewer} ranks" in failure.fix


def test_a_run_that_is_there_is_told_that_the_other_mode_is_for_a_new_one() -> None:
    differs = resume_rules.changed_keys(asdict(config()), asdict(config("train.reproducible=fast")))
    assert list(differs) == ["train.reproducible"]  # which it refuses
    assert refused(3).fix.endswith("set train.reproducible=fast (in a new run: another run.name)")


def test_one_rank_is_one_rank() -> None:
    assert refused(2, "train.micro_batch_size=64").fix.startswith("start 1 rank (")


@pytest.mark.parametrize(
    ("setting", "fix"),
    [
        ("train.micro_batch_size=auto", "train.micro_batch_size=64"),
        ("train.micro_batch_size=12", "train.micro_batch_size=16"),
        ("train.global_batch_size=48", "train.micro_batch_size=6"),
        ("train.parallel=dp", "train.parallel=ddp"),
        ("train.sync_batchnorm=true", "train.sync_batchnorm=false"),
        ("train.compile=default", "train.compile=false"),
        ("train.gradient_exchange=bf16", "train.gradient_exchange=fp32"),
    ],
)
def test_settings_that_do_not_go_with_it_are_refused_with_the_nearest_that_do(setting: str, fix: str) -> None:
    failure = refused(1, setting)
    assert failure.code == ExitCode.USAGE
    assert fix in failure.fix


def test_fast_takes_any_world() -> None:
    checks.refuse_bitwise_conflicts(config("train.reproducible=fast"), 3)


def test_it_says_what_it_promises() -> None:
    told = checks.describe_reproducibility(config().train)
    assert told == "bitwise: 8 micro batches added up in one tree, the same bits on 1, 2, 4, 8 ranks"
    assert checks.describe_reproducibility(RunConfig().train).startswith("fast:")
