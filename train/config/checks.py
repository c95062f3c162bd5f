"""These checks refuse keys that contradict each other, and warn of keys that have no effect.

They cover `model.args`, `optim.args`, `train.parallel`, `train.reproducible` and the dimensions of
the samples. None of them needs torch, so a mistake is reported before any process is started.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from entrypoint import ExitCode, Failure
from train.config import schema
from train.config.load import nearest_name
from train.config.optimizers import OPTIMIZERS, TorchOptimizer
from train.config.schema import ModelConfig, OptimConfig, RunConfig, TrainConfig


def unused_key_warnings(config: RunConfig) -> tuple[str, ...]:
    """One line for each key that was set and does nothing. A key at its default claims nothing.

    Without the keys of the data section: `registry.unused_key_warnings` knows them.
    """
    set_, defaults = asdict(config), asdict(RunConfig())
    told = []
    for key, (idle, why) in UNUSED_KEY_CHECKS.items():
        section, name = key.split(".")
        value = set_[section][name]
        if value != defaults[section][name] and idle(config):
            told.append(f"{key}: {value} does nothing here. fix: {why}")
    return tuple(told)


def unused_keys(config: RunConfig) -> frozenset[str]:
    """The keys that do nothing here, at their defaults too; those of the data section: `registry.unused_keys`."""
    return frozenset(key for key, (idle, _) in UNUSED_KEY_CHECKS.items() if idle(config))


def _optimizer(config: RunConfig) -> TorchOptimizer:
    """What a class outside torch.optim takes is known once it is loaded: any key may act."""
    anything = TorchOptimizer(class_name=config.optim.name, arguments=(), takes_momentum=True)
    return OPTIMIZERS.get(config.optim.name, anything)


# What may be idle: when, and what to do about it.
UNUSED_KEY_CHECKS: Final[Mapping[str, tuple[Callable[[RunConfig], bool], str]]] = {
    "optim.momentum": (
        lambda config: not _optimizer(config).takes_momentum,
        "leave it out, or set what this optimizer calls it in optim.args",
    ),
    "optim.weight_decay": (
        lambda config: not _optimizer(config).takes_weight_decay,
        "leave it out: this optimizer has no weight decay",
    ),
    "optim.base_batch_size": (
        lambda config: config.optim.lr_scaling == "none",
        "set optim.lr_scaling to linear or sqrt, or leave it out",
    ),
    "train.gradient_exchange": (
        lambda config: config.train.parallel != "ddp",
        "set train.parallel to ddp: one process exchanges nothing",
    ),
    "eval.patience": (
        lambda config: config.eval.target is None,
        "set eval.target, the value that ends the run once it was held so often, or leave it out",
    ),
}


# A test compares this table with the code. What torchvision's models take, only building them tells.
MODEL_ARGUMENTS: Final[Mapping[str, Sequence[str]]] = {
    "small_cnn": ("width", "blocks", "norm", "dropout", "pool"),
    "wide_resnet": ("depth", "width", "dropout"),
    "cnn3d": ("width", "blocks", "norm", "dropout"),
}


def refuse_unknown_arguments(model: ModelConfig, optim: OptimConfig) -> None:
    """Refuse an argument that the model or the optimizer does not have. Values are tried at the start, with torch.

    Raises:
        Failure: USAGE, naming the argument and the nearest one that there is.
    """
    if model.name in MODEL_ARGUMENTS:
        _refuse_unlisted("model.args", model.name, model.args, MODEL_ARGUMENTS[model.name])
    if optim.name in OPTIMIZERS:
        _refuse_unlisted("optim.args", optim.name, optim.args, OPTIMIZERS[optim.name].arguments)


def _refuse_unlisted(key: str, name: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    unknown = [word for word in given if word not in known]
    if unknown:
        close = nearest_name(unknown[0], known, 0.75)
        raise Failure(
            f"{key} do not fit {name}",
            found=f"unknown: {', '.join(unknown)}",
            expected=f"values for: {', '.join(known)}",
            fix=f"write {key}.{close} instead of {key}.{unknown[0]}" if close else f"correct {key}, or leave it out",
            code=ExitCode.USAGE,
        )


SAMPLE_NOUNS: Final = {2: "images", 3: "clips"}  # by the number of directions in a sample: with or without frames
CLIP_MODELS: Final = ("cnn3d",)  # those of ours that take clips; all others but a factory's take images


def refuse_dimension_mismatch(model: str, dims: int | None, found: str) -> None:
    """Clips for a model of images, or images for one of clips.

    Raises:
        Failure: USAGE, naming both.
    """
    takes = 3 if model in CLIP_MODELS else 2
    if dims in (None, takes) or schema.is_factory(model):
        return
    other = schema.BUILTIN_MODELS[0] if model in CLIP_MODELS else CLIP_MODELS[0]
    raise Failure(
        f"model.name {model} takes {SAMPLE_NOUNS[takes]}, and the data has {SAMPLE_NOUNS.get(dims, 'neither')}",
        found=found,
        fix=f"set model.name to {other}, or take other data (data.frames makes synthetic clips)",
        code=ExitCode.USAGE,
    )


BITWISE: Final = "bitwise"


def is_bitwise(train: TrainConfig) -> bool:
    """Whether the run is to have the same bits on any number of ranks."""
    return train.reproducible == BITWISE


def num_micro_batches(train: TrainConfig) -> int:
    """V: the micro batches of a global batch, the leaves of the tree."""
    assert train.micro_batch_size != "auto"  # refused before
    return train.global_batch_size // train.micro_batch_size


def bitwise_world_sizes(train: TrainConfig) -> list[int]:
    """The numbers of ranks that give the same bits."""
    return [1 << level for level in range(num_micro_batches(train).bit_length())]


def describe_reproducibility(train: TrainConfig) -> str:
    """The mode in words, for `train check` and the start of a run."""
    if not is_bitwise(train):
        return "fast: the same bits on the same number of ranks and threads"
    listed = ", ".join(map(str, bitwise_world_sizes(train)))
    return f"bitwise: {num_micro_batches(train)} micro batches added up in one tree, the same bits on {listed} ranks"


def refuse_bitwise_conflicts(config: RunConfig, world_size: int) -> None:
    """What a tree of powers of two cannot do.

    Raises:
        Failure: USAGE for keys that do not go together, LAUNCH_CONFLICT for the number of ranks.
    """
    if is_bitwise(config.train):
        _refuse_bitwise_keys(config.train)
        if world_size not in bitwise_world_sizes(config.train):
            raise _world_size_failure(config.train, world_size)


def _refuse_bitwise_keys(train: TrainConfig) -> None:
    if train.micro_batch_size == "auto":
        raise _bitwise_conflict(
            "train.micro_batch_size: auto",
            "a number: it is what must stay the same",
            _suggest_micro_batch_size(train, 64),
        )
    if train.parallel == "dp":
        raise _bitwise_conflict("train.parallel: dp", "ddp or none", "set train.parallel=ddp")
    if train.compile is not False:
        why = "false: each rank would compile for itself, and the kernels may add in another order"
        raise _bitwise_conflict(f"train.compile: {train.compile}", why, "set train.compile=false")
    if train.gradient_exchange != "fp32":
        why = "fp32: the tree adds up what backward gives"
        raise _bitwise_conflict(
            f"train.gradient_exchange: {train.gradient_exchange}", why, "set train.gradient_exchange=fp32"
        )
    if train.sync_batchnorm:
        why = "false: BatchNorm over micro batches, whose statistics are added up in the same tree"
        raise _bitwise_conflict("train.sync_batchnorm: true", why, "set train.sync_batchnorm=false")
    leaves, rest = divmod(train.global_batch_size, train.micro_batch_size)
    if rest or leaves.bit_count() != 1:
        found = f"train.global_batch_size {train.global_batch_size} / train.micro_batch_size {train.micro_batch_size}"
        fix = _suggest_micro_batch_size(train, train.micro_batch_size)
        raise _bitwise_conflict(
            f"{found} = {train.global_batch_size / train.micro_batch_size:g}", "1, 2, 4, 8, ...", fix
        )


def _suggest_micro_batch_size(train: TrainConfig, near: int) -> str:
    """The legal micro batch nearest to `near`."""
    whole, sizes = train.global_batch_size, []
    while True:
        sizes.append(whole)
        if whole % 2:
            return f"set train.micro_batch_size={min(sizes, key=lambda size: abs(size - near))}"
        whole //= 2


def _bitwise_conflict(found: str, expected: str, fix: str) -> Failure:
    return Failure(
        "train.reproducible bitwise does not go with the other settings",
        found=found,
        expected=expected,
        fix=f"{fix}, or train.reproducible=fast",
        code=ExitCode.USAGE,
    )


def _format_ranks(number: int) -> str:
    return "1 rank" if number == 1 else f"{number} ranks"


def _world_size_failure(train: TrainConfig, world_size: int) -> Failure:
    leaves, legal = num_micro_batches(train), bitwise_world_sizes(train)
    under = max(size for size in legal if size <= world_size)
    return Failure(
        f"train.reproducible bitwise cannot add up {leaves} micro batches on {world_size} ranks",
        found=f"{world_size} ranks",
        expected=f"one of {', '.join(map(str, legal))}",
        fix=f"start {_format_ranks(under)} (--procs-per-node, or srun --ntasks), or set train.reproducible=fast "
        "(in a new run: another run.name)",
        code=ExitCode.LAUNCH_CONFLICT,
    )


DATA_PARALLEL_WARNING: Final = (
    "train.parallel dp: one process feeds all GPUs and copies the model to each of them in every step, which is slower "
    "than ddp and leaves the CPU's other cores idle. fix: train.parallel=ddp, unless you want to compare"
)
PARALLEL_DESCRIPTIONS: Final = {
    "ddp": "DDP: one process for each rank, gradients are averaged",
    "dp": "DataParallel, one process for all GPUs",
    "none": "none: one process",
}
BITWISE_DESCRIPTION: Final = "one process for each rank, whose gradients meet in pairs"
ONE_RANK_DESCRIPTION: Final = "none: one process, nobody to exchange gradients with"


def describe_parallel(train: TrainConfig, world_size: int) -> str:
    """For the start of a run."""
    if train.parallel == "ddp" and world_size == 1:
        return ONE_RANK_DESCRIPTION
    return BITWISE_DESCRIPTION if is_bitwise(train) else PARALLEL_DESCRIPTIONS[train.parallel]


def is_single_process(kind: str) -> bool:
    """Whether this kind has exactly one process, on however many GPUs."""
    return kind != "ddp"


def parallel_warnings(kind: str) -> tuple[str, ...]:
    """What is to be said at every start."""
    return (DATA_PARALLEL_WARNING,) if kind == "dp" else ()


def refuse_compiled_data_parallel(train: TrainConfig) -> None:
    """Refuse what needs a process for each GPU, where there is one for all.

    Raises:
        Failure: USAGE.
    """
    if train.parallel == "dp" and train.compile is not False:
        raise Failure(
            "train.compile does not go with train.parallel dp, which copies the model to each GPU in every step",
            found=f"train.compile: {train.compile}",
            fix="set train.parallel=ddp, or train.compile=false",
            code=ExitCode.USAGE,
        )


def refuse_multiple_ranks(kind: str, world_size: int) -> None:
    """Refuse more ranks than `train.parallel` has: each would train alone, and all would write the same files.

    Raises:
        Failure: USAGE, with the numbers.
    """
    if is_single_process(kind) and world_size > 1:
        raise Failure(
            f"train.parallel {kind} is one process",
            found=f"{world_size} ranks",
            expected="1 rank",
            fix="set train.parallel=ddp, or start one process: --procs-per-node 1 on one node, srun --ntasks=1",
            code=ExitCode.USAGE,
        )
