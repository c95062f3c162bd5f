"""These checks refuse keys that contradict each other.

They cover what two sections must agree on: batches and ranks, strategy and reproducibility, data and its dimensions,
trackers. None of them needs torch, so a mistake is reported before any process is started.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from typing import Final

from entrypoint import ExitCode, Failure, pip_command
from train.config import augmentations, schema
from train.config.batches import nearest_multiples
from train.config.models import BUILTIN_MODELS, FORBIDDEN_ARGUMENTS
from train.config.precisions import PRECISIONS
from train.config.schema import DataConfig, ModelConfig, OptimConfig, RunConfig, TrainConfig
from train.config.strategies import STRATEGIES
from train.metrics import METRICS
from train.names import nearest_name


def refuse_forbidden_arguments(model: ModelConfig) -> None:
    """Refuse arguments of torchvision's and timm's constructors that the config or the data decides.

    Raises:
        Failure: USAGE.
    """
    if model.name in BUILTIN_MODELS or schema.is_factory(model.name):
        return
    for argument in FORBIDDEN_ARGUMENTS.keys() & model.args.keys():
        raise Failure(
            f"model.args cannot set {argument} of {model.name}",
            found=f"model.args.{argument}: {model.args[argument]!r:.60}",
            fix=f"leave model.args.{argument} out: {FORBIDDEN_ARGUMENTS[argument]}",
            code=ExitCode.USAGE,
        )


def bad_arguments_failure(
    key: str, owner: str, problem: str, expected: str, *, unknown: str = "", settable: Sequence[str] = ()
) -> Failure:
    """The failure for arguments in the mapping `key` that `owner`, a model, optimizer or schedule, does not take.

    unknown: a name that is none of `settable`, for which the nearest of these is suggested.
    """
    close = nearest_name(unknown, settable, 0.75)
    fix = f"write {key}.{close} instead of {key}.{unknown}" if close else f"correct {key}, or leave it out"
    return Failure(f"{key} do not fit {owner}", found=problem, expected=expected, fix=fix, code=ExitCode.USAGE)


def num_readers(config: RunConfig) -> int:
    """data.readers; auto: the largest power of two up to 64 that divides train.global_batch_size."""
    if config.data.readers != "auto":
        return config.data.readers
    return math.gcd(config.train.global_batch_size, 64)


def conflict_warnings(config: RunConfig) -> tuple[str, ...]:
    """The warnings of settings that go together, but worse than others."""
    mixes = augmentations.stage_steps(config.data.augment, "batch")
    warnings = [*STRATEGIES[config.train.parallel].warnings]
    if config.data.readers == 1 and mixes:
        warnings.append(
            f"data.readers: 1: {mixes[0].name} mixes images that lie near each other in the shards; if these are "
            "sorted by class, mostly of one class. fix: leave data.readers out, or set at least 2"
        )
    return tuple(warnings)


SAMPLE_NOUNS: Final = {2: "images", 3: "clips"}  # by the dimensions of a sample; clips also have frames


def refuse_dimension_mismatch(model: str, dims: int | None, description: str) -> None:
    """Refuse clips for a model that takes images, and images for a model that takes clips.

    dims: the dimensions of a sample without its channels; None if they are not known yet.

    Raises:
        Failure: USAGE, naming the model and the data.
    """
    if schema.is_factory(model):
        return  # it decides for itself
    takes = BUILTIN_MODELS[model].dims if model in BUILTIN_MODELS else 2  # torchvision's take images
    if dims in (None, takes):
        return
    other = next(name for name, entry in BUILTIN_MODELS.items() if entry.dims != takes)
    raise Failure(
        f"model.name {model} takes {SAMPLE_NOUNS[takes]}, and the data has {SAMPLE_NOUNS.get(dims, 'neither')}",
        found=description,
        fix=f"set model.name to {other}, or take other data (data.frames makes synthetic clips)",
        code=ExitCode.USAGE,
    )


BITWISE: Final = "bitwise"


def is_bitwise(train: TrainConfig) -> bool:
    """Whether the run must give the same bits on any number of ranks."""
    return train.reproducible == BITWISE


def is_repeatable(train: TrainConfig) -> bool:
    """Whether the run must give the same bits when it is run again on as many ranks and threads."""
    return train.reproducible != "none"


def loss_rows(optim: OptimConfig) -> dict[str, str]:
    """A row of the start and of `train check` for a loss of the user's own."""
    return {"loss": f"{optim.loss}; evaluations report the task's own"} if schema.is_factory(optim.loss) else {}


def num_micro_batches(train: TrainConfig) -> int:
    """The number of micro batches in a global batch, which are the leaves of the summation tree."""
    assert train.micro_batch_size != "auto"  # `refuse_bitwise_conflicts` has refused it
    return train.global_batch_size // train.micro_batch_size


def bitwise_world_sizes(train: TrainConfig) -> list[int]:
    """The world sizes that give the same bits."""
    return [1 << level for level in range(num_micro_batches(train).bit_length())]


def describe_reproducibility(train: TrainConfig) -> str:
    """The mode in words, for `train check` and for the log at the start of a run."""
    if not is_repeatable(train):
        return "none: on GPUs the fastest kernels, which may round differently in each start"
    if not is_bitwise(train):
        return "fast: the same bits on the same number of ranks and threads"
    listed = ", ".join(map(str, bitwise_world_sizes(train)))
    return f"bitwise: {num_micro_batches(train)} micro batches added up in one tree, the same bits on {listed} ranks"


def searches_micro_batch(train: TrainConfig, device: str) -> bool:
    """Whether a start tries which micro batch fits into the memory of its GPUs."""
    return device == "cuda" and train.micro_batch_size == "auto" and train.parallel != "dp"


def refuse_bitwise_conflicts(config: RunConfig, world_size: int) -> None:
    """Refuse what `bitwise` cannot do: its summation tree needs powers of two.

    Raises:
        Failure: USAGE for contradicting keys, LAUNCH_CONFLICT for the number of ranks.
    """
    train, size, micro = config.train, config.train.global_batch_size, config.train.micro_batch_size
    if not is_bitwise(train):
        return
    if micro == "auto":
        setting, expected = "train.micro_batch_size: auto", "a number: it is what must stay the same"
        raise _bitwise_conflict(setting, expected, _suggest_micro_batch_size(train, 64))
    # Whether it is set, the setting, what is expected, and a fix.
    conflicts = (
        (train.parallel == "dp", "train.parallel: dp", "ddp or none", "set train.parallel=ddp"),
        (
            train.compile is not False,
            f"train.compile: {train.compile}",
            "false: each rank would compile for itself, and the kernels may add in another order",
            "set train.compile=false",
        ),
        (
            train.gradient_exchange != "fp32",
            f"train.gradient_exchange: {train.gradient_exchange}",
            "fp32: the tree adds up what backward gives",
            "set train.gradient_exchange=fp32",
        ),
        (
            train.sync_batchnorm,
            "train.sync_batchnorm: true",
            "false: BatchNorm over micro batches, whose statistics are added up in the same tree",
            "set train.sync_batchnorm=false",
        ),
        (
            size % micro or (size // micro).bit_count() != 1,
            f"train.global_batch_size {size} / train.micro_batch_size {micro} = {size / micro:g}",
            "1, 2, 4, 8, ...",
            _suggest_micro_batch_size(train, micro),
        ),
    )
    for is_set, setting, expected, fix in conflicts:
        if is_set:
            raise _bitwise_conflict(setting, expected, fix)
    legal = bitwise_world_sizes(train)
    if world_size not in legal:
        under = max(size for size in legal if size <= world_size)
        raise Failure(
            f"train.reproducible bitwise cannot add up {num_micro_batches(train)} micro batches on {world_size} ranks",
            found=f"{world_size} ranks",
            expected=f"one of {', '.join(map(str, legal))}",
            fix=f"start {under} rank{'s' * (under > 1)} (--procs-per-node, or srun --ntasks), or set "
            "train.reproducible=fast (in a new run: another run.name)",
            code=ExitCode.LAUNCH_CONFLICT,
        )


def _suggest_micro_batch_size(train: TrainConfig, near: int) -> str:
    """The legal micro batch nearest to `near`."""
    size = train.global_batch_size
    halvings = (size & -size).bit_length()  # the lowest bit that is set, counted from 1
    micro = min((size >> number for number in range(halvings)), key=lambda micro: abs(micro - near))
    return f"set train.micro_batch_size={micro}"


def _bitwise_conflict(setting: str, expected: str, fix: str) -> Failure:
    return Failure(
        "train.reproducible bitwise does not go with the other settings",
        found=setting,
        expected=expected,
        fix=f"{fix}, or train.reproducible=fast",
        code=ExitCode.USAGE,
    )


def refuse_conflicts(config: RunConfig, world_size: int = 1, device: str | None = None) -> None:
    """Refuse settings that do not go together, with each other or with the processes that are to be started.

    device: cpu or cuda; None where it is not known.

    Raises:
        Failure: USAGE.
    """
    data, train = config.data, config.train
    size, repeats, readers = train.global_batch_size, data.repeats, num_readers(config)
    multiples = [multiple for multiple in nearest_multiples(size, repeats) if multiple > repeats] or [2 * repeats]
    missing = [name for name in config.log.trackers if not schema.is_factory(name) and find_spec(name) is None]
    target, metric = config.eval.target or 0.0, METRICS[config.eval.metric]
    is_percent = metric.is_share and 1 < target <= 100
    compiled = f"train.compile: {train.compile}" if train.compile is not False else ""
    data_parallel = "train.parallel: dp" if train.parallel == "dp" else ""
    refusal = partial(Failure, code=ExitCode.USAGE)
    conflicts = (
        (  # torch's SyncBatchNorm supports GPUs only
            train.sync_batchnorm and device == "cpu" and world_size > 1,
            refusal(
                "train.sync_batchnorm needs GPUs",
                found=f"{world_size} ranks on the CPU",
                expected="one GPU for each rank, or a single rank",
                fix="set train.sync_batchnorm=false, or start one rank: --procs-per-node 1 on one node, srun "
                "--ntasks=1",
            ),
        ),
        (  # of a GPU only its rank knows in what it computes
            device == "cpu" and train.precision != "auto" and not PRECISIONS[train.precision].on_cpu,
            impossible_precision_failure(train.precision, "CPU"),
        ),
        (  # each rank would train alone, and all would write the same files
            STRATEGIES[train.parallel].is_single_process and world_size > 1,
            refusal(
                f"train.parallel {train.parallel} is one process",
                found=f"{world_size} ranks",
                expected="1 rank",
                fix="set train.parallel=ddp, or start one process: --procs-per-node 1 on one node, srun --ntasks=1",
            ),
        ),
        (
            repeats > 1 and (size % repeats or size <= repeats),
            refusal(
                "train.global_batch_size does not hold its images data.repeats times",
                found=f"{size} = {size / repeats:g} images x {repeats}",
                expected=f"a multiple of {repeats}, of two images or more",
                fix=f"set train.global_batch_size={' or '.join(map(str, multiples))}, or another data.repeats",
            ),
        ),
        (
            size % readers,
            refusal(
                "each global batch takes as many images from each of data.readers",
                found=f"train.global_batch_size: {size}, data.readers: {readers}",
                fix=f"set data.readers={math.gcd(size, readers)}, or leave it out",
            ),
        ),
        (
            data.fold is not None and data.val_fraction != DataConfig().val_fraction,
            refusal(
                "data.fold and data.val_fraction both choose the validation images",
                found=f"data.fold: {data.fold}, data.val_fraction: {data.val_fraction:g}",
                fix="leave one of them out: data.fold for cross-validation, data.val_fraction for one split",
            ),
        ),
        (
            data.fold is None and data.val_fraction + data.test_fraction >= 1,
            refusal(
                "data.val_fraction and data.test_fraction together leave nothing to train on",
                found=f"{data.val_fraction:g} + {data.test_fraction:g} of the images",
                expected="less than 1 together",
                fix="make one of them smaller, such as data.test_fraction=0.2",
            ),
        ),
        (
            data.fit in ("pad", "stretch") and data.crop_ratio not in ("auto", 1.0),
            refusal(
                f"data.fit: {data.fit} keeps whole images, and data.crop_ratio cuts their border away",
                found=f"data.crop_ratio: {data.crop_ratio}",
                fix="leave data.crop_ratio out, or set data.fit to crop",
            ),
        ),
        (  # no value of the metric can reach it (such as per cent), or each one does
            config.eval.target is not None and not metric.accepts_target(target),
            refusal(
                f"eval.target {target:g} is no value of eval.metric {metric.name}",
                found=f"eval.target: {target:g}",
                expected="more than 0, up to 1" if metric.is_share else "more than 0",
                fix=f"write eval.target={target / 100:g}" if is_percent else "correct eval.target, or set null",
            ),
        ),
        (  # the package is the user's: the image has only TensorBoard's
            missing,
            refusal(
                f"log.trackers: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed",
                found=f"the packages of {sys.prefix}",
                fix=f"{pip_command(*missing)}; or leave it out of log.trackers",
            ),
        ),
        (  # the weights are for classes drawn as often as they occur
            data.sampling == "balanced" and config.optim.class_weights == "balanced",
            refusal(
                "data.sampling: balanced and optim.class_weights: balanced would balance the classes twice",
                found="both are balanced: rare classes would count more than common ones",
                fix="leave one of them out: sampling repeats rare images, weights count each of them more",
            ),
        ),
        (
            compiled and data_parallel,
            refusal(
                "train.compile does not go with train.parallel dp, which copies the model to each GPU in every step",
                found=compiled,
                fix="set train.parallel=ddp, or train.compile=false",
            ),
        ),
        (  # compiled code fits one of the two
            compiled and isinstance(config.model.freeze, int),
            refusal(
                "train.compile does not go with layers that model.freeze unfreezes during the run",
                found=f"model.freeze: {config.model.freeze}, {compiled}",
                fix="set train.compile=false, or model.freeze=backbone or none",
            ),
        ),
        (
            compiled and data.progressive_size,
            refusal(
                "train.compile does not go with data.progressive_size: each size would be compiled",
                found=compiled,
                fix="set train.compile=false, or leave data.progressive_size out",
            ),
        ),
        (  # DataParallel would copy the functions of blocks
            train.activation_checkpointing and (data_parallel or compiled),
            refusal(
                "train.activation_checkpointing does not go with the other settings",
                found=data_parallel or compiled,
                fix="set train.parallel=ddp and train.compile=false, or leave it out",
            ),
        ),
    )
    for is_set, failure in conflicts:
        if is_set:
            raise failure


def impossible_precision_failure(precision: str, device: str) -> Failure:
    """The Failure for a precision that a device would ignore or emulate. device: its name."""
    return Failure(
        f"train.precision {precision} is not possible on this device",
        found=device,
        fix="set train.precision to auto, which takes the best that every device has (in a new run: another run.name)",
        code=ExitCode.USAGE,
    )
