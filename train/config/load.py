"""The loader reads YAML 1.2 and `section.key=value` overrides strictly into a RunConfig.

PyYAML reads YAML 1.1, where `3e-4` is text, `no` is false, `0777` is 511 and `12:30:00` is 45000.
This loader replaces its scalars with those of YAML 1.2. It executes nothing in a file, and limits
its size, nesting and values. An error names the key, its line, the value and the most similar
allowed one. The small recursion over type hints, with errors that know their path, follows dacite.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
import os
import re
import shlex
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from errno import EACCES
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import yaml

from entrypoint import ExitCode, Failure, redact, redact_value, unmounted_path_failure
from train import files
from train.config import schema
from train.config.schema import KEYS, Key, RunConfig
from train.names import nearest_name

# A configuration has about 60 values, and perhaps a weight for each of ImageNet's 21,841 classes, by name. An alias
# counts as many values as it stands for: an anchor bomb of 80 aliases would otherwise become 9**8 values.
MAX_YAML_BYTES, MAX_VALUES, MAX_DEPTH = 1024 * 1024, 50_000, 20
YAML_TAG_PREFIX = "tag:yaml.org,2002:"
YAML_SYNTAX_HINT = "spaces (no tabs) indent, `key: value` with a space, text with : # @ { [ in quotes"
KeyPath = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlDocument:
    """The content of a YAML text: dict, list, str, int, float, bool or None."""

    value: Any
    lines: Mapping[KeyPath, int]  # of every key path, counted from 1


# Core schema of YAML 1.2 (section 10.3.2): pattern, first characters, converter. One exception: a number
# with leading zeros stays text, since YAML readers disagree about it.
SCALAR_TYPES: dict[str, tuple[str, str, Callable[[str], Any]]] = {
    "null": (r"~|null|Null|NULL|", "~nN", lambda _: None),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF", lambda text: text.lower() == "true"),
    "int": (r"[-+]?(0|[1-9][0-9]{0,17})|0o[0-7]{1,20}|0x[0-9a-fA-F]{1,15}", "-+0123456789", lambda text: int(text, 0)),
    "float": (
        r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
        lambda text: float(re.sub(r"\.([iInN])", r"\1", text)),
    ),
}


class Yaml12Loader(yaml.SafeLoader):
    """PyYAML's composer with the scalars of YAML 1.2."""


class Yaml12Dumper(yaml.SafeDumper):
    """Quotes every text that YAML 1.1 or 1.2 would read as something else: it keeps the scalars of both."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


# The loader drops the scalars of YAML 1.1.
Yaml12Loader.yaml_implicit_resolvers = {}
for _name, (_pattern, _first, _) in SCALAR_TYPES.items():
    for _side in (Yaml12Loader, Yaml12Dumper):
        _side.add_implicit_resolver(YAML_TAG_PREFIX + _name, re.compile(f"^(?:{_pattern})$"), [*_first, ""])


_MISSING_CONFIG_FIX = "give the path of a YAML file, or leave --config out to train the quickstart"


def read_yaml_file(path: Path) -> YamlDocument:
    """Read the YAML document in a file.

    Raises:
        Failure: NO_INPUT if the file does not exist; USAGE if it is not YAML or too large; SECURITY if
            it contains Python objects.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # before opening it: opening a pipe would wait for a writer
            fix = "give a regular file: each process reads it once more, which a pipe or a folder does not allow"
            raise Failure(f"--config {path} is not a regular file", fix=fix, code=ExitCode.USAGE)
        with path.open("rb") as file:
            return parse_yaml(file.read(MAX_YAML_BYTES + 1).decode("utf-8-sig"), str(path))
    except FileNotFoundError as error:
        missing = Failure(
            f"--config {path} does not exist",
            found=f"looked in {Path.cwd()}",
            fix=f"{files.did_you_mean(path)}{_MISSING_CONFIG_FIX}",
            code=ExitCode.NO_INPUT,
        )
        raise (unmounted_path_failure("--config", path) or missing) from error
    except OSError as error:
        fix = f"make it readable for this user: chmod +r {path}" if error.errno == EACCES else "correct the path"
        raise Failure(f"--config {path} cannot be read: {error.strerror}", fix=fix, code=ExitCode.USAGE) from error
    except UnicodeDecodeError as error:
        raise Failure(f"--config {path} is not UTF-8 text", fix="save it as UTF-8", code=ExitCode.USAGE) from error


def refuse_empty_file(path: Path) -> None:
    """Refuse a file without a setting, which would train the quickstart: it was not saved, perhaps."""
    if read_yaml_file(path).value is None:
        fix = "write settings into it, such as `data: {name: folder, root: photos}`, or leave --config out"
        raise Failure(f"--config {path} holds no setting", fix=fix, code=ExitCode.USAGE)


def parse_yaml(text: str, name: str) -> YamlDocument:
    """Parse `text`. `name` is the source that errors name, such as the file's path."""
    lines: dict[KeyPath, int] = {}
    try:
        if len(text.encode("utf-8", "surrogatepass")) > MAX_YAML_BYTES:
            fix = "give a configuration, not a data file"
            raise Failure(f"{name} is larger than {MAX_YAML_BYTES // 1024} KiB", fix=fix, code=ExitCode.USAGE)
        if text.count(",") + text.count("\n") > MAX_VALUES:  # before PyYAML reads it, which takes a minute for 1 MiB
            raise Failure(f"{name}: {TOO_MANY_VALUES}", fix=TOO_MANY_VALUES_FIX, code=ExitCode.USAGE)
        loader = Yaml12Loader(text)
        loader.name = name
        root = loader.get_single_node()
        return YamlDocument(value=None if root is None else _construct(root, (), lines), lines=lines)
    except yaml.MarkedYAMLError as error:
        raise _syntax_failure(error, name) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        what = f"{name}, line {line}: the character {chr(int(error.character))!a} is not allowed in YAML"
        raise Failure(what, fix="remove it, or save the file as UTF-8 text", code=ExitCode.USAGE) from error
    except RecursionError as error:  # PyYAML's, of hundreds of brackets
        raise Failure(f"{name}: {TOO_MANY_VALUES}", fix=TOO_MANY_VALUES_FIX, code=ExitCode.USAGE) from error


TOO_MANY_VALUES: Final = "more values or levels than a configuration has"
TOO_MANY_VALUES_FIX: Final = f"keep to at most {MAX_VALUES} values and {MAX_DEPTH} levels"


def _construct(node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int]) -> Any:
    """The value of a node at a key path. `lines` gets the line of each path below it."""
    lines.setdefault(path, node.start_mark.line + 1)
    if len(lines) > MAX_VALUES or len(path) > MAX_DEPTH:
        raise _yaml_failure(TOO_MANY_VALUES, node.start_mark, TOO_MANY_VALUES_FIX)
    if isinstance(node, yaml.ScalarNode):
        return _construct_scalar(node)
    _refuse_other_tag(node, "map" if isinstance(node, yaml.MappingNode) else "seq")
    if isinstance(node, yaml.SequenceNode):
        return [_construct(child, (*path, str(index)), lines) for index, child in enumerate(node.value)]
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = _construct(key_node, path, lines)
        key = key_node.value if type(key) is int else key  # a class folder may be called so
        if not isinstance(key, str):
            raise _yaml_failure("a key must be text", key_node.start_mark, "write the key in quotes")
        key_path = (*path, key)
        if key in values:
            what = f"{'.'.join(key_path)} is written twice, first on line {lines[key_path]}"
            raise _yaml_failure(what, key_node.start_mark, "remove one of the two")
        lines[key_path] = key_node.start_mark.line + 1
        values[key] = _construct(value_node, key_path, lines)
    return values


def _construct_scalar(node: yaml.ScalarNode) -> Any:
    """The value of a scalar. An explicit tag must be `!!str`, or the type that the text has without it."""
    pattern, _, convert = SCALAR_TYPES.get(node.tag.removeprefix(YAML_TAG_PREFIX), ("(?!)", "", str))
    if re.fullmatch(pattern, node.value):
        return convert(node.value)
    _refuse_other_tag(node, "str")
    return node.value


def resolve_scalar(text: str) -> Any:
    """The value that YAML 1.2 reads in `text` without quotes."""
    return next((convert(text) for pattern, _, convert in SCALAR_TYPES.values() if re.fullmatch(pattern, text)), text)


def _refuse_other_tag(node: yaml.Node, tag_name: str) -> None:
    """Refuse an explicit tag unless it is `tag_name`, the one that the node has without it."""
    tag = node.tag.replace(YAML_TAG_PREFIX, "!!")
    if "python" in tag:
        what = f"the tag {tag} would build a Python object; nothing was run"
        fix = "write plain values; do not use this file if you did not write it"
        raise _yaml_failure(what, node.start_mark, fix, ExitCode.SECURITY)
    if tag != f"!!{tag_name}":
        raise _yaml_failure(f"the tag {tag} is not used in this file", node.start_mark, "remove the tag")


def _yaml_failure(what: str, mark: yaml.Mark, fix: str, code: ExitCode = ExitCode.USAGE) -> Failure:
    """The failure for the text at `mark`."""
    return Failure(f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}: {what}", fix=fix, code=code)


def _syntax_failure(error: yaml.MarkedYAMLError, name: str) -> Failure:
    """The failure for text that is no YAML."""
    mark = next(mark for mark in (error.problem_mark, error.context_mark) if mark)
    # The parser notices an open bracket only on a later line.
    before = ", or the one before it (a bracket, brace or quote that is not closed)" if mark.line else ""
    fix = f"mend line {mark.line + 1}{before}: {YAML_SYNTAX_HINT}"
    if name.startswith("`") and "\n" not in name:  # `model.args.mode=@x` on the command line
        key, _, value = name.strip("`").partition("=")
        text = value.strip("'\"").replace("'", "''")
        setting = shlex.quote(f"{key}='{text}'")
        fix = f"close brackets and quotes; or for text write {setting}"
    return _yaml_failure(f"not valid YAML: {error.problem}", mark, fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One override of the command line."""

    keys: KeyPath
    value: Any  # as YAML reads it
    text: str  # the argument itself
    paths: Collection[KeyPath]  # of its key, of the sections above it, and of the keys inside its value


def parse_override(text: str, following: Sequence[str] = ()) -> Override:
    """Parse one `section.key=value` argument. following: those after it, for the fix.

    Raises:
        Failure: USAGE, naming the argument.
    """
    left, equals, right = text.partition("=")
    keys = tuple(left.split("."))
    is_split = equals and not right and following and "=" not in following[0]  # `train.epochs= 5`
    if not equals or not all(keys) or left[0] in "+~" or is_split:
        fix = suggest_config_option(text) or suggest_setting(text, following) or "write e.g. optim.lr=0.1"
        raise Failure(f"`{text}` is not section.key=value", fix=fix, code=ExitCode.USAGE)
    if left in TEXT_KEYS:
        document = YamlDocument(value=_read_text(right.strip()), lines={})
    else:
        document = parse_yaml(right, f"`{text}`")
    paths = {*itertools.accumulate(((key,) for key in keys), initial=()), *((*keys, *path) for path in document.lines)}
    return Override(keys=keys, value=document.value, text=text, paths=paths)


# The keys whose value is text, which is taken as it is typed: YAML would read `a: b` as a mapping.
TEXT_KEYS: Final = frozenset(path for path, key in KEYS.items() if key.hint in (str, str | None))


def _read_text(raw: str) -> str | None:
    """Text as it is, also where YAML would read more in it; in quotes, what is in them."""
    if raw[:1] in ("'", '"'):
        with suppress(Failure):
            value = parse_yaml(raw, raw).value
            return value if isinstance(value, str) else raw
    return None if resolve_scalar(raw) is None else raw


def suggest_setting(text: str, following: Sequence[str]) -> str | None:
    """The fix for `train.epochs 5`, `train.epochs: 5`, `train.epochs = 5` and Hydra's `+train.epochs=5`."""
    name, rest = re.fullmatch(r"[+~-]*([\w.-]*)[:=\s]*(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    above, _, leaf = name.replace("-", "_").rpartition(".")
    key = nearest_key(leaf, above, ())
    if key is None:
        return None
    if text.startswith("~"):
        return f"leave it out: {key} has its default without it"
    words = [word for word in (rest, *following) if word.strip("=: ")]
    value = words[0].lstrip("=: ") if words and "=" not in words[0].lstrip("=") else "VALUE"
    return f"write {shlex.quote(f'{key}={value}')}"


def parse_overrides(texts: Sequence[str]) -> list[Override]:
    """Parse all arguments. Setting one key twice is refused, as in a file, also with its section.

    Raises:
        Failure: USAGE, naming the argument, or both arguments.
    """
    parsed: list[Override] = []
    for number, text in enumerate(texts, start=1):
        override = parse_override(text, texts[number:])
        if before := next((other for other in parsed if override.keys in other.paths), None):
            section = min(before.keys, override.keys, key=len)
            raise Failure(
                f"{'.'.join(section)} is written twice on the command line",
                found=f"`{before.text}` and `{override.text}`",
                fix=f"remove `{before.text}` or `{override.text}`",
                code=ExitCode.USAGE,
            )
        parsed.append(override)
    return parsed


def drop_key(text: str, key: str) -> str | None:
    """The argument without the value that it sets for `key`, alone or in its section; None if it sets nothing else."""
    left, equals, _ = text.partition("=")
    if equals and f"{left}.".startswith(f"{key}."):
        return None
    is_below = equals and key.startswith(f"{left}.")
    if not is_below or tuple(key.split(".")) not in (override := parse_override(text)).paths:
        return text
    *above, last = key.removeprefix(f"{left}.").split(".")
    del functools.reduce(operator.getitem, above, override.value)[last]
    return f"{left}={_flow_yaml(override.value)}"


def keep_last_overrides(texts: Iterable[str]) -> list[str]:
    """Keep the last value for each key. Callers append their own arguments to the user's."""
    last: list[str] = []
    for text in texts:
        shortened = (drop_key(other, text.partition("=")[0]) for other in last)
        last = [*(other for other in shortened if other is not None), text]
    return last


def suggest_config_option(text: str) -> str | None:
    """The fix for an argument that is a config file or a folder of images; None for any other argument."""
    if os.path.isdir(text):
        return f"write data.name=folder {shlex.quote(f'data.root={text}')} to train on the images in it"
    is_file = text.endswith((".yaml", ".yml")) or os.path.isfile(text)
    return f"write --config {shlex.quote(text)}" if is_file else None


def overridden_keys(words: Iterable[str], keys: Iterable[str]) -> set[str]:
    """The `keys` that the command line sets, themselves or in their section."""
    paths = {path for word in words for path in parse_override(word).paths}
    return {key for key in keys if tuple(key.split(".")) in paths}


def apply_overrides(value: Any, overrides: Sequence[Override]) -> Any:
    """A copy of `value` with the overrides applied; the last one for a key wins."""
    for override in overrides:
        value = _set_nested(value, override.keys, override)
    return value


def _set_nested(value: Any, keys: KeyPath, override: Override) -> Any:
    if not keys:
        # A section keeps the keys of the file that are not given: they would be lost without a word.
        is_section = len(override.keys) == 1 and isinstance(value, dict) and isinstance(override.value, dict)
        return value | override.value if is_section else override.value
    if value is not None and not isinstance(value, dict):
        above = ".".join(override.keys[: len(override.keys) - len(keys)]) or "the file"
        what = f"`{override.text}` sets a key inside {above}, which is not a mapping"
        current = f"{above}: {redact(repr(value)):.80}"
        raise Failure(what, found=current, fix="remove one of the two", code=ExitCode.USAGE)
    inside = value or {}
    return inside | {keys[0]: _set_nested(inside.get(keys[0]), keys[1:], override)}


TYPE_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    dict: "a mapping",
    NoneType: "null",
    Any: "any value",
}
# Words that YAML 1.1 reads as a bool, and that users still write.
YAML_1_1_BOOLS = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}

# Names that other tools use for our keys, if `nearest_name` would find no key or a wrong one. A name with a section
# counts in this section only.
KEYS_OF_OTHER_TOOLS = {
    "path": "data.root",
    "checkpoint.path": "run.output_dir",
    "checkpoint.dir": "run.output_dir",
    "model.path": "model.weights",
    "run.path": "run.output_dir",
    "run.dir": "run.output_dir",
    "size": "data.image_size",
    "balanced": "data.sampling",
    "class_balanced": "data.sampling",
    "sampler": "data.sampling",
    "checkpoint": "model.weights",
    "load_from": "model.weights",
    "freeze_backbone": "model.freeze",
    "llrd": "optim.layer_decay",
    "criterion": "optim.loss",
    "model_ema": "train.ema_decay",
    "steps": "train.max_steps",
    "num_train_epochs": "train.epochs",
    "patience": "eval.early_stop",
    "every": "eval.every_epochs",
    "eval_every": "eval.every_epochs",
    "val_every": "eval.every_epochs",
    "save_every": "checkpoint.every_steps",
    "save_steps": "checkpoint.every_steps",
    "save_top_k": "checkpoint.keep",
    "save_total_limit": "checkpoint.keep",
    "strategy": "train.parallel",
    "logger": "log.trackers",
    "report_to": "log.trackers",
    "data_path": "data.root",
    "data_dir": "data.root",
    "dataset": "data.name",
    "img_size": "data.image_size",
    "imgsz": "data.image_size",
    "input_size": "data.image_size",
    "resolution": "data.image_size",
    "color_mode": "data.color",
    "in_chans": "data.color",
    "in_channels": "data.color",
    "val_split": "data.val_fraction",
    "validation_split": "data.val_fraction",
    "test_split": "data.test_fraction",
    "kfold": "data.fold",
    "k_fold": "data.fold",
    "oversample": "data.sampling",
    "checkpoint_path": "model.weights",
    "wd": "optim.weight_decay",
    "scheduler": "optim.schedule",
    "warmup": "optim.warmup_epochs",
    "warmup_steps": "optim.warmup_epochs",
    "grad_clip": "train.clip_grad_norm",
    "clip_grad": "train.clip_grad_norm",
    "gradient_clip_val": "train.clip_grad_norm",
    "ema": "train.ema_decay",
    "max_iters": "train.max_steps",
    "early_stopping": "eval.early_stop",
    "early_stopping_patience": "eval.early_stop",
    "gpus": "launch.procs_per_node",
    "num_gpus": "launch.procs_per_node",
    "devices": "launch.procs_per_node",
    "save_dir": "run.output_dir",
    "learning_rate": "optim.lr",
    "batch_size": "train.global_batch_size",
    "per_device_train_batch_size": "train.micro_batch_size",
    "num_workers": "data.workers",
    "num_epochs": "train.epochs",
    "max_epochs": "train.epochs",
    "mixed_precision": "train.precision",
    "max_grad_norm": "train.clip_grad_norm",
    "lr_scheduler": "optim.schedule",
    "optimizer": "optim.name",
    "num_classes": "data.classes",
}
# Arguments of an optimizer, a schedule or a network that users write as keys of ours -> the key that holds them.
ARGUMENTS_WRITTEN_AS_KEYS = {
    "betas": "optim.args",
    "eps": "optim.args",
    "nesterov": "optim.args",
    "amsgrad": "optim.args",
    "dampening": "optim.args",
    "gamma": "optim.schedule_args",
    "step_size": "optim.schedule_args",
    "dropout": "model.args",
    "drop_rate": "model.args",
    "drop_path_rate": "model.args",
    "stochastic_depth_prob": "model.args",
}
# Values of other tools for a key of ours.
VALUES_OF_OTHER_TOOLS: Final[Mapping[str, Mapping[Any, Any]]] = {
    "model.freeze": {True: "backbone", "all": "backbone", False: "none"},
    "eval.metric": dict.fromkeys(("f1", "f1_score", "f1_macro", "macro-f1"), "macro_f1")
    | dict.fromkeys(("acc", "val_acc", "val_accuracy", "top1", "acc1"), "accuracy")
    | {"top5": "top5_accuracy", "acc5": "top5_accuracy", "val_loss": "loss", "mean_average_precision": "map"},
    "optim.schedule": dict.fromkeys(("cosineannealinglr", "cosine_annealing", "cos"), "cosine")
    | dict.fromkeys(("multistep", "multi_step", "multisteplr", "steplr"), "step")
    | {"onecyclelr": "one_cycle", "none": "constant", "poly": "linear", "polynomial": "linear"},
    "train.precision": {16: "fp16", 32: "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16", "no": "fp32",
                        "float32": "fp32", "amp": "auto", "mixed": "auto", "16-mixed": "fp16", "bf16-mixed": "bf16"},
}  # fmt: skip
# What to do -> the keys of other tools that have no single key of ours.
KEYS_BY_FIX: Final[Mapping[str, Sequence[str]]] = {
    "write train.precision: bf16, fp16 or fp32; auto takes bf16 on GPUs that have it": (
        "dtype",
        "amp",
        "use_amp",
        "fp16",
        "bf16",
        "half",
    ),
    "set train.global_batch_size and train.micro_batch_size: the accumulation is global / (micro x ranks), so that it "
    "fits any number of GPUs": (
        *("gradient_accumulation", "grad_accum_steps", "accum_iter", "update_freq", "accumulation"),
        *("accumulation_steps", "grad_accum", "gradient_accumulation_steps", "accumulate_grad_batches"),
    ),
    "write optim.args: {betas: [0.9, 0.999]}, or optim.args.betas=[0.9,0.999] on the command line": (
        "beta1",
        "beta2",
        "adam_beta1",
        "adam_beta2",
    ),
    "write it in data.augment, a list of operations such as [random_resized_crop, {mixup: {alpha: 0.2}}] "
    "(docs/data.md)": (
        *("mixup", "mixup_alpha", "cutmix", "cutmix_alpha", "hflip", "vflip", "color_jitter"),
        *("auto_augment", "randaugment", "random_erasing", "reprob", "transforms"),
    ),
    "write data.normalize: {mean: [...], std: [...]}, one number for each channel": ("mean", "std"),
    "set data.root to the folder above them: its folders train and val (or test) are found": (
        "train_dir",
        "val_dir",
        "test_dir",
        "train_path",
        "val_path",
        "train",
        "val",
    ),
    "set data.name to table, and data.root to the CSV or TSV file (docs/data.md)": (
        "csv",
        "csv_file",
        "labels",
        "label_file",
        "annotations",
    ),
    "leave it out: the network gets the channels of the data": ("channels", "in_chans", "in_channels", "num_channels"),
    "write model.args.drop_path_rate for timm's models, or model.args.stochastic_depth_prob for torchvision's": (
        "drop_path",
        "stochastic_depth",
    ),
    "write log.trackers: [wandb] or [mlflow] (docs/monitoring.md)": ("wandb", "mlflow"),
    "set optim.schedule to step, and optim.schedule_args: {at_epochs: [30, 60], factor: 0.1}": (
        "milestones",
        "lr_steps",
    ),
    "write optim.schedule_args: {end: 0.01}, the share of optim.lr at the end": ("min_lr", "eta_min"),
    "leave it out: one rank is started for each GPU, or as the launcher says": ("distributed",),
    "leave it out, and run `train find-lr` before the training": ("find_lr", "lr_find", "auto_lr_find"),
    "set model.weights to the file of pretrained weights, or to the folder of a run (docs/models.md)": ("pretrained",),
    "set data.color: gray": ("grayscale",),
    "leave it out: training images are shuffled in each epoch, keyed by run.seed": ("shuffle",),
    "leave it out: batches are copied to the GPU from pinned memory": ("pin_memory",),
}
FIXES_FOR_OTHER_TOOLS: Final = {key: fix for fix, keys in KEYS_BY_FIX.items() for key in keys}
DECIMAL_COMMA: Final = re.compile(r"[-+]?\d+,\d+([eE][-+]?\d+)?")


def describe_type(hint: Any) -> str:
    """Describe a type hint: `int | Literal["auto"]` is "a whole number or auto"."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return arguments[0] if len(arguments) == 1 else f"one of {', '.join(arguments)}"
    if origin is list:
        members = map(describe_type, get_args(arguments[0]) or arguments)
        return f"a list of {' or '.join(member.removeprefix('a ') + 's' for member in members)}"
    return TYPE_NAMES.get(origin or hint) or " or ".join(map(describe_type, arguments))


def suggest_fix(hint: Any, value: Any, default: Any) -> str:
    """The fix for a `value` that does not match the type `hint`."""
    members = {hint} if get_origin(hint) in (dict, list) else {hint, *get_args(hint)}
    text = value if isinstance(value, str) else ""
    boolean = YAML_1_1_BOOLS.get(text.lower()) if bool in members else None
    needs_number = isinstance(value, str) and not members.isdisjoint({int, float})
    integer = int(value) if isinstance(value, float) and value.is_integer() and int in members else None
    names = [member for member in members if isinstance(member, str)]
    close = nearest_name(text, [*names, *(("true", "false") if bool in members else ())])
    usual = format_value(default)
    # Whether it is so, and what to do then. The first one counts.
    fixes = (
        (boolean, f"write {boolean}: YAML 1.2 reads {text} as text"),
        (needs_number and isinstance(resolve_scalar(text), (int, float)), f"write it without quotes: {text}"),
        (
            needs_number and float in members and DECIMAL_COMMA.fullmatch(text),
            f"write {text.replace(',', '.')}, with a point instead of the comma",
        ),
        (needs_number, f"write a plain number, such as {usual}; in YAML 1.2, 0777, 1_000 and 12:30:00 are text"),
        (close, f"write {close}"),
        (
            value is None and str in members,
            f"write text, or leave it out: the default is {usual}; in YAML, ~ means null",
        ),
        (
            isinstance(value, (bool, int, float)) and str in members,
            f"put it in quotes to make it text: '{format_value(value)}'",
        ),
        (integer is not None, f"write {integer}, a whole number without point or exponent"),
    )
    return next((fix for is_it, fix in fixes if is_it), f"correct it, or leave it out: the default is {usual}")


def nearest_key(key: str, section: str, siblings: Iterable[str]) -> str | None:
    """The `section.key` that an unknown key most likely means.

    It may be another tool's name, a key of another section, or a misspelled key.
    """
    paths = {path.rpartition(".")[2]: path for path in reversed(KEYS)}
    names = paths | KEYS_OF_OTHER_TOOLS | {path: path for path in KEYS}
    if exact := names.get(f"{section}.{key}") or names.get(key):
        return exact
    if close := nearest_name(key, siblings):
        return f"{section}.{close}".removeprefix(".")
    close = nearest_name(key, paths, 0.75)
    return paths[close] if close else None


def format_value(value: Any) -> str:
    """A value as one line of YAML, at most 80 characters. Addresses are redacted before it is cut."""
    line = _flow_yaml(value)
    line = redact(line if line.isprintable() else repr(value))  # YAML does not escape all line breaks
    return line if len(line) <= 80 else f"{line[:77]}..."


def _flow_yaml(value: Any) -> str:
    text = yaml.dump(value, Dumper=Yaml12Dumper, default_flow_style=True, width=float("inf"), allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


NAME_KEY: Final = "name"
TYPE_MISMATCH = object()
# Wrong keys that are reported for a section: a file for another program may have thousands.
MAX_REPORTED_KEYS: Final = 10


def find_meant_value(path: str, value: Any) -> Any:
    """The value of a key that a user most likely means by one that does not fit; None if it is not known."""
    if (key := KEYS.get(path)) is None:
        return None
    fits = (match_type(key.hint, reading) for reading in _readings(path, key, value) if reading is not None)
    return next((fitted for fitted in fits if fitted is not TYPE_MISMATCH and not key.violation(fitted)), None)


def _readings(path: str, key: Key, value: Any) -> Iterator[Any]:
    """Yield what may be meant by a value, the closest to what is written first."""
    yield value
    if isinstance(value, Mapping) and len(value) == 1:  # {any: x} and {x: }; of several entries none may be lost
        ((name, inside),) = value.items()
        yield name if inside in (None, {}) else inside
    if isinstance(value, list):
        yield format_value(value) if key.rule is schema.REGEX else None  # `[a-z]` is a list to YAML
        yield from value if len(value) == 1 else ()
    if isinstance(value, (bool, int, str)):
        yield VALUES_OF_OTHER_TOOLS.get(path, {}).get(value.lower() if isinstance(value, str) else value)
    if match_type(key.hint, value) is not TYPE_MISMATCH:
        yield None if key.rule.holds(value) else key.rule.suggest(value)
    elif isinstance(value, str) and value.endswith("%"):
        share = resolve_scalar(value[:-1])
        yield key.rule.suggest(share) if isinstance(share, (int, float)) else None
    if isinstance(value, str):
        yield nearest_name(value, key.rule.names)
        yield [resolve_scalar(item) for item in LIST_SEPARATOR.split(value.strip("() "))]


LIST_SEPARATOR: Final = re.compile(r"\s*,\s*|(?<=\d)\s*x\s*(?=\d)")  # `wandb, mlflow` and 224x224, meant as lists


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLocation:
    """The key path of a value, and where each key was written."""

    keys: KeyPath
    name: str  # of the file
    lines: Mapping[KeyPath, int]  # in the file
    overrides: Sequence[Override]

    def __str__(self) -> str:
        return ".".join(self.keys) or "the configuration"

    def below(self, key: str) -> KeyLocation:
        return dataclasses.replace(self, keys=(*self.keys, key))

    def wants(self, value: Any) -> str:
        """The fix that writes `value` for this key, in the syntax of its source."""
        if not self.is_typed:
            return f"write {self}: {format_value(value)}"
        return f"write {shlex.quote(f'{self}={value if str(self) in TEXT_KEYS else format_value(value)}')}"

    @property
    def is_typed(self) -> bool:
        """Whether the key is of the command line."""
        return self.source.startswith("`")

    @property
    def source(self) -> str:
        """The override that set this key, or a key above or below it; otherwise its line in the file."""
        upwards = [self.keys[:length] for length in range(len(self.keys), -1, -1)]
        for over in sorted(self.overrides, key=lambda over: -len(over.keys)):
            if over.keys in upwards or (self.keys in over.paths and self.keys not in self.lines):
                return f"`{over.text}` on the command line"
        line = next((self.lines[keys] for keys in upwards if keys in self.lines), 1)
        return f"{self.name}, line {line}"


def load_config(path: str | None, overrides: Sequence[str] = ()) -> RunConfig:
    """Load the configuration of a file (None: the quickstart) and apply the overrides.

    A run without a name gets that of its file, without the suffix.

    Raises:
        Failure: USAGE, NO_INPUT or SECURITY, naming the key, its line, its value and the most similar
            allowed name.
    """
    if path is None:
        return build_config(YamlDocument(value=None, lines={}), "the quickstart", overrides)
    if re.match(r"-$|[a-z][a-z0-9+]+://", path):
        fix = "write it into a file first (curl -o cfg.yaml ADDRESS): each process reads it once more"
        raise Failure(f"--config {path} is no file", fix=fix, code=ExitCode.USAGE)
    document, name = read_yaml_file(Path(path)), Path(path).stem
    config = build_config(document, path, overrides)
    is_named = ("run", NAME_KEY) in document.lines or overridden_keys(overrides, ["run.name"])
    if is_named or KEYS["run.name"].violation(name):  # no run can be called so
        return config
    return dataclasses.replace(config, run=dataclasses.replace(config.run, name=name))


def build_config(document: YamlDocument, name: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Build the configuration from a parsed document. `name` is the source that errors name."""
    parsed = parse_overrides(overrides)
    at = KeyLocation(keys=(), name=name, lines=document.lines, overrides=parsed)
    config: RunConfig = parse_section(RunConfig, apply_overrides(document.value, parsed), at)
    return config


def dump_config(config: RunConfig) -> str:
    """The configuration as YAML that loads back to the same configuration."""
    values = dataclasses.asdict(config)
    return yaml.dump(values, Dumper=Yaml12Dumper, sort_keys=False, allow_unicode=True, width=120)


def parse_section(section_type: Any, value: Any, at: KeyLocation) -> Any:
    """Parse a mapping into the dataclass `section_type`; an empty section gives its defaults."""
    value = {} if value is None else value
    if not isinstance(value, dict):
        raise _invalid_value_failure(at, value, "a mapping of keys to values", _section_fix(value, at))
    hints, taken, refused = get_type_hints(section_type), {}, list[Failure]()
    for key in value:
        try:
            if key not in hints:
                raise _unknown_key_failure(key, value[key], hints, at)
            is_section = dataclasses.is_dataclass(hints[key])
            below = at.below(key)
            taken[key] = parse_section(hints[key], value[key], below) if is_section else parse_value(value[key], below)
        except Failure as failure:
            refused.append(failure)
            if len(refused) == MAX_REPORTED_KEYS:
                break
    if refused:  # the first failure lists the others, so that a user fixes them all at once
        first, *others = refused
        for other in others:
            first.also = (*first.also, f"{other.found or other.what}, fix: {other.fix}", *other.also)
        raise first
    return section_type(**taken)


def _section_fix(value: Any, at: KeyLocation) -> str:
    """The fix for a plain value instead of a section: its `name`, or `key: value` lines."""
    if name := find_meant_value(f"{at}.{NAME_KEY}", value):
        return at.below(NAME_KEY).wants(name) if at.is_typed else at.wants({NAME_KEY: name})
    if at.is_typed:
        return f"write {at}.KEY=VALUE"
    if isinstance(value, str) and (spaced := _suggest_space(value, ".".join(at.keys))):
        return spaced
    return f"write `key: value` lines{f' below `{at}:`' if at.keys else ''}"


def parse_value(value: Any, at: KeyLocation) -> Any:
    """Parse the value of one key, which has the right type and keeps the key's rule."""
    key = KEYS[str(at)]
    fitted = match_type(key.hint, value)
    is_of_type = fitted is not TYPE_MISMATCH
    expected = key.violation(fitted) if is_of_type else describe_type(key.hint)
    if expected is None:
        return fitted
    if is_of_type and (problem := key.rule.find_problem(fitted)):
        raise _invalid_value_failure(at, value, problem.expected, problem.fix)
    if (meant := find_meant_value(str(at), value)) is not None:
        fix = at.wants(meant)
    elif str(at) == "model.weights" and not is_of_type:
        fix = FIXES_FOR_OTHER_TOOLS["pretrained"]
    else:
        fix = suggest_fix(key.hint, value, key.default)
    raise _invalid_value_failure(at, value, expected, fix)


def match_type(hint: Any, value: Any) -> Any:
    """`value` as the type `hint`, or TYPE_MISMATCH. Only a whole number is converted, to a float."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return next(
            (fitted for member in arguments if (fitted := match_type(member, value)) is not TYPE_MISMATCH),
            TYPE_MISMATCH,
        )
    if origin is dict:
        return {} if value is None else value if isinstance(value, dict) else TYPE_MISMATCH
    if origin is list:
        items = [match_type(arguments[0], item) for item in value] if isinstance(value, list) else [TYPE_MISMATCH]
        return TYPE_MISMATCH if TYPE_MISMATCH in items else items
    if origin is Literal:
        return value if isinstance(value, str) and value in arguments else TYPE_MISMATCH
    if hint is float and type(value) is int:
        return float(value)
    return value if type(value) is hint else TYPE_MISMATCH


def _invalid_value_failure(at: KeyLocation, value: Any, expected: str, fix: str) -> Failure:
    """The failure for a value of the wrong type or range."""
    what = f"{at} has a value that cannot be used"
    return Failure(what, found=describe_entry(at, value), expected=expected, fix=fix, code=ExitCode.USAGE)


def _unknown_key_failure(key: str, value: Any, siblings: Mapping[str, Any], at: KeyLocation) -> Failure:
    """The failure for an unknown key, with the most similar allowed one."""
    location = at.below(key if key.isprintable() else format_value(key))
    return Failure(
        f"unknown key {location}",
        found=describe_entry(location, value),
        expected=f"one of {', '.join(siblings)}",
        fix=_unknown_key_fix(key, value, siblings, at, location),
        code=ExitCode.USAGE,
    )


def _unknown_key_fix(key: str, value: Any, siblings: Mapping[str, Any], at: KeyLocation, location: KeyLocation) -> str:
    """What to write instead of an unknown key: what another tool calls it, a similar key, or nothing."""
    if key in FIXES_FOR_OTHER_TOOLS:
        return FIXES_FOR_OTHER_TOOLS[key]
    if key == "<<":
        inside = format_value(value)[1:-1] if isinstance(value, dict) else "its keys"
        return f"write {inside} below `{at}:` instead: YAML 1.2 has no `<<`"
    section = ".".join(at.keys)
    above, _, leaf = f"{section}.{key}".lstrip(".").rpartition(".")
    if "." in key and (full := nearest_key(leaf, above, ())):
        above, _, leaf = full.rpartition(".")
        return (
            f"write `{leaf}: {format_value(value)}` below `{above.replace('.', ': ')}:`; a key in a file has no points"
        )
    if key in ARGUMENTS_WRITTEN_AS_KEYS:
        arguments = ARGUMENTS_WRITTEN_AS_KEYS[key]
        typed = f"write {arguments}.{key}={format_value(value)}"
        return typed if location.is_typed else f"write {arguments}: {format_value({key: value})}"
    if value is None and (spaced := _suggest_space(key, section)):
        return spaced
    if close := nearest_key(key, section, siblings):
        above, _, leaf = close.rpartition(".")
        if location.is_typed or above in ("", section):
            return f"write {close} instead of {location}"
        if tuple(above.split(".")) in at.lines:
            return f"write `{leaf}: {format_value(value)}` below `{above.replace('.', ': ')}:` instead of {location}"
        inside = functools.reduce(lambda below, name: {name: below}, reversed(close.split(".")), value)
        return f"write `{_flow_yaml(inside)[1:-1]}` instead of {location}"
    name_key = KEYS.get(f"{section}.{NAME_KEY}")
    if name_key and name_key.rule.names and (name := find_meant_value(f"{section}.{NAME_KEY}", {key: value})):
        return at.below(NAME_KEY).wants(name)
    return f"remove {location}"


def _suggest_space(text: str, section: str) -> str | None:
    """The fix for `epochs:20`, which is one text to YAML; None for text that begins with no key of the section."""
    name, colon, value = text.partition(":")
    if not colon or not value or f"{section}.{name}" not in KEYS:
        return None
    return f"write `{name}: {value.split()[0]}`, with a space after the colon"


def describe_entry(at: KeyLocation, value: Any) -> str:
    """Key, value and source in words."""
    return f"{at}: {redact_value(str(at), format_value(value))} ({at.source})"
