"""These checks refuse keys that contradict each other, and warn of keys that have no effect.

They cover `model.args`, `optim.args`, `train.parallel`, `train.reproducible` and the dimensions of
the samples. None of them needs torch, so a mistake is reported before any process is started.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from typing import Any, Final

from entrypoint import ExitCode, Failure, pip_command, shell_command
from train.config import augmentations, schema
from train.config.batches import nearest_multiples
from train.config.models import BUILTIN_MODELS, FORBIDDEN_ARGUMENTS
from train.config.optimizers import OPTIMIZERS, TorchOptimizer, usual_learning_rate
from train.config.precisions import PRECISIONS
from train.config.schema import ModelConfig, OptimConfig, RunConfig, TrainConfig
from train.metrics import DEFAULT_METRIC, METRICS, metrics_of
from train.names import nearest_name
from train.tasks import AUTO, CLASSIFICATION, TASKS


def unused_key_warnings(config: RunConfig) -> tuple[str, ...]:
    """One line for each key that was set and has no effect. Keys at their defaults give no warning.

    `registry.unused_key_warnings` does the same for the keys of the data section.
    """
    values, defaults = asdict(config), asdict(RunConfig())
    warnings = []
    for key, (idle, why) in UNUSED_KEY_CHECKS.items():
        section, name = key.split(".")
        value = values[section][name]
        if value != defaults[section][name] and idle(config):
            warnings.append(f"{key}: {value} does nothing here. fix: {why}")
    return tuple(warnings)


def unused_keys(config: RunConfig) -> frozenset[str]:
    """The keys that have no effect in this config, also those at their defaults.

    `registry.unused_keys` lists those of the data section.
    """
    return frozenset(key for key, (idle, _) in UNUSED_KEY_CHECKS.items() if idle(config))


def _optimizer(config: RunConfig) -> TorchOptimizer:
    """The entry of the config's optimizer.

    Only loading a class outside torch.optim shows what it takes, so every key may have an effect.
    """
    anything = TorchOptimizer(class_name=config.optim.name, arguments=(), takes_momentum=True)
    return OPTIMIZERS.get(config.optim.name, anything)


# Keys that may have no effect: the condition, and the fix.
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
    "optim.label_smoothing": (
        lambda config: schema.is_factory(config.optim.loss),
        "leave it out: a loss of your own gets the labels as they are",
    ),
    "optim.target_threshold": (
        lambda config: config.optim.loss != "bce",
        "set optim.loss to bce, or leave it out",
    ),
    "train.gradient_exchange": (
        lambda config: config.train.parallel != "ddp",
        "set train.parallel to ddp: one process exchanges nothing",
    ),
    "train.ema_every_steps": (
        lambda config: config.train.ema_decay is None,
        "set train.ema_decay, or leave it out",
    ),
    "eval.patience": (
        lambda config: config.eval.target is None,
        "set eval.target, the value that ends the run once it was held so often, or leave it out",
    ),
}


def refuse_unknown_arguments(model: ModelConfig, optim: OptimConfig) -> None:
    """Refuse arguments that the model or the optimizer does not have.

    Values are checked later: torch tries them when the run starts.

    Raises:
        Failure: USAGE, naming the argument and the most similar allowed one.
    """
    if model.name in BUILTIN_MODELS:
        _refuse_unlisted("model.args", model.name, model.args, BUILTIN_MODELS[model.name].arguments)
    elif not schema.is_factory(model.name):
        _refuse_forbidden(model)
    if optim.name in OPTIMIZERS:
        _refuse_unlisted("optim.args", optim.name, optim.args, OPTIMIZERS[optim.name].arguments)


def _refuse_forbidden(model: ModelConfig) -> None:
    """Refuse arguments of torchvision's and timm's constructors that the config or the data decides."""
    for argument in model.args:
        if argument in FORBIDDEN_ARGUMENTS:
            raise Failure(
                f"model.args cannot set {argument} of {model.name}",
                found=f"model.args.{argument}: {model.args[argument]!r:.60}",
                fix=f"leave model.args.{argument} out: {FORBIDDEN_ARGUMENTS[argument]}",
                code=ExitCode.USAGE,
            )


def _refuse_unlisted(key: str, name: str, arguments: Mapping[str, Any], allowed: Sequence[str]) -> None:
    unknown = [argument for argument in arguments if argument not in allowed]
    if unknown:
        close = nearest_name(unknown[0], allowed, 0.75)
        raise Failure(
            f"{key} do not fit {name}",
            found=f"unknown: {', '.join(unknown)}",
            expected=f"values for: {', '.join(allowed)}",
            fix=f"write {key}.{close} instead of {key}.{unknown[0]}" if close else f"correct {key}, or leave it out",
            code=ExitCode.USAGE,
        )


def refuse_uneven_repeats(config: RunConfig) -> None:
    """Refuse a global batch that does not hold at least two images, each of them data.repeats times.

    Raises:
        Failure: USAGE.
    """
    repeats, size = config.data.repeats, config.train.global_batch_size
    if repeats == 1 or (size % repeats == 0 and size > repeats):
        return
    multiples = [multiple for multiple in nearest_multiples(size, repeats) if multiple > repeats]
    raise Failure(
        "train.global_batch_size does not hold its images data.repeats times",
        found=f"{size} = {size / repeats:g} images x {repeats}",
        expected=f"a multiple of {repeats}, of two images or more",
        fix=f"set train.global_batch_size={' or '.join(map(str, multiples or [2 * repeats]))}, or another data.repeats",
        code=ExitCode.USAGE,
    )


def num_readers(config: RunConfig) -> int:
    """data.readers; auto: the largest power of two up to 64 that divides train.global_batch_size."""
    if config.data.readers != "auto":
        return config.data.readers
    return math.gcd(config.train.global_batch_size, 64)


def mixing_warnings(config: RunConfig) -> tuple[str, ...]:
    """The warning for mixup and CutMix with the images of one reader of shards."""
    mixes = augmentations.stage_steps(config.data.augment, "batch")
    if config.data.readers != 1 or not mixes:
        return ()
    return (
        f"data.readers: 1: {mixes[0].name} mixes images that lie near each other in the shards; if these are sorted by "
        "class, mostly of one class. fix: leave data.readers out, or set at least 2",
    )


def refuse_uneven_readers(config: RunConfig) -> None:
    """Refuse a global batch that cannot take as many images from each reader of shards.

    Raises:
        Failure: USAGE.
    """
    readers, size = num_readers(config), config.train.global_batch_size
    if size % readers:
        raise Failure(
            "each global batch takes as many images from each of data.readers",
            found=f"train.global_batch_size: {size}, data.readers: {readers}",
            fix=f"set data.readers={math.gcd(size, readers)}, or leave it out",
            code=ExitCode.USAGE,
        )


def refuse_missing_trackers(trackers: Sequence[str]) -> None:
    """Refuse a tracker whose package is not installed. The package is the user's: the image has only TensorBoard's.

    Raises:
        Failure: USAGE.
    """
    missing = [name for name in trackers if not schema.is_factory(name) and find_spec(name) is None]
    if missing:
        raise Failure(
            f"log.trackers: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed",
            found=f"the packages of {sys.prefix}",
            fix=f"{pip_command(*missing)}; or leave it out of log.trackers",
            code=ExitCode.USAGE,
        )


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


def num_micro_batches(train: TrainConfig) -> int:
    """The number of micro batches in a global batch, which are the leaves of the summation tree."""
    assert train.micro_batch_size != "auto"  # `_refuse_bitwise_keys` has refused it
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
    if is_bitwise(config.train):
        _refuse_bitwise_keys(config.train)
        if world_size not in bitwise_world_sizes(config.train):
            raise _world_size_failure(config.train, world_size)


def _refuse_bitwise_keys(train: TrainConfig) -> None:
    # Whether it is set, the setting, what is expected, and a fix.
    conflicts = (
        (
            train.micro_batch_size == "auto",
            "train.micro_batch_size: auto",
            "a number: it is what must stay the same",
            _suggest_micro_batch_size(train, 64),
        ),
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
    )
    for is_set, setting, expected, fix in conflicts:
        if is_set:
            raise _bitwise_conflict(setting, expected, fix)
    size, micro = train.global_batch_size, train.micro_batch_size
    assert micro != "auto"  # refused above
    if size % micro or (size // micro).bit_count() != 1:
        setting = f"train.global_batch_size {size} / train.micro_batch_size {micro} = {size / micro:g}"
        raise _bitwise_conflict(setting, "1, 2, 4, 8, ...", _suggest_micro_batch_size(train, micro))


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


def _world_size_failure(train: TrainConfig, world_size: int) -> Failure:
    leaves, legal = num_micro_batches(train), bitwise_world_sizes(train)
    under = max(size for size in legal if size <= world_size)
    return Failure(
        f"train.reproducible bitwise cannot add up {leaves} micro batches on {world_size} ranks",
        found=f"{world_size} ranks",
        expected=f"one of {', '.join(map(str, legal))}",
        fix=f"start {under} rank{'s' * (under > 1)} (--procs-per-node, or srun --ntasks), or set "
        "train.reproducible=fast (in a new run: another run.name)",
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
    """How the ranks work together, in words, for the log at the start of a run."""
    if train.parallel == "ddp" and world_size == 1:
        return ONE_RANK_DESCRIPTION
    return BITWISE_DESCRIPTION if is_bitwise(train) else PARALLEL_DESCRIPTIONS[train.parallel]


def is_single_process(parallel: str) -> bool:
    """Whether this `train.parallel` has exactly one process, on any number of GPUs."""
    return parallel != "ddp"


def parallel_warnings(parallel: str) -> tuple[str, ...]:
    """The warnings that `train.parallel` needs at every start."""
    return (DATA_PARALLEL_WARNING,) if parallel == "dp" else ()


def refuse_conflicts(config: RunConfig) -> None:
    """Refuse settings of several keys that do not go together in any launch.

    Raises:
        Failure: USAGE.
    """
    data, train = config.data, config.train
    compiled = f"train.compile: {train.compile}" if train.compile is not False else ""
    data_parallel = "train.parallel: dp" if train.parallel == "dp" else ""
    # Whether they are set, what is wrong, the settings, and a fix.
    conflicts = (
        (  # the weights are for classes drawn as often as they occur
            data.sampling == "balanced" and config.optim.class_weights == "balanced",
            "data.sampling: balanced and optim.class_weights: balanced would balance the classes twice",
            "both are balanced: rare classes would count more than common ones",
            "leave one of them out: sampling repeats rare images, weights count each of them more",
        ),
        (
            compiled and data_parallel,
            "train.compile does not go with train.parallel dp, which copies the model to each GPU in every step",
            compiled,
            "set train.parallel=ddp, or train.compile=false",
        ),
        (  # compiled code fits one of the two
            compiled and isinstance(config.model.freeze, int),
            "train.compile does not go with layers that model.freeze unfreezes during the run",
            f"model.freeze: {config.model.freeze}, {compiled}",
            "set train.compile=false, or model.freeze=backbone or none",
        ),
        (
            compiled and data.progressive_size,
            "train.compile does not go with data.progressive_size: each size would be compiled",
            compiled,
            "set train.compile=false, or leave data.progressive_size out",
        ),
        (  # DataParallel would copy the functions of blocks
            train.activation_checkpointing and (data_parallel or compiled),
            "train.activation_checkpointing does not go with the other settings",
            data_parallel or compiled,
            "set train.parallel=ddp and train.compile=false, or leave it out",
        ),
    )
    for is_set, what, settings, fix in conflicts:
        if is_set:
            raise Failure(what, found=settings, fix=fix, code=ExitCode.USAGE)


def refuse_cpu_sync_batchnorm(train: TrainConfig, device: str, world_size: int) -> None:
    """Refuse `train.sync_batchnorm` for several ranks on the CPU: torch's SyncBatchNorm supports GPUs only.

    Raises:
        Failure: USAGE, with the number of ranks.
    """
    if train.sync_batchnorm and device == "cpu" and world_size > 1:
        raise Failure(
            "train.sync_batchnorm needs GPUs",
            found=f"{world_size} ranks on the CPU",
            expected="one GPU for each rank, or a single rank",
            fix="set train.sync_batchnorm=false, or start one rank: --procs-per-node 1 on one node, srun --ntasks=1",
            code=ExitCode.USAGE,
        )


def refuse_cpu_precision(train: TrainConfig, device: str) -> None:
    """Refuse a train.precision in which a CPU does not compute. Of a GPU only its rank knows what it computes in.

    Raises:
        Failure: USAGE.
    """
    if device == "cpu" and train.precision != "auto" and not PRECISIONS[train.precision].on_cpu:
        raise impossible_precision_failure(train.precision, "CPU")


def impossible_precision_failure(precision: str, device: str) -> Failure:
    """The Failure for a precision that a device would ignore or emulate. device: its name."""
    return Failure(
        f"train.precision {precision} is not possible on this device",
        found=device,
        fix="set train.precision to auto, which takes the best that every device has (in a new run: another run.name)",
        code=ExitCode.USAGE,
    )


def refuse_multiple_ranks(parallel: str, world_size: int) -> None:
    """Refuse several ranks if `train.parallel` has one process.

    Each rank would train alone, and all would write the same files.

    Raises:
        Failure: USAGE, with the numbers.
    """
    if is_single_process(parallel) and world_size > 1:
        raise Failure(
            f"train.parallel {parallel} is one process",
            found=f"{world_size} ranks",
            expected="1 rank",
            fix="set train.parallel=ddp, or start one process: --procs-per-node 1 on one node, srun --ntasks=1",
            code=ExitCode.USAGE,
        )


# All keys that act on some tasks only.
TASK_KEYS: Final = tuple(sorted(set().union(*(task.keys for task in TASKS.values()))))


def with_task_defaults(config: RunConfig, task: str) -> RunConfig:
    """The config of a run of this task: optim.lr is a number, and eval.metric one of the task's if it was not set.

    Raises:
        Failure: USAGE for a metric of another task, for a key that does nothing for this one, and as
            `resolve_learning_rate`.
    """
    _refuse_unused_keys(config, task)
    _refuse_other_loss(config, task)
    config = replace(config, optim=resolve_learning_rate(config, task))
    name = config.eval.metric
    if task in METRICS[name].tasks:
        return config
    if name != DEFAULT_METRIC.name:
        raise Failure(
            f"eval.metric {name} does not go with data.task {task}",
            found=f"eval.metric: {name}",
            expected=f"one of {', '.join(metrics_of(task))}",
            fix=f"set eval.metric={TASKS[task].default_metric}, or leave it out",
            code=ExitCode.USAGE,
        )
    return replace(config, eval=replace(config.eval, metric=TASKS[task].default_metric))


def resolve_learning_rate(config: RunConfig, task: str = CLASSIFICATION) -> OptimConfig:
    """The section `optim` with the highest learning rate of the run in the place of `lr: auto`.

    A run records it, so that no later rule changes a run that resumes.

    Raises:
        Failure: USAGE for an optimizer without a usual rate.
    """
    optim = config.optim
    if optim.lr != AUTO:
        return optim
    rate = usual_learning_rate(
        optim.name,
        optim.lr_scaling,
        config.train.global_batch_size,
        is_fine_tuning=config.model.weights is not None,
        is_regression=not TASKS[task].has_classes,
    )
    if rate is None:
        raise Failure(
            f"optim.lr auto has no rate for optim.name {optim.name}",
            expected=f"one of {', '.join(name for name, entry in OPTIMIZERS.items() if entry.learning_rate)}",
            fix="set optim.lr to a number: earlier versions took optim.lr=0.1, and from there "
            f"`{shell_command('train find-lr', same_config=True)} optim.lr=0.1` suggests one",
            code=ExitCode.USAGE,
        )
    return replace(optim, lr=rate, lr_scaling="none")


def _refuse_unused_keys(config: RunConfig, task: str) -> None:
    values, defaults = asdict(config), asdict(RunConfig())
    for key in TASK_KEYS:
        section, name = key.split(".")
        value = values[section][name]
        if key in TASKS[task].keys or value == defaults[section][name]:
            continue
        others = " or ".join(other.name for other in TASKS.values() if key in other.keys)
        raise Failure(
            f"{key} does not go with data.task {task}",
            found=f"{key}: {value}",
            fix=f"leave {key} out: it acts on {others}",
            code=ExitCode.USAGE,
        )


def _refuse_other_loss(config: RunConfig, task: str) -> None:
    loss, losses = config.optim.loss, TASKS[task].losses
    if loss not in (AUTO, *losses) and not schema.is_factory(loss):
        raise Failure(
            f"optim.loss {loss} does not go with data.task {task}",
            found=f"optim.loss: {loss}",
            expected=f"one of {', '.join((AUTO, *losses))}",
            fix="leave optim.loss out: auto takes the usual loss of the task",
            code=ExitCode.USAGE,
        )
