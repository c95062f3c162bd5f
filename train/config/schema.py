"""Every key of the configuration is a field that carries its default, its rule, its meaning and whether a resumed run
may differ in it.

`RunConfig()` is the quickstart. `KEYS` lists all keys. The schema also lists the names of data sources, models and
schedules, because the command line checks them without torch.
"""

# ruff: noqa: RUF009 - `key` and `section` make fields
from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, Final, Literal, get_type_hints

from entrypoint import expand_path, has_variable, list_some
from train.config import augmentations, models
from train.config.models import BUILTIN_MODELS, TORCHVISION_MODELS
from train.config.optimizers import OPTIMIZERS, find_optimizer
from train.config.precisions import PRECISIONS
from train.config.strategies import STRATEGIES
from train.metrics import METRICS
from train.tasks import AUTO, TASKS, UNSUPPORTED_TASKS

Auto = Literal["auto"]

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
    """A test of one value, and its description in words."""

    holds: Callable[[Any], bool]
    expected: str
    # The value that a user means by one that fails; None if that is not known.
    suggest: Callable[[Any], Any] = lambda value: None
    # What is wrong with a value that fails, where the rule can say it more exactly than `expected`.
    find_problem: Callable[[Any], augmentations.Problem | None] = lambda value: None
    names: tuple[str, ...] = ()  # those that this version supports; the first is the quickstart's
    factory: str | None = None  # the form of the user's own code, where it is allowed


def one_of(*names: str, factory: str | None = None) -> Rule:
    """A rule that allows these names, and the user's own code in the form `factory`."""
    expected = f"one of {list_some(names, MAX_NAMES_IN_MESSAGE)}" + (f", or {factory}" if factory else "")
    return Rule(
        holds=lambda value: value in names or (factory is not None and is_factory(value)),
        expected=expected,
        names=names,
        factory=factory,
    )


def at_least(minimum: int) -> Rule:
    return Rule(holds=lambda value: value >= minimum, expected=f"{minimum} or more")


def between(minimum: int, maximum: int) -> Rule:
    return Rule(holds=lambda value: minimum <= value <= maximum, expected=f"from {minimum} to {maximum}")


READERS = tuple(2**power for power in range(11))
MAX_NAMES_IN_MESSAGE = 12  # names in one message
ANYTHING = Rule(holds=lambda value: True, expected="")
POSITIVE = Rule(holds=lambda value: value > 0, expected="more than 0")
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
    suggest=lambda name: re.sub(r"[/\s]+", "-", (_expand(name) or name).strip().strip("./"))[:199] or "my-run",
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


REGEX = Rule(holds=is_regex, expected="a regular expression of Python's")


def are_column_names(names: dict[str, Any]) -> bool:
    """Whether each value is a name, or for `label` a list of names."""
    listed = names.get("label")
    labels = listed if isinstance(listed, list) and listed else [listed]
    others = [name for column, name in names.items() if column != "label"]
    all_names = [*others, *(labels if "label" in names else [])]
    return all(isinstance(name, str) and name.strip() == name != "" for name in all_names)


_KNOWN_SCHEDULE = one_of(*SCHEDULES)
SCHEDULE = replace(
    _KNOWN_SCHEDULE,
    find_problem=lambda name: (
        augmentations.Problem(expected=_KNOWN_SCHEDULE.expected, fix=PLATEAU_FIX) if "plateau" in name.lower() else None
    ),
)
PLATEAU_FIX: Final = (
    "write optim.schedule: cosine, which needs no validation; eval.early_stop ends a run that no longer improves"
)
# A task that is not there passes here, so that `registry.refuse_inapplicable_keys` names what to do instead.
TASK_NAMES = Rule(
    holds=lambda name: name in (*TASKS, *UNSUPPORTED_TASKS),
    expected=f"one of {', '.join((AUTO, *TASKS))}",
    suggest=lambda name: next(iter(difflib.get_close_matches(name.lower(), TASKS, 1)), None),
)


def are_class_weights(value: Any) -> bool:
    """Whether it is none, balanced, or numbers in a list or by the names of the classes."""
    weights = [*value.values()] if isinstance(value, dict) else value
    return value in ("none", "balanced") or (
        all(type(weight) in (int, float) and 0 <= weight <= 1e6 for weight in weights) and any(weights)
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


def is_normalization(value: Any) -> bool:
    """Whether it is {mean: [...], std: [...]} with one number for all channels, or one for each."""
    if not isinstance(value, dict) or set(value) != {"mean", "std"}:
        return False
    mean, std = value["mean"], value["std"]
    if not (isinstance(mean, list) and isinstance(std, list) and 0 < len(mean) == len(std)):
        return False
    numbers = all(type(number) in (int, float) for number in (*mean, *std))
    return numbers and all(0 <= number <= 1 for number in mean) and all(0.001 <= number <= 10 for number in std)


def is_progressive_size(value: Any) -> bool:
    """Whether it is {start: pixels, epochs: number}, or empty."""
    return value == {} or (
        isinstance(value, dict)
        and set(value) == {"start", "epochs"}
        and all(type(number) is int for number in value.values())
        and 8 <= value["start"] <= 4096
        and 1 <= value["epochs"] <= 1_000_000
    )


MAX_PROFILE_STEPS = 200  # a longer timeline needs too much memory to write, and no browser opens it

# Those that are tested with their packages, which have the same names: logging.trackers, a test compares.
TRACKERS = ("mlflow", "tensorboard", "wandb")


def key(default: Any, **facts: Any) -> Any:
    """A field of a section. facts: all that is known of the key, by the names of the fields of `Key`."""
    if default in ({}, []):
        return field(default_factory=type(default), metadata=facts)
    return field(default=default, metadata=facts)


def section(section_type: type, **facts: Any) -> Any:
    """A field that holds a section. facts: as of `key`, and true of all its keys."""
    return field(default_factory=section_type, metadata=facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSection:
    """The run's name, folder (`output_dir/name`) and seed."""

    name: str = key(
        "quickstart",
        rule=FOLDER_NAME,
        meaning="the run's folder is output_dir/name; the same name again continues the run. A file without "
        "this key gives its own name to the run: runs/photos for photos.yaml",
        may_differ="what the folder is called",
    )
    output_dir: str = key(
        "runs",
        rule=PATH,
        meaning="relative to the working directory",
        may_differ="where the folder is: scratch file systems are moved and mounted elsewhere",
    )
    # The range that the generators of numpy and torch both accept.
    seed: int = key(
        0,
        rule=between(0, 2**32 - 1),
        meaning="sets the initial weights, the order of samples, augmentation and dropout",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds without a sign of life after which a run counts as hanging."""

    start: float = key(600.0, rule=POSITIVE, meaning="until all ranks have met, and until the end of the first step")
    step: float | Auto = key(
        "auto", rule=POSITIVE, meaning="during a step; auto: 10 times the usual slow step, 30 to 1800"
    )
    save: float = key(600.0, rule=POSITIVE, meaning="while a rank waits for a checkpoint")
    evaluation: float = key(600.0, rule=POSITIVE, meaning="during an evaluation")
    data: float = key(600.0, rule=POSITIVE, meaning="while data is prepared")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig:
    """Which processes to start, if the scheduler does not decide it."""

    device: Literal["auto", "cpu", "cuda"] = key(
        "auto", meaning="cpu, cuda, or auto: GPUs; the CPU if there is no NVIDIA driver"
    )
    procs_per_node: int | Auto = key(
        "auto", rule=between(1, 1024), meaning="processes (ranks) on each node; auto: one per GPU, or one on a CPU"
    )
    max_restarts: int = key(
        0, rule=between(0, 1000), meaning="how often a run that lost a rank or hung starts again; on one machine only"
    )
    timeouts: Timeouts = section(Timeouts)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """The data source and its settings."""

    name: str = key(
        "synthetic",
        rule=one_of(*DATA_SOURCES, factory="package.module:factory"),
        meaning="where the samples come from: docs/data.md; synthetic images are drawn, nothing is downloaded",
    )
    root: str = key(
        "data",
        rule=INPUT_PATH,
        meaning="a folder; for table a file; for npz and tensor either",
        may_differ="where the same images are: another node, another mount",
        elsewhere="warn",
        idle_fix="set data.name to the data that lies there (folder, table, npz, cifar10, ...); {name} reads nothing",
    )
    images: str | None = key(
        None,
        rule=INPUT_PATH,
        meaning="for table: the folder that its paths are relative to; null: the folder of the table",
        may_differ="where the images of a table are",
        elsewhere="refuse",
    )
    columns: dict[str, Any] = key(
        {},
        rule=Rule(
            holds=are_column_names,
            expected="the table's own names of the columns path, label, split, group, weight: {label: diagnosis}; for "
            "label also a list of columns that hold 0 or 1",
        ),
        meaning="for table: its own names of path, label, split, group, weight, such as {label: diagnosis}",
        elsewhere="refuse",
    )
    task: str = key(
        AUTO,
        rule=TASK_NAMES,
        meaning="what the labels are: classification, multi_label, regression; auto: the source says",
    )
    download: bool = key(
        False,
        meaning="true: download a published data set into root, once, and verify its hash",
        may_differ="how the images were fetched",
        is_environment=True,
        elsewhere="leave",
    )
    # config.yaml and logs contain the address, so it must hold no password. File names are appended to it,
    # so it cannot have a query string.
    mirror: str | None = key(
        None,
        rule=Rule(
            holds=lambda url: (
                url.startswith(("http://", "https://", "file:///"))
                and not set(" ?#$") & set(url)
                and "@" not in url.partition("://")[2].partition("/")[0]
            ),
            expected="an address that begins with http://, https:// or file:///, without user, password and query "
            "string",
        ),
        meaning="download from this address instead of the published one",
        may_differ="where they were fetched from",
        elsewhere="leave",
    )
    image_size: int | list[int] = key(
        32,
        rule=IMAGE_SIZE,
        meaning="pixels: a square, or [height, width]; images of another size are fitted (not npz and tensor)",
        keeps_split=True,
    )
    progressive_size: dict[str, Any] = key(
        {},
        rule=Rule(
            holds=is_progressive_size,
            expected="{start: PIXELS, epochs: NUMBER}: 8 pixels or more, 1 epoch or more",
        ),
        meaning="{start: 96, epochs: 20}: images grow from 96 pixels to image_size in the first 20 epochs",
        keeps_split=True,
    )
    frames: int | None = key(
        None,
        rule=between(2, 4096),
        meaning="for synthetic: clips of so many frames; the class is how an outline turns",
        elsewhere="refuse",
    )
    classes: int = key(
        10,
        rule=between(2, 1_000_000),
        meaning="for synthetic; other data tells its number of classes",
        elsewhere="leave",
    )
    samples: int = key(
        10_000,
        rule=between(1, 10**9),
        meaning="for synthetic: images, training and validation together",
        elsewhere="warn",
        idle_fix="leave it out: all samples are used",
    )
    imbalance: float = key(
        1.0,
        rule=between(1, 1_000_000),
        meaning="for synthetic: the most frequent class has so many times the images of the rarest",
        elsewhere="refuse",
    )
    val_fraction: float = key(
        0.2,
        rule=FRACTION,
        meaning="the share of each class for validation, if the data has no validation split",
        is_idle=lambda config: config.data.fold is not None,
        elsewhere="warn",
        idle_fix="leave it out: the published test images are used for validation",
    )
    test_fraction: float = key(
        0.0,
        rule=FRACTION,
        meaning="the share of each class that is measured once, at the end, and chooses nothing",
        elsewhere="refuse",
    )
    fold: str | None = key(
        None,
        rule=Rule(
            holds=lambda fold: parse_fold(fold) is not None,
            expected=f"NUMBER/PARTS, such as 2/5 for the second of five parts (2 to {MAX_FOLDS} parts)",
        ),
        meaning="2/5: validate on the second of five parts, instead of val_fraction (cross-validation)",
        elsewhere="refuse",
    )
    sampling: Literal["uniform", "balanced"] = key(
        "uniform",
        meaning="balanced: an epoch draws each class equally often, and images of rare classes repeatedly",
        keeps_split=True,
    )
    repeats: int = key(
        1,
        rule=between(1, 64),
        meaning="4: a global batch has each of its images 4 times, augmented otherwise (docs/data.md)",
        keeps_split=True,
    )
    group: str | None = key(
        None,
        rule=REGEX,
        meaning="for folder and table: files in whose path it finds the same text stay in one split",
        elsewhere="leave",
    )
    loader: Literal["auto", "memory", "workers"] = key(
        "auto",
        meaning="memory: decode all images once; workers: read them in each epoch; auto: by their size",
        may_differ="who reads the images: randomness belongs to the sample, not to the reader",
        is_environment=True,
    )
    workers: int | Auto = key(
        "auto",
        rule=between(0, 1024),
        meaning="reading processes per rank",
        may_differ="how many read the images",
        is_environment=True,
    )
    readers: int | Auto = key(
        "auto",
        rule=Rule(holds=lambda number: number in READERS, expected=f"1, 2, 4, ... {READERS[-1]}"),
        meaning="for shards: an epoch is cut into so many parts, read side by side; auto: up to 64",
        keeps_split=True,
        elsewhere="refuse",
    )
    stage: str | None = key(
        None,
        rule=PATH,
        meaning="for shards: a folder on a disk of each node, to which they are copied while training runs",
        may_differ="copies of the same shards on a disk of each node",
        is_environment=True,
        elsewhere="refuse",
    )
    cache: str | None = key(
        None,
        rule=PATH,
        meaning="a folder for the decoded pixels of an image folder",
        may_differ="a faster copy of the same images",
        is_environment=True,
        elsewhere="warn",
        idle_fix="leave it out: only image files are decoded into it",
    )
    fit: Literal["auto", "crop", "pad", "stretch"] = key(
        "auto",
        meaning="images of another shape: crop (auto) their central part, pad (a border), or stretch them",
        keeps_split=True,
    )
    color: Literal["rgb", "gray"] = key(
        "rgb", meaning="for image files: rgb, or gray for networks of one channel", keeps_split=True, elsewhere="refuse"
    )
    decode: Literal["auto", "exact", "fast", "gpu"] = key(
        "auto",
        meaning="exact: decode JPEGs in full; fast: at a reduced size; auto: in full for random crops and "
        "published weights; gpu: random crops by the GPU",
        keeps_split=True,
    )
    crop_ratio: float | Auto = key(
        "auto",
        rule=Rule(holds=lambda value: 0.1 <= value <= 1, expected="from 0.1 to 1"),
        meaning="the side of the central square that is cut / the shorter side; auto: as the weights need it, or 1",
        keeps_split=True,
    )
    interpolation: Literal["auto", "bilinear", "bicubic"] = key(
        "auto",
        meaning="how images are scaled: bilinear or bicubic; auto: as the weights need it, or bilinear",
        keeps_split=True,
    )
    normalize: Auto | dict[str, Any] = key(
        "auto",
        rule=Rule(
            holds=is_normalization,
            expected="auto, or {mean: [...], std: [...]} of pixels from 0 to 1: one number, or one for each channel; "
            "mean from 0 to 1, std from 0.001 to 10",
        ),
        meaning="{mean: [0.5], std: [0.25]} of pixels from 0 to 1, or a number for each channel; auto: as the "
        "weights need it, or so",
        keeps_split=True,
    )
    augment: str | list[str | dict[str, Any]] = key(
        "standard",
        rule=Rule(
            holds=lambda value: augmentations.find_problem(value) is None,
            expected=augmentations.EXPECTED,
            find_problem=augmentations.find_problem,
        ),
        meaning="what changes the training images: none, a preset, or a list of operations (docs/data.md)",
        keeps_split=True,
    )
    max_bad_images: int = key(
        0,
        rule=at_least(0),
        meaning="how many broken image files to skip; one more ends the run",
        may_differ="how many broken files are tolerated, not which",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The network, and the weights that it starts from."""

    name: str = key(
        "small_cnn",
        rule=replace(
            one_of(*MODELS, factory="timm/NAME (timm's models), or package.module:factory"),
            holds=lambda name: name in MODELS or is_factory(name) or models.is_timm_model(name),
            suggest=models.suggest_model,
        ),
        meaning="the network, such as resnet18 or timm/resnet18: docs/models.md",
    )
    args: dict[str, Any] = key({}, meaning="arguments of the network's constructor")
    weights: str | None = key(
        None,
        rule=INPUT_PATH,
        meaning="a file, a run folder, or the name of fetched weights (train weights fetch) to start from",
    )
    freeze: Literal["none", "backbone"] | int = key(
        "none",
        rule=Rule(
            holds=lambda value: value in ("none", "backbone") or 1 <= value <= 1_000_000,
            expected="none, backbone, or a number of epochs: 1 or more",
        ),
        meaning="backbone: train only the last layer; or a number of epochs in which the others are frozen",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimConfig:
    """The optimizer, its learning rate schedule, and the loss."""

    name: str = key(
        "sgd", rule=one_of(*OPTIMIZERS, factory="package.module:Class"), meaning="the optimizer: docs/training.md"
    )
    # The limit keeps products of the learning rate finite.
    lr: float | Auto = key(
        "auto",
        rule=Rule(holds=lambda value: 0 < value <= 1e6, expected="more than 0, up to 1000000"),
        meaning="the highest learning rate, for train.global_batch_size; auto: by optimizer, batch, task, weights",
    )
    lr_scaling: Literal["none", "linear", "sqrt"] = key(
        "none", meaning="linear or sqrt: lr is for base_batch_size, and grows with global_batch_size"
    )
    base_batch_size: int = key(
        256,
        rule=at_least(1),
        meaning="for lr_scaling",
        is_idle=lambda config: config.optim.lr_scaling == "none",
        idle_fix="set optim.lr_scaling to linear or sqrt, or leave it out",
    )
    args: dict[str, Any] = key({}, meaning="arguments of the optimizer's constructor")
    momentum: float = key(
        0.9,
        rule=FRACTION,
        meaning="for sgd, and for your own class that takes it",
        is_idle=lambda config: not find_optimizer(config.optim.name).takes_momentum,
        idle_fix="leave it out, or set what this optimizer calls it in optim.args",
    )
    weight_decay: float = key(
        5.0e-4,
        rule=between(0, 1_000_000),
        meaning="part of the gradient with SGD and Adam, apart from it with AdamW",
        is_idle=lambda config: not find_optimizer(config.optim.name).takes_weight_decay,
        idle_fix="leave it out: this optimizer has no weight decay",
    )
    weight_decay_on: Literal["all", "weights"] = key(
        "all", meaning="weights: not biases, norms, class tokens and position embeddings"
    )
    layer_decay: float | None = key(
        None,
        rule=Rule(holds=lambda value: 0 < value <= 1, expected="more than 0, up to 1"),
        meaning="such as 0.75: each layer learns at so many times the rate of the layer after it",
    )
    schedule: str = key("cosine", rule=SCHEDULE, meaning="how the learning rate changes: docs/training.md")
    schedule_args: dict[str, Any] = key({}, meaning="arguments of the schedule")
    warmup_epochs: float = key(
        1.0, rule=between(0, 1_000_000), meaning="epochs in which the learning rate rises; may be a fraction"
    )
    label_smoothing: float = key(
        0.0,
        rule=FRACTION,
        meaning="the share of the target that all classes get; not in evaluations",
        is_idle=lambda config: is_factory(config.optim.loss),
        idle_fix="leave it out: a loss of your own gets the labels as they are",
    )
    class_weights: Literal["none", "balanced"] | list[float] | dict[str, Any] = key(
        "none",
        rule=Rule(
            holds=are_class_weights,
            expected="none, balanced, or one number for each class, by name or in a list: from 0 to 1000000, not all 0",
        ),
        meaning="balanced: rare classes count more; or one number per class, which multiplies the smoothed loss",
    )
    loss: str = key(
        "auto",
        rule=one_of("auto", *(loss for task in TASKS.values() for loss in task.losses), factory="package.module:Class"),
        meaning="bce: binary cross-entropy for classes; for regression: l1, l2 (auto) or huber; or your own",
    )
    target_threshold: float | None = key(
        None,
        rule=FRACTION,
        meaning="for bce, such as 0.2: a mixed image has each label with a larger share",
        is_idle=lambda config: config.optim.loss != "bce",
        idle_fix="set optim.loss to bce, or leave it out",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """The length, batch sizes and numerics of the training. Accumulation is global / (micro x world)."""

    epochs: int = key(
        5,
        rule=between(1, 1_000_000),
        meaning="passes over the training samples",
        may_differ="more epochs continue a run",
    )
    max_steps: int | None = key(
        None,
        rule=at_least(1),
        meaning="stop earlier, after so many optimizer steps",
        may_differ="more steps continue a run",
    )
    global_batch_size: int = key(
        256, rule=between(1, 10**6), meaning="samples per optimizer step, on any number of GPUs"
    )
    micro_batch_size: int | Auto = key(
        "auto",
        rule=between(1, 10**6),
        meaning="samples that a rank computes at once; auto: all that fit on a GPU, about 64 on a CPU",
        may_differ="a part of the global batch: smaller after running out of memory, derived when auto",
    )
    precision: Literal["auto", *PRECISIONS] = key(  # type: ignore[valid-type]  # mypy takes no computed names
        "auto",
        meaning=f"{', '.join(PRECISIONS)}, or auto: bf16 on GPUs that have it, otherwise fp32",
        in_evaluation=True,
    )
    tf32: bool = key(
        False, meaning="true: fp32 on GPUs multiplies faster, with factors rounded to 11 bits", in_evaluation=True
    )
    clip_grad_norm: float | None = key(None, rule=POSITIVE, meaning="the largest norm of the gradient")
    compile: Literal["default", "reduce-overhead"] | bool = key(
        False,
        rule=Rule(holds=lambda value: value is not True, expected="false, default or reduce-overhead"),
        meaning="default or reduce-overhead (CUDA graphs, for short steps): a mode of torch.compile",
        may_differ="the same mathematics with other rounding, as on another number of ranks",
    )
    parallel: Literal[*STRATEGIES] = key(  # type: ignore[valid-type]  # as for precision
        "ddp", meaning="ddp, none (one process), or dp (DataParallel, to compare with)"
    )
    gradient_exchange: Literal["fp32", "bf16"] = key(
        "fp32",
        meaning="bf16: DDP sends half as many bytes, with gradients rounded to 8 bits",
        is_idle=lambda config: config.train.parallel != "ddp",
        idle_fix="set train.parallel to ddp: one process exchanges nothing",
    )
    bucket_cap_mb: int = key(
        25,
        rule=between(1, 1024),
        meaning="MB of gradients that DDP sends at once, during the backward pass",
        may_differ="the size of a gradient exchange: with three or more ranks it changes the rounding",
    )
    sync_batchnorm: bool = key(False, meaning="true: BatchNorm over the micro batches of all ranks")
    activation_checkpointing: bool = key(
        False,
        meaning="true: compute each block twice, in less memory",
        may_differ="the same numbers, computed again instead of kept",
    )
    ema_decay: float | None = key(
        None, rule=FRACTION, meaning="such as 0.999: evaluate a running average of the weights"
    )
    ema_every_steps: int = key(
        1,
        rule=between(1, 1_000_000),
        meaning="update the average after every so many steps",
        is_idle=lambda config: config.train.ema_decay is None,
        idle_fix="set train.ema_decay, or leave it out",
    )
    reproducible: Literal["none", "fast", "bitwise"] = key(
        "fast", meaning="none: fastest on GPUs; bitwise: the same bits on 1, 2, 4, ... ranks (docs/training.md)"
    )
    nan: Literal["stop"] = key("stop", meaning="a loss that is not finite ends the run with exit code 90")
    spike: Literal["none", "warn", "rollback"] = key(
        "warn",
        meaning="if the loss jumps: none, warn, or rollback to the last checkpoint (once)",
        may_differ="what happens if the loss jumps",
    )
    check_replicas_every_steps: int | None = key(
        500,
        rule=at_least(1),
        meaning="compare parameters and optimizer state of all ranks bit by bit, also before each save; null: never",
        may_differ="comparing replicas does not change the training",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """When and how the validation split is evaluated.

    The run ends when the metric has reached `target` in `patience` evaluations in a row, or was not
    better than its best value in `early_stop` evaluations in a row.
    """

    every_epochs: int = key(
        1,
        rule=at_least(1),
        meaning="epochs between two evaluations; one is at the end, too",
        may_differ="evaluating does not change the training",
    )
    batch_size: int | Auto = key(
        "auto",
        rule=at_least(1),
        meaning="images that a rank evaluates at once; auto: 256; the result does not depend on it",
        may_differ="the result of an evaluation does not depend on it",
        in_evaluation=True,
    )
    image_size: int | list[int] | None = key(
        None,
        rule=IMAGE_SIZE,
        meaning="pixels of evaluated images, if other than data.image_size (folder, table, shards)",
        in_evaluation=True,
    )
    flip: bool = key(False, meaning="true: average the outputs for each image and its mirror image", in_evaluation=True)
    metric: str = key(
        "accuracy", rule=one_of(*METRICS), meaning="decides which checkpoint is the best: docs/evaluation.md"
    )
    target: float | None = key(
        None,
        meaning="end the run when metric is as good as this",
        may_differ="each evaluation decides again whether the run ends",
    )
    patience: int = key(
        1,
        rule=at_least(1),
        meaning="how many evaluations in a row must reach target",
        may_differ="each evaluation decides again whether the run ends",
        is_idle=lambda config: config.eval.target is None,
        idle_fix="set eval.target, the value that ends the run once it was held so often, or leave it out",
    )
    threshold: float | Auto = key(
        0.5,
        rule=replace(FRACTION, holds=lambda value: 0 < value < 1, expected="more than 0, and less than 1"),
        meaning="for multi_label: an image has the labels of this probability; auto: the best F1 of each",
        may_differ="from which probability on a label counts changes no weight",
        in_evaluation=True,
    )
    early_stop: int | None = key(
        None,
        rule=at_least(1),
        meaning="end the run after so many evaluations in a row without a better metric",
        may_differ="the evaluations without improvement are counted in any case",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """When checkpoints are committed, how many are kept, and whether an unfinished run resumes."""

    every_steps: int | None = key(None, rule=at_least(1), meaning="also after so many steps")
    every_minutes: float | None = key(10.0, rule=POSITIVE, meaning="null: not by the clock")
    keep: int = key(2, rule=at_least(1), meaning="how many of the newest to keep; the best one stays too")
    resume: Literal["auto", "never"] = key(
        "auto", meaning="auto: continue an unfinished run of this name; never: start over"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """What is logged during the training."""

    every_steps: int = key(10, rule=at_least(1), meaning="steps between two lines of metrics.jsonl")
    tensorboard: bool = key(True, meaning="write TensorBoard's files too")
    gpu_every_seconds: float | None = key(
        5.0, rule=POSITIVE, meaning="how often to measure GPUs and ranks; null: never"
    )
    trackers: list[str] = key(
        [],
        rule=Rule(
            holds=lambda names: (
                len(set(names)) == len(names) and all(name in TRACKERS or is_factory(name) for name in names)
            ),
            expected=f"a list of {', '.join(TRACKERS)} or package.module:Class, each once; no other is tried here: "
            "name Accelerate's class, such as accelerate.tracking:AimTracker, or your own",
        ),
        meaning="such as [wandb, mlflow]: send the values there too (docs/monitoring.md)",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileConfig:
    """The steps that the profiler records: the first and the last, counted from 1."""

    steps: list[int] | None = key(
        None,
        rule=Rule(
            holds=lambda value: len(value) == 2 and 1 <= value[0] <= value[1] < value[0] + MAX_PROFILE_STEPS,
            expected=f"[first, last], counted from 1, both recorded: at most {MAX_PROFILE_STEPS} steps",
        ),
        meaning="[10, 20]: rank 0 records these steps (docs/profiling.md)",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """The configuration of a run. `RunConfig()` is the quickstart."""

    run: RunSection = section(RunSection)
    launch: LaunchConfig = section(
        LaunchConfig,
        may_differ="which processes compute: the global batch and all randomness do not depend on them",
        is_environment=True,
        in_evaluation=True,
    )
    data: DataConfig = section(DataConfig, in_evaluation=True)
    model: ModelConfig = section(ModelConfig)
    optim: OptimConfig = section(OptimConfig)
    train: TrainConfig = section(TrainConfig)
    eval: EvalConfig = section(EvalConfig)
    checkpoint: CheckpointConfig = section(
        CheckpointConfig, may_differ="how often the run is saved", is_environment=True
    )
    log: LogConfig = section(LogConfig, may_differ="what is written about it", is_environment=True)
    profile: ProfileConfig = section(ProfileConfig, may_differ="what is measured about it", is_environment=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key of the configuration: its type, its default, and what its field says of it."""

    hint: Any
    default: Any
    # What docs/reference.md and configs/quickstart.yaml say of it.
    meaning: str
    # Which values of its type are allowed; `auto` and null always are.
    rule: Rule = ANYTHING
    # Why a resumed run may have another value than before; None: it would be another training.
    may_differ: str | None = None
    # Whether a new run with another value has the same validation images, so that weights of this run have not seen
    # them. No key outside the section data draws the split.
    keeps_split: bool = False
    # Whether it says where and how a run is computed, not what it learns: `train report` compares no such key.
    is_environment: bool = False
    # Whether an evaluation may change it; all else comes from the checkpoint.
    in_evaluation: bool = False
    # What a start does with it where data.name is a source whose `DataSource.keys` do not hold it: it refuses the key,
    # or warns of it, or leaves it to the code that reads it. None: it acts on every source.
    elsewhere: Literal["refuse", "warn", "leave"] | None = None
    # Whether it has no effect in a config, whatever the source.
    is_idle: Callable[[RunConfig], bool] = lambda config: False
    # What to do about a key that has no effect: a start warns with it.
    idle_fix: str | None = None

    def violation(self, value: Any) -> str | None:
        """The description of what is allowed, if `value` violates it; otherwise None."""
        scalars = _collect_scalars(value)
        if not all(math.isfinite(scalar) for scalar in scalars if isinstance(scalar, float)):
            return "finite numbers"  # no setting needs others, and JSON cannot hold them
        if not all(scalar.isprintable() for scalar in scalars if isinstance(scalar, str)):
            return "text without control characters"  # it is shown on one line, and written as UTF-8
        return None if value in (None, "auto") or self.rule.holds(value) else self.rule.expected


def _collect_scalars(value: Any) -> list[Any]:
    """All scalars inside lists and dicts, keys included."""
    inside = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else None
    return [value] if inside is None else [scalar for each in inside for scalar in _collect_scalars(each)]


def _collect_keys(
    section_type: Any, above: str = "", facts: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Key]:
    """The keys of a section and those below it, by their paths. facts: what the section above says of all."""
    keys, hints, defaults = dict[str, Key](), get_type_hints(section_type), section_type()
    for each in fields(section_type):
        path, hint, own = f"{above}{each.name}", hints[each.name], {**facts, **each.metadata}
        if is_dataclass(hint):
            keys |= _collect_keys(hint, f"{path}.", own)
        else:
            keys[path] = Key(hint=hint, default=getattr(defaults, each.name), **own)
    return keys


# All keys by `section.key`, in the order of the code.
KEYS: Final = _collect_keys(RunConfig)


def key_patterns(fact: str) -> tuple[str, ...]:
    """Patterns, as of fnmatch, of the keys whose field says this: `section.*` where the section says it of all.

    So they also match the keys of such a section that another version has.
    """
    sections = [each.name for each in fields(RunConfig) if each.metadata.get(fact)]
    keys = [path for path, key in KEYS.items() if getattr(key, fact) and path.partition(".")[0] not in sections]
    return (*(f"{name}.*" for name in sections), *keys)


def with_keys_of(config: RunConfig, other: RunConfig, fact: str) -> RunConfig:
    """`config` with the values that `other` has for the keys whose field, or section, says this."""
    sections = {}
    for section_field in fields(RunConfig):
        kept, taken = getattr(config, section_field.name), getattr(other, section_field.name)
        values = {each.name: getattr(taken, each.name) for each in fields(taken) if each.metadata.get(fact)}
        sections[section_field.name] = taken if section_field.metadata.get(fact) else replace(kept, **values)
    return RunConfig(**sections)


def key_says(path: str, fact: str) -> bool:
    """Whether the field of this key, or that of its section, says this. The key may be one of another version."""
    return any(fnmatchcase(path, pattern) for pattern in key_patterns(fact))
