"""The schema lists every key of the configuration with its type, default and allowed values.

`RunConfig()` is the quickstart. The schema also lists the names of data sources, models and
schedules, because the command line checks them without torch.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from entrypoint import expand_path, has_variable, list_some
from train.config import augmentations, models
from train.config.models import BUILTIN_MODELS, TORCHVISION_MODELS
from train.config.optimizers import OPTIMIZERS
from train.metrics import METRICS
from train.tasks import AUTO, TASKS, UNSUPPORTED_TASKS

Auto = Literal["auto"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSection:
    """The run's name, folder (`output_dir/name`) and seed."""

    name: str = "quickstart"
    output_dir: str = "runs"
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds without a sign of life after which a run counts as hanging.

    start: until the end of the first step.
    """

    start: float = 600.0
    step: float | Auto = "auto"
    save: float = 600.0
    evaluation: float = 600.0
    data: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig:
    """Which processes to start, if the scheduler does not decide it."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    procs_per_node: int | Auto = "auto"
    max_restarts: int = 0
    timeouts: Timeouts = field(default_factory=Timeouts)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """The data source and its settings. image_size: in pixels, of a square or [height, width].

    val_fraction, test_fraction: the shares of the images that become the validation and the test split.
    fold: instead of val_fraction, such as 2/5: the second of five parts validates. sampling: how often
    an epoch draws the images of each class. repeats: how often a global batch holds each of its images. imbalance: how
    many times rarer the rarest class is than the commonest (synthetic). frames: of a clip
    (synthetic). images: the folder of the images that a table lists; columns: what the table calls
    its columns; task: what the labels are. progressive_size: {start: pixels, epochs: number}, in which
    images grow to image_size; empty: they do not. mirror: the address from which data.download fetches
    published files. readers: the parts into which an epoch of shards is cut, a power of two. stage:
    a folder on a disk of each node, to which shards are copied. fit, decode, crop_ratio,
    interpolation, normalize: the `Preprocessing` of images; auto: that of the weights, or the
    default. color: the channels that image files get.
    """

    name: str = "synthetic"
    root: str = "data"
    images: str | None = None
    columns: dict[str, Any] = field(default_factory=dict)
    task: str = AUTO
    download: bool = False
    mirror: str | None = None
    image_size: int | list[int] = 32
    progressive_size: dict[str, Any] = field(default_factory=dict)
    frames: int | None = None
    classes: int = 10
    samples: int = 10_000
    imbalance: float = 1.0
    val_fraction: float = 0.2
    test_fraction: float = 0.0
    fold: str | None = None
    sampling: Literal["uniform", "balanced"] = "uniform"
    repeats: int = 1
    group: str | None = None
    loader: Literal["auto", "memory", "workers"] = "auto"
    workers: int | Auto = "auto"
    readers: int | Auto = "auto"
    stage: str | None = None
    cache: str | None = None
    fit: Literal["auto", "crop", "pad", "stretch"] = "auto"
    color: Literal["rgb", "gray"] = "rgb"
    decode: Literal["auto", "exact", "fast", "gpu"] = "auto"
    crop_ratio: float | Auto = "auto"
    interpolation: Literal["auto", "bilinear", "bicubic"] = "auto"
    normalize: Auto | dict[str, Any] = "auto"
    augment: str | list[str | dict[str, Any]] = "standard"
    max_bad_images: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The network; `args` are the arguments of its constructor.

    freeze: keep all layers but the last as they are, for the whole run or for so many epochs.
    """

    name: str = "small_cnn"
    args: dict[str, Any] = field(default_factory=dict)
    weights: str | None = None
    freeze: Literal["none", "backbone"] | int = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimConfig:
    """The optimizer and its learning rate schedule.

    name: a class of torch.optim, a short name, or package.module:Class. weight_decay_on: all
    parameters, or only weights (not biases, norms, tokens, position embeddings). args, schedule_args: arguments of the
    optimizer and of the schedule. loss: of numbers, or bce of classes. target_threshold: targets of
    bce above it are 1, and 0 otherwise. layer_decay: each layer's learning rate is so many times that of the layer
    after it.
    """

    name: str = "sgd"
    lr: float | Auto = "auto"
    lr_scaling: Literal["none", "linear", "sqrt"] = "none"
    base_batch_size: int = 256
    args: dict[str, Any] = field(default_factory=dict)
    momentum: float = 0.9
    weight_decay: float = 5.0e-4
    weight_decay_on: Literal["all", "weights"] = "all"
    layer_decay: float | None = None
    schedule: str = "cosine"
    schedule_args: dict[str, Any] = field(default_factory=dict)
    warmup_epochs: float = 1.0
    label_smoothing: float = 0.0
    class_weights: Literal["none", "balanced"] | list[float] | dict[str, Any] = "none"
    loss: Literal["auto", "bce", "l1", "l2", "huber"] = "auto"
    target_threshold: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """The length, batch sizes and numerics of the training. Accumulation is global / (micro x world).

    compile: the mode of torch.compile. gradient_exchange, bucket_cap_mb: the dtype and the bucket
    size of DDP's all-reduce. ema_decay: evaluate and save an EMA of the weights too, which is
    updated every ema_every_steps. tf32: let fp32
    round factors to 11 bits. activation_checkpointing: compute each block twice instead of keeping its
    activations. spike: what to do if the loss jumps. check_replicas_every_steps: also
    before every save; null: never.
    """

    epochs: int = 5
    max_steps: int | None = None
    global_batch_size: int = 256
    micro_batch_size: int | Auto = "auto"
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    tf32: bool = False
    clip_grad_norm: float | None = None
    compile: Literal["default", "reduce-overhead"] | bool = False
    parallel: Literal["ddp", "dp", "none"] = "ddp"
    gradient_exchange: Literal["fp32", "bf16"] = "fp32"
    bucket_cap_mb: int = 25
    sync_batchnorm: bool = False
    activation_checkpointing: bool = False
    ema_decay: float | None = None
    ema_every_steps: int = 1
    reproducible: Literal["none", "fast", "bitwise"] = "fast"
    nan: Literal["stop"] = "stop"
    spike: Literal["none", "warn", "rollback"] = "warn"
    check_replicas_every_steps: int | None = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """When and how the validation split is evaluated.

    The run ends when the metric has reached `target` in `patience` evaluations in a row, or was not
    better than its best value in `early_stop` evaluations in a row. threshold: of the probability
    from which on an image has a label, where it may have several. image_size: of evaluated images; null: as
    data.image_size. flip: average the outputs for each image and its mirror image.
    """

    every_epochs: int = 1
    batch_size: int | Auto = "auto"
    image_size: int | list[int] | None = None
    flip: bool = False
    metric: str = "accuracy"
    target: float | None = None
    patience: int = 1
    threshold: float | Auto = 0.5
    early_stop: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """When checkpoints are committed, how many are kept, and whether an unfinished run resumes."""

    every_steps: int | None = None
    every_minutes: float | None = 10.0
    keep: int = 2
    resume: Literal["auto", "never"] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """What is logged during the training."""

    every_steps: int = 10
    tensorboard: bool = True
    gpu_every_seconds: float | None = 5.0
    trackers: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileConfig:
    """The steps that the profiler records: the first and the last, counted from 1."""

    steps: list[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """The configuration of a run. `RunConfig()` is the quickstart."""

    run: RunSection = field(default_factory=RunSection)
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)
    profile: ProfileConfig = field(default_factory=ProfileConfig)


# data.name -> MODULE:ENTRY in train/data/sources. That entry describes the source. The names are listed
# here because config/ checks them and does not import data/. The first is the quickstart's.
DATA_SOURCES = {
    "synthetic": "synthetic:SYNTHETIC",
    "folder": "folder:FOLDER",
    "table": "table:TABLE",
    "shards": "shards:SHARDS",
    "cifar10": "published:CIFAR10",
    "cifar100": "published:CIFAR100",
    "mnist": "published:MNIST",
    "fashion_mnist": "published:FASHION_MNIST",
    "npz": "arrays:NPZ",
    "tensor": "arrays:TENSOR",
}
FACTORY_SOURCE = "factory:FACTORY"  # package.module:factory

MODELS = (*BUILTIN_MODELS, *TORCHVISION_MODELS)

SCHEDULES = ("cosine", "constant", "linear", "step", "one_cycle")

_FACTORY_PATTERN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def is_factory(name: str) -> bool:
    """Whether `name` is written as package.module:factory."""
    return _FACTORY_PATTERN.fullmatch(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A test of one value, and its description in words. `auto` and null always pass.

    suggest: the value that a user means by one that fails; None if that is not known. find_problem:
    says more exactly what is wrong with a value that does not hold.
    """

    holds: Callable[[Any], bool]
    expected: str
    suggest: Callable[[Any], Any] = lambda value: None
    find_problem: Callable[[Any], augmentations.Problem | None] | None = None


def one_of(*names: str, factory: str | None = None) -> Rule:
    """A rule that allows these names. factory: the form of the user's own code, if it is allowed."""
    expected = f"one of {list_some(names, MAX_NAMES_IN_MESSAGE)}" + (f", or {factory}" if factory else "")
    return Rule(holds=lambda value: value in names or (factory is not None and is_factory(value)), expected=expected)


def at_least(minimum: int) -> Rule:
    return Rule(holds=lambda value: value >= minimum, expected=f"{minimum} or more")


def between(minimum: int, maximum: int) -> Rule:
    return Rule(holds=lambda value: minimum <= value <= maximum, expected=f"from {minimum} to {maximum}")


READERS = tuple(2**power for power in range(11))
MAX_NAMES_IN_MESSAGE = 12  # names in one message
POSITIVE = Rule(holds=lambda value: value > 0, expected="more than 0")
# The limit keeps products of the learning rate finite.
LEARNING_RATE = Rule(holds=lambda value: 0 < value <= 1e6, expected="more than 0, up to 1000000")
FRACTION = Rule(
    holds=lambda value: 0 <= value < 1,
    expected="0 or more, and less than 1",
    suggest=lambda value: round(value / 100, 9) if 1 < value < 100 else None,  # per cent
)


def _expand(path: str) -> str | None:
    """The path as a shell writes it; None if a variable is not set, or for what only a shell can do."""
    expanded, unset = expand_path(path)
    return None if unset or has_variable(expanded) or expanded == path else expanded


def _find_unset_variable(path: str) -> augmentations.Problem | None:
    unset = expand_path(path)[1]
    fix = f"write the path itself: {', '.join(unset)} is not set here"
    return augmentations.Problem(expected=PATH.expected, fix=fix) if unset else None


# A ~ or $SCRATCH that no shell has replaced would become a folder of that name. Nothing replaces it here: each rank
# would do so in its own environment, and two ranks could come to two folders.
PATH = Rule(
    holds=lambda path: path.strip() != "" and not has_variable(path),
    expected="a path without ~ and $: only a shell replaces them (run.output_dir=$SCRATCH/runs on its command line)",
    suggest=_expand,
    find_problem=_find_unset_variable,
)
# Something that is there under the name as it is written may be read.
INPUT_PATH = replace(PATH, holds=lambda path: PATH.holds(path) or os.path.lexists(path))
FOLDER_NAME = replace(
    PATH,
    holds=lambda name: (
        PATH.holds(name) and name == name.strip() and name not in (".", "..") and "/" not in name and len(name) < 200
    ),
    expected="a plain folder name: no slash, no $, not `..`, no space at its ends, shorter than 200 characters",
    suggest=lambda name: _expand(name) or (re.sub(r"[/\s]+", "-", name.strip().strip("./"))[:199] or "my-run"),
)
# config.yaml and logs contain the address, so it must hold no password. File names are appended to it,
# so it cannot have a query string.
URL = Rule(
    holds=lambda url: (
        url.startswith(("http://", "https://", "file:///"))
        and not set(" ?#$") & set(url)
        and "@" not in url.partition("://")[2].partition("/")[0]
    ),
    expected="an address that begins with http://, https:// or file:///, without user, password and query string",
)


def is_regex(text: str) -> bool:
    try:
        return re.compile(text).pattern != ""
    except (re.error, RecursionError, OverflowError):
        return False


MAX_FOLDS = 100
_FOLD_PATTERN = re.compile(r"([1-9]\d{0,2})/([1-9]\d{0,2})")


def parse_fold(fold: str) -> tuple[int, int] | None:
    """The number of the part, counted from 1, and the number of parts, of text such as 2/5; None for other text."""
    match = _FOLD_PATTERN.fullmatch(fold)
    number, parts = map(int, match.groups()) if match else (0, 0)
    return (number, parts) if 1 <= number <= parts and 2 <= parts <= MAX_FOLDS else None


FOLD = Rule(
    holds=lambda fold: parse_fold(fold) is not None,
    expected=f"NUMBER/PARTS, such as 2/5 for the second of five parts (2 to {MAX_FOLDS} parts)",
)
REGEX = Rule(holds=is_regex, expected="a regular expression of Python's")


def are_column_names(names: dict[str, Any]) -> bool:
    """Whether each value is a name, or for `label` a list of names."""
    listed = names.get("label")
    labels = listed if isinstance(listed, list) and listed else [listed]
    others = [name for column, name in names.items() if column != "label"]
    all_names = [*others, *(labels if "label" in names else [])]
    return all(isinstance(name, str) and name.strip() == name != "" for name in all_names)


COLUMN_NAMES = Rule(
    holds=are_column_names,
    expected="the table's own names of the columns path, label, split, group, weight: {label: diagnosis}; for label "
    "also a list of columns that hold 0 or 1",
)
# A task that is not there passes here, so that `registry.refuse_inapplicable_keys` names what to do instead.
TASK_NAMES = Rule(
    holds=lambda name: name in (*TASKS, *UNSUPPORTED_TASKS),
    expected=f"one of {', '.join((AUTO, *TASKS))}",
    suggest=lambda name: next(iter(difflib.get_close_matches(name.lower(), TASKS, 1)), None),
)
FREEZE = Rule(
    holds=lambda value: value in ("none", "backbone") or 1 <= value <= 1_000_000,
    expected="none, backbone, or a number of epochs: 1 or more",
)


def are_class_weights(value: Any) -> bool:
    """Whether it is none, balanced, or numbers in a list or by the names of the classes."""
    weights = [*value.values()] if isinstance(value, dict) else value
    return value in ("none", "balanced") or (
        all(type(weight) in (int, float) and 0 <= weight <= 1e6 for weight in weights) and any(weights)
    )


CLASS_WEIGHTS = Rule(
    holds=are_class_weights,
    expected="none, balanced, or one number for each class, by name or in a list: from 0 to 1000000, not all 0",
)


MIN_IMAGE_SIZE, MAX_IMAGE_SIZE = 8, 4096


def is_image_size(value: int | list[int]) -> bool:
    """Whether it is the side of a square, or [height, width]."""
    sides = [value, value] if isinstance(value, int) else value
    return len(sides) == 2 and all(MIN_IMAGE_SIZE <= side <= MAX_IMAGE_SIZE for side in sides)


IMAGE_SIZE = Rule(
    holds=is_image_size,
    expected=f"from {MIN_IMAGE_SIZE} to {MAX_IMAGE_SIZE}: one number for squares, or [height, width]",
)


AUGMENTATIONS = Rule(
    holds=lambda value: augmentations.find_problem(value) is None,
    expected=augmentations.EXPECTED,
    find_problem=augmentations.find_problem,
)


def is_normalization(value: Any) -> bool:
    """Whether it is {mean: [...], std: [...]} with one number for all channels, or one for each."""
    if not isinstance(value, dict) or set(value) != {"mean", "std"}:
        return False
    mean, std = value["mean"], value["std"]
    if not (isinstance(mean, list) and isinstance(std, list) and 0 < len(mean) == len(std)):
        return False
    numbers = all(type(number) in (int, float) for number in (*mean, *std))
    return numbers and all(0 <= number <= 1 for number in mean) and all(0.001 <= number <= 10 for number in std)


NORMALIZATION = Rule(
    holds=lambda value: is_normalization(value),
    expected="auto, or {mean: [...], std: [...]} of pixels from 0 to 1: one number, or one for each channel; mean from "
    "0 to 1, std from 0.001 to 10",
)


def is_progressive_size(value: Any) -> bool:
    """Whether it is {start: pixels, epochs: number}, or empty."""
    return value == {} or (
        isinstance(value, dict)
        and set(value) == {"start", "epochs"}
        and all(type(number) is int for number in value.values())
        and 8 <= value["start"] <= 4096
        and 1 <= value["epochs"] <= 1_000_000
    )


PROGRESSIVE_SIZE = Rule(
    holds=is_progressive_size,
    expected="{start: PIXELS, epochs: NUMBER}: 8 pixels or more, 1 epoch or more",
)
MAX_PROFILE_STEPS = 200  # a longer timeline needs too much memory to write, and no browser opens it
PROFILE_STEPS = Rule(
    holds=lambda value: len(value) == 2 and 1 <= value[0] <= value[1] < value[0] + MAX_PROFILE_STEPS,
    expected=f"[first, last], counted from 1, both recorded: at most {MAX_PROFILE_STEPS} steps",
)

# Those that are tested with their packages, which have the same names: logging.trackers, a test compares.
TRACKERS = ("mlflow", "tensorboard", "wandb")
TRACKER_LIST = Rule(
    holds=lambda names: len(set(names)) == len(names) and all(name in TRACKERS or is_factory(name) for name in names),
    expected=f"a list of {', '.join(TRACKERS)} or package.module:Class, each once; no other is tried here: name "
    "Accelerate's class, such as accelerate.tracking:AimTracker, or your own",
)

# The names that this version supports. The first of each is the quickstart's.
KNOWN_NAMES: dict[str, tuple[str, ...]] = {
    "data.name": tuple(DATA_SOURCES),
    "model.name": MODELS,
    "optim.name": tuple(OPTIMIZERS),
    "optim.schedule": SCHEDULES,
    "eval.metric": tuple(METRICS),
}
# The keys that also accept the user's own code, or that of an installed package.
FACTORY_KEYS = {
    "data.name": "package.module:factory",
    "model.name": "package.module:factory",
    "optim.name": "package.module:Class",
}

MODEL_NAME = Rule(
    holds=lambda name: name in MODELS or is_factory(name) or models.is_timm_model(name),
    expected=one_of(*MODELS, factory="timm/NAME (timm's models), or package.module:factory").expected,
    suggest=models.suggest_model,
)

RULES: dict[str, Rule] = {key: one_of(*some, factory=FACTORY_KEYS.get(key)) for key, some in KNOWN_NAMES.items()} | {
    "model.name": MODEL_NAME,
    "run.name": FOLDER_NAME,
    "run.output_dir": PATH,
    "run.seed": between(0, 2**32 - 1),  # the range that the generators of numpy and torch both accept
    "launch.procs_per_node": between(1, 1024),
    "launch.timeouts.start": POSITIVE,
    "launch.timeouts.step": POSITIVE,
    "launch.timeouts.save": POSITIVE,
    "launch.timeouts.evaluation": POSITIVE,
    "launch.timeouts.data": POSITIVE,
    "launch.max_restarts": between(0, 1000),
    "data.root": INPUT_PATH,
    "data.images": INPUT_PATH,
    "data.columns": COLUMN_NAMES,
    "data.task": TASK_NAMES,
    "data.image_size": IMAGE_SIZE,
    "data.progressive_size": PROGRESSIVE_SIZE,
    "data.classes": between(2, 1_000_000),
    "data.samples": between(1, 10**9),
    "data.mirror": URL,
    "data.frames": between(2, 4096),
    "data.imbalance": between(1, 1_000_000),
    "data.val_fraction": FRACTION,
    "data.test_fraction": FRACTION,
    "data.fold": FOLD,
    "data.repeats": between(1, 64),
    "data.readers": Rule(holds=lambda number: number in READERS, expected=f"1, 2, 4, ... {READERS[-1]}"),
    "data.stage": PATH,
    "data.group": REGEX,
    "data.crop_ratio": Rule(holds=lambda value: 0.1 <= value <= 1, expected="from 0.1 to 1"),
    "data.normalize": NORMALIZATION,
    "data.augment": AUGMENTATIONS,
    "data.max_bad_images": at_least(0),
    "data.workers": between(0, 1024),
    "data.cache": PATH,
    "model.weights": INPUT_PATH,
    "model.freeze": FREEZE,
    "optim.lr": LEARNING_RATE,
    "optim.base_batch_size": at_least(1),
    "optim.momentum": FRACTION,
    "optim.weight_decay": between(0, 1_000_000),
    "optim.layer_decay": Rule(holds=lambda value: 0 < value <= 1, expected="more than 0, up to 1"),
    "optim.warmup_epochs": between(0, 1_000_000),
    "optim.label_smoothing": FRACTION,
    "optim.class_weights": CLASS_WEIGHTS,
    "optim.target_threshold": FRACTION,
    "train.epochs": between(1, 1_000_000),
    "train.max_steps": at_least(1),
    "train.global_batch_size": between(1, 10**6),
    "train.micro_batch_size": between(1, 10**6),
    "train.clip_grad_norm": POSITIVE,
    "train.compile": Rule(holds=lambda value: value is not True, expected="false, default or reduce-overhead"),
    "train.bucket_cap_mb": between(1, 1024),
    "train.ema_decay": FRACTION,
    "train.ema_every_steps": between(1, 1_000_000),
    "train.check_replicas_every_steps": at_least(1),
    "eval.every_epochs": at_least(1),
    "eval.batch_size": at_least(1),
    "eval.image_size": IMAGE_SIZE,
    "eval.patience": at_least(1),
    "eval.threshold": replace(FRACTION, holds=lambda value: 0 < value < 1, expected="more than 0, and less than 1"),
    "eval.early_stop": at_least(1),
    "checkpoint.every_steps": at_least(1),
    "checkpoint.every_minutes": POSITIVE,
    "checkpoint.keep": at_least(1),
    "log.every_steps": at_least(1),
    "log.gpu_every_seconds": POSITIVE,
    "log.trackers": TRACKER_LIST,
    "profile.steps": PROFILE_STEPS,
}


def rule_violation(key: str, value: Any) -> str | None:
    """The description of what `key` allows, if `value` violates it; otherwise None."""
    if not is_finite(value):
        return "finite numbers"
    if not is_printable(value):
        return "text without control characters"
    rule = RULES.get(key)
    return None if rule is None or value in (None, "auto") or rule.holds(value) else rule.expected


def suggest_value(key: str, value: Any) -> Any:
    """The value that a user means who wrote `value`, which violates the rule of `key`; None if it is not known."""
    rule = RULES.get(key)
    return None if rule is None or rule.holds(value) else rule.suggest(value)


def find_problem(key: str, value: Any) -> augmentations.Problem | None:
    """What is wrong with a value that violates the rule of `key`, if the rule can say it."""
    rule = RULES.get(key)
    return None if rule is None or rule.find_problem is None else rule.find_problem(value)


def is_finite(value: Any) -> bool:
    """Whether no number inside is infinite or NaN; no setting needs them, and JSON cannot hold them."""
    return all(math.isfinite(leaf) for leaf in collect_scalars(value) if isinstance(leaf, float))


def is_printable(value: Any) -> bool:
    """Whether all text inside can be shown on one line and written as UTF-8."""
    return all(leaf.isprintable() for leaf in collect_scalars(value) if isinstance(leaf, str))


def collect_scalars(value: Any) -> list[Any]:
    """All scalars inside lists and dicts, keys included."""
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in (key, *collect_scalars(inner))]
    if isinstance(value, list):
        return [leaf for inner in value for leaf in collect_scalars(inner)]
    return [value]
