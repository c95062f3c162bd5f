"""Settings that do not go together are refused or warned of, with the nearest that do."""

from __future__ import annotations

from dataclasses import asdict
from typing import Literal

import pytest

from entrypoint import ExitCode, Failure
from train.config import checks, load, resume_rules, schema
from train.config.load import keep_last_overrides
from train.config.models import BUILTIN_MODELS
from train.config.schema import ModelConfig, RunConfig, TrainConfig


@pytest.mark.parametrize("name", ["resnet18", "timm/resnet18"])
@pytest.mark.parametrize("argument", ["pretrained", "num_classes", "checkpoint_path"])
def test_arguments_that_the_data_or_the_config_decides_are_refused(name: str, argument: str) -> None:
    with pytest.raises(Failure, match=f"cannot set {argument} of {name}") as caught:
        checks.refuse_forbidden_arguments(ModelConfig(name=name, args={argument: 1}))
    assert caught.value.code == 64


@pytest.mark.parametrize("name", ["resnet18", "small_cnn", "mine:make"])
def test_what_only_building_a_model_tells_is_left_to_it(name: str) -> None:
    checks.refuse_forbidden_arguments(ModelConfig(name=name, args={"anything": 1}))


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


IMAGE_MODELS = (
    *(name for name, entry in BUILTIN_MODELS.items() if entry.dims == 2),
    *schema.TORCHVISION_MODELS,
)


@pytest.mark.parametrize(("model", "dims"), [("cnn3d", 3), ("small_cnn", 2), ("cnn3d", None), ("a.b:c", 3), ("a:b", 2)])
def test_a_match_passes(model: str, dims: int | None) -> None:
    checks.refuse_dimension_mismatch(model, dims, "")


@pytest.mark.parametrize("model", IMAGE_MODELS)
def test_no_other_model_takes_clips(model: str) -> None:
    with pytest.raises(Failure, match=f"{model} takes images, and the data has clips") as caught:
        checks.refuse_dimension_mismatch(model, 3, "data.name: synthetic")
    assert (caught.value.code, caught.value.found) == (64, "data.name: synthetic")


@pytest.mark.parametrize(("dims", "has"), [(2, "images"), (1, "neither")])
def test_a_model_of_clips_takes_nothing_else(dims: int, has: str) -> None:
    with pytest.raises(Failure, match=f"cnn3d takes clips, and the data has {has}"):
        checks.refuse_dimension_mismatch("cnn3d", dims, "")


def test_mixing_the_images_of_one_reader_of_shards_is_warned_of() -> None:
    settings = ["data.name=shards", "data.root=/shards", "data.augment=[mixup]"]
    assert checks.conflict_warnings(load.load_config(None, settings)) == ()
    assert checks.conflict_warnings(load.load_config(None, [*settings[:2], "data.readers=1"])) == ()
    (line,) = checks.conflict_warnings(load.load_config(None, [*settings, "data.readers=1"]))
    assert line.startswith("data.readers: 1: mixup mixes images that lie near each other")


BITWISE = ("train.reproducible=bitwise", "train.global_batch_size=64", "train.micro_batch_size=8")


def bitwise_config(*settings: str) -> RunConfig:
    return load.load_config(None, keep_last_overrides([*BITWISE, *settings]))


def bitwise_refusal(world: int, *settings: str) -> Failure:
    with pytest.raises(Failure) as caught:
        checks.refuse_bitwise_conflicts(bitwise_config(*settings), world)
    return caught.value


@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_powers_of_two_that_divide_the_micro_batches_are_taken(world: int) -> None:
    checks.refuse_bitwise_conflicts(bitwise_config(), world)


@pytest.mark.parametrize(("world", "fewer"), [(3, 2), (6, 4), (16, 8)])
def test_other_worlds_are_refused_with_the_legal_ones(world: int, fewer: int) -> None:
    failure = bitwise_refusal(world)
    assert (failure.code, failure.expected) == (ExitCode.LAUNCH_CONFLICT, "one of 1, 2, 4, 8")
    assert f"start {fewer} ranks" in failure.fix


def test_a_run_that_is_there_is_told_that_the_other_mode_is_for_a_new_one() -> None:
    differs = resume_rules.changed_keys(asdict(bitwise_config()), asdict(bitwise_config("train.reproducible=fast")))
    assert list(differs) == ["train.reproducible"]  # which it refuses
    assert bitwise_refusal(3).fix.endswith("set train.reproducible=fast (in a new run: another run.name)")


def test_one_rank_is_one_rank() -> None:
    assert bitwise_refusal(2, "train.micro_batch_size=64").fix.startswith("start 1 rank (")


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
    failure = bitwise_refusal(1, setting)
    assert failure.code == ExitCode.USAGE
    assert fix in failure.fix


def test_fast_takes_any_world() -> None:
    checks.refuse_bitwise_conflicts(bitwise_config("train.reproducible=fast"), 3)


def test_it_says_what_it_promises() -> None:
    description = checks.describe_reproducibility(bitwise_config().train)
    assert description == "bitwise: 8 micro batches added up in one tree, the same bits on 1, 2, 4, 8 ranks"
    assert checks.describe_reproducibility(RunConfig().train).startswith("fast:")
