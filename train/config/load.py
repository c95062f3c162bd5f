"""The loader reads YAML 1.2 and `section.key=value` overrides strictly into a RunConfig.

PyYAML reads YAML 1.1, where `3e-4` is text, `no` is false, `0777` is 511 and `12:30:00` is 45000.
This loader replaces its scalars with those of YAML 1.2. It executes nothing in a file, and limits
its size, nesting and aliases. An error names the key, its line, the value and the most similar
allowed one. The small recursion over type hints, with errors that know their path, follows dacite.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from errno import EACCES
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

import yaml

from entrypoint import ExitCode, Failure, redact, redact_value, unmounted_path_failure
from train import files
from train.config import schema
from train.config.schema import RunConfig
from train.names import nearest_name

# A configuration has about 60 values, and perhaps a weight for each of ImageNet's 21,841 classes, by name. An anchor
# bomb of 80 aliases would otherwise become 9**8 values.
MAX_YAML_BYTES, MAX_NODES, MAX_ALIASES, MAX_DEPTH = 1024 * 1024, 50_000, 100, 20
YAML_TAG_PREFIX = "tag:yaml.org,2002:"
YAML_SYNTAX_HINT = "spaces (no tabs) indent, `key: value` with a space, text with : # @ { [ in quotes"
KeyPath = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlDocument:
    """The content of a YAML text.

    value: dict, list, str, int, float, bool or None. lines: the line of every key path, counted from 1.
    """

    value: Any
    lines: Mapping[KeyPath, int]


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
    """PyYAML's composer with the scalars of YAML 1.2, and with limits on nesting, nodes and aliases."""

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self.name = name
        self.nodes = self.aliases = self.depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.nodes, self.depth = self.nodes + 1, self.depth + 1
        self.aliases += self.check_event(yaml.AliasEvent)
        if self.nodes > MAX_NODES or self.aliases > MAX_ALIASES or self.depth > MAX_DEPTH:
            raise_yaml_limit(self.get_mark())
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class Yaml12Dumper(yaml.SafeDumper):
    """Quotes every text that YAML 1.1 or 1.2 would read as something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


# The loader drops the scalars of YAML 1.1. The dumper keeps them, so that it quotes what either reads.
Yaml12Loader.yaml_implicit_resolvers = {}
for _name, (_pattern, _first, _) in SCALAR_TYPES.items():
    for _side in (Yaml12Loader, Yaml12Dumper):
        _side.add_implicit_resolver(YAML_TAG_PREFIX + _name, re.compile(f"^(?:{_pattern})$"), [*_first, ""])


_MISSING_CONFIG_FIX = "give the path of a YAML file, or leave --config out to train the quickstart"


def _find_other_suffix(path: Path) -> Path | None:
    """The existing file that is `path` with the suffix .yaml or .yml; None without one."""
    candidates = (path.with_suffix(ending) for ending in (".yaml", ".yml") if path.suffix in ("", ".yaml", ".yml"))
    return next((file for file in candidates if file.is_file()), None)


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
        near = _find_other_suffix(path)
        fix = f"write --config {shlex.quote(str(near))}" if near else f"{files.did_you_mean(path)}{_MISSING_CONFIG_FIX}"
        missing = Failure(
            f"--config {path} does not exist", found=f"looked in {Path.cwd()}", fix=fix, code=ExitCode.NO_INPUT
        )
        raise (unmounted_path_failure("--config", path) or missing) from error
    except OSError as error:
        fix = f"make it readable for this user: chmod +r {path}" if error.errno == EACCES else "correct the path"
        raise Failure(f"--config {path} cannot be read: {error.strerror}", fix=fix, code=ExitCode.USAGE) from error
    except UnicodeDecodeError as error:
        fix = "save it as UTF-8"
        raise Failure(f"--config {path} is not UTF-8 text", fix=fix, code=ExitCode.USAGE) from error


def refuse_empty_file(path: Path) -> None:
    """Refuse a file without a setting, which would train the quickstart: it was not saved, perhaps."""
    if read_yaml_file(path).value is None:
        fix = "write settings into it, such as `data: {name: folder, root: photos}`, or leave --config out"
        raise Failure(f"--config {path} holds no setting", fix=fix, code=ExitCode.USAGE)


def parse_yaml(text: str, name: str) -> YamlDocument:
    """Parse `text`. `name` is the source that errors name, such as the file's path."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_YAML_BYTES:
        fix = "give a configuration, not a data file"
        raise Failure(f"{name} is larger than {MAX_YAML_BYTES // 1024} KiB", fix=fix, code=ExitCode.USAGE)
    try:
        root = Yaml12Loader(text, name).get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        lines = {each.line for each in (error.context_mark, error.problem_mark) if each}
        quoted = next(filter(None, (_quote_text_on_line(text, line) for line in lines)), None)
        fix = quoted or f"mend {_describe_error_lines(mark)}: {YAML_SYNTAX_HINT}"
        if name.startswith("`") and "\n" not in name:  # `model.args.mode=@x` on the command line
            key, _, value = name.strip("`").partition("=")
            fix = f"close brackets and quotes; or for text write {shlex.quote(f'{key}={_quote_yaml(value)}')}"
        raise_yaml_error(f"not valid YAML: {error.problem}", mark, fix=fix)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        what = f"{name}, line {line}: the character {chr(int(error.character))!a} is not allowed in YAML"
        raise Failure(what, fix="remove it, or save the file as UTF-8 text", code=ExitCode.USAGE) from error
    reader = NodeConstructor()
    return YamlDocument(value=None if root is None else reader.value(root, ()), lines=reader.lines)


class NodeConstructor:
    """Converts composed nodes to values. An alias counts as many nodes as it stands for."""

    def __init__(self) -> None:
        self.lines: dict[KeyPath, int] = {}
        self.nodes = 0

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES or len(path) > MAX_DEPTH:
            raise_yaml_limit(node.start_mark)
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            return construct_scalar(node)
        check_tag(node, "map" if isinstance(node, yaml.MappingNode) else "seq")
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        return [self.value(child, (*path, str(index))) for index, child in enumerate(node.value)]

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = construct_scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else self.value(key_node, path)
            if type(key) is int and isinstance(key_node, yaml.ScalarNode):  # a class folder is called so
                key = key_node.value
            if not isinstance(key, str):
                raise_yaml_error("a key must be text", key_node.start_mark, fix="write the key in quotes")
            key_path = (*path, key)
            if key in values:
                what = f"{'.'.join(key_path)} is written twice, first on line {self.lines[key_path]}"
                raise_yaml_error(what, key_node.start_mark, fix="remove one of the two")
            self.lines[key_path] = key_node.start_mark.line + 1
            values[key] = self.value(value_node, key_path)
        return values


def construct_scalar(node: yaml.ScalarNode) -> Any:
    """The value of a scalar. An explicit tag must be `!!str`, or the type that the text has without it."""
    tag_name = node.tag.removeprefix(YAML_TAG_PREFIX)
    if tag_name not in SCALAR_TYPES or not re.fullmatch(SCALAR_TYPES[tag_name][0], node.value):
        check_tag(node, "str")
        return node.value
    return SCALAR_TYPES[tag_name][2](node.value)


def resolve_scalar(text: str) -> Any:
    """The value that YAML 1.2 reads in `text` without quotes."""
    return next((convert(text) for pattern, _, convert in SCALAR_TYPES.values() if re.fullmatch(pattern, text)), text)


def check_tag(node: yaml.Node, tag_name: str) -> None:
    """Refuse an explicit tag unless it is `tag_name`, the one that the node has without it."""
    if "python" in node.tag:
        fix = "write plain values; do not use this file if you did not write it"
        mark = node.start_mark
        tag = node.tag.replace(YAML_TAG_PREFIX, "!!")
        what = f"{describe_mark(mark)}: the tag {tag} would build a Python object; nothing was run"
        raise Failure(what, fix=fix, code=ExitCode.SECURITY)
    if node.tag != YAML_TAG_PREFIX + tag_name:
        raise_yaml_error(
            f"the tag {node.tag.replace(YAML_TAG_PREFIX, '!!')} is not used in this file",
            node.start_mark,
            fix="remove the tag",
        )


def raise_yaml_limit(mark: yaml.Mark) -> NoReturn:
    """Refuse an anchor bomb, deep nesting, or a file that is not a configuration."""
    limits = f"at most {MAX_NODES} values, {MAX_ALIASES} aliases and {MAX_DEPTH} levels"
    raise_yaml_error("more values, aliases or levels than a configuration has", mark, fix=f"keep to {limits}")


def raise_yaml_error(what: str, mark: Any, fix: str | None = None) -> NoReturn:
    """Raise Failure (USAGE) for the text at `mark`."""
    fix = fix or f"mend {f'line {mark.line + 1}' if mark else 'the file'}: {YAML_SYNTAX_HINT}"
    raise Failure(f"{describe_mark(mark)}: {what}", fix=fix, code=ExitCode.USAGE)


def _quote_text_on_line(text: str, number: int) -> str | None:
    """The fix that puts the text of a key on this line in quotes, if that mends the line."""
    lines = text.split("\n")
    match = (
        re.fullmatch(r"([\s-]*(\w+):\s+)([^{].{,500}?)(\s+#.*)?", lines[number].rstrip())
        if number < len(lines)
        else None
    )
    if match is None or match[2] not in {key.rpartition(".")[2] for key in text_keys()}:
        return None
    quoted = f"{match[1]}{_quote_yaml(match[3])}"
    if not _is_yaml([*lines[:number], quoted]) or _is_yaml(lines[: number + 1]):
        return None
    return f"write line {number + 1} as `{quoted.strip()}`"


def _quote_yaml(text: str) -> str:
    return "'" + text.strip("'\"").replace("'", "''") + "'"


def _is_yaml(lines: Sequence[str]) -> bool:
    try:
        yaml.compose("\n".join(lines), Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return False
    return True


def _describe_error_lines(mark: yaml.Mark | None) -> str:
    """The lines that may hold the mistake. The parser notices an unclosed bracket only on a later line."""
    if mark is None:
        return "the file"
    before = ", or the one before it (a bracket, brace or quote that is not closed)" if mark.line else ""
    return f"line {mark.line + 1}{before}"


def describe_mark(mark: Any) -> str:
    """File, line and column of a mark."""
    return f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}" if mark else "the file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One override of the command line.

    keys: its key path. value: as YAML reads it. text: the argument itself.
    """

    keys: KeyPath
    value: Any
    text: str


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
    if left in text_keys():
        return Override(keys=keys, value=_read_text(right.strip(), text), text=text)
    return Override(keys=keys, value=parse_yaml(right, f"`{text}`").value, text=text)


@cache
def text_keys() -> frozenset[str]:
    """The keys whose value is text, which is taken as it is typed: YAML would read `a: b` as a mapping."""
    return frozenset(key for key, hint in key_paths(RunConfig).items() if hint in (str, str | None))


def _read_text(raw: str, override: str) -> str | None:
    """Text as it is, also where YAML would read more in it; in quotes, what is in them."""
    if raw.startswith("!!"):  # a tag, which may ask for a Python object
        return parse_yaml(raw, f"`{override}`").value  # type: ignore[no-any-return]
    if raw[:1] in ("'", '"'):
        with suppress(Failure):
            value = parse_yaml(raw, raw).value
            return value if isinstance(value, str) else raw
    return None if resolve_scalar(raw) is None else raw


def suggest_setting(text: str, following: Sequence[str]) -> str | None:
    """The fix for `train.epochs 5`, `train.epochs: 5`, `train.epochs = 5` and Hydra's `+train.epochs=5`."""
    name, rest = re.fullmatch(r"[+~-]*([\w.-]*)[:=\s]*(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    above, _, leaf = name.replace("-", "_").rpartition(".")
    key = f"{above}.{leaf}" if f"{above}.{leaf}" in key_paths(RunConfig) else nearest_key(leaf, above, ())
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
        key = ".".join(override.keys)
        if before := next((other for other in parsed if drop_key(other.text, key) != other.text), None):
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
    if not equals or not key.startswith(f"{left}."):
        return text
    value = section = parse_override(text).value
    *above, last = key.removeprefix(f"{left}.").split(".")
    for name in above:
        section = section.get(name) if isinstance(section, dict) else None
    if not isinstance(section, dict) or last not in section:
        return text
    del section[last]
    return f"{left}={_flow_yaml(value)}"


def keep_last_overrides(texts: Iterable[str]) -> list[str]:
    """Keep the last value for each key. Callers append their own arguments to the user's."""
    last: list[str] = []
    for text in texts:
        shortened = (drop_key(other, text.partition("=")[0]) for other in last)
        last = [*(other for other in shortened if other is not None), text]
    return last


def suggest_config_option(text: str) -> str | None:
    """The fix for an argument that is the name of a config file; None for any other argument."""
    if text.endswith((".yaml", ".yml")) or os.path.isfile(text):
        return f"write --config {shlex.quote(text)}"
    return None


def overridden_keys(words: Iterable[str], keys: Iterable[str]) -> set[str]:
    """The `keys` that the command line sets, themselves or with their section."""
    overridden = [parse_override(word).keys for word in words]
    return {key for key in keys if any(tuple(key.split("."))[: len(prefix)] == prefix for prefix in overridden)}


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
PLATEAU_FIX: Final = (
    "write optim.schedule: cosine, which needs no validation; eval.early_stop ends a run that no longer improves"
)
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
TWO_NUMBERS: Final = re.compile(r"\(?(\d+)\s*[x,]\s*(\d+)\)?")  # 224x224 or (224, 224), meant as a list


def describe_type(hint: Any) -> str:
    """Describe a type hint: `int | Literal["auto"]` is "a whole number or auto"."""
    arguments = get_args(hint)
    if get_origin(hint) is Literal:
        return arguments[0] if len(arguments) == 1 else f"one of {', '.join(arguments)}"
    if get_origin(hint) is list and get_origin(arguments[0]) is Literal:
        return f"a list of {', '.join(get_args(arguments[0]))}"
    if get_origin(hint) is list and get_origin(arguments[0]) is UnionType:
        members = [f"{describe_type(member).removeprefix('a ')}s" for member in get_args(arguments[0])]
        return f"a list of {' or '.join(members)}"
    if get_origin(hint) is list:
        return f"a list of {describe_type(arguments[0]).removeprefix('a ')}s"
    if get_origin(hint) is dict:
        return "a mapping"
    return TYPE_NAMES[hint] if hint in TYPE_NAMES else " or ".join(describe_type(argument) for argument in arguments)


def suggest_fix(hint: Any, value: Any, default: Any) -> str:
    """The fix for a `value` that does not match the type `hint`."""
    members = {hint} if get_origin(hint) in (dict, list) else {hint, *get_args(hint)}
    if isinstance(value, str):
        if bool in members and value.lower() in YAML_1_1_BOOLS:
            return f"write {YAML_1_1_BOOLS[value.lower()]}: YAML 1.2 reads {value} as text"
        if list[int] in members and (pair := TWO_NUMBERS.fullmatch(value)):
            return f"write [{pair[1]}, {pair[2]}]"
        if members & {int, float}:
            return _suggest_number(value, default, is_integer=float not in members)
        if close := nearest_name(value, [member for member in members if isinstance(member, str)]):
            return f"write {close}"
    if value is None and str in members:
        return f"write text, or leave it out: the default is {format_value(default)}; in YAML, ~ means null"
    if str in members and isinstance(value, (bool, int, float)):
        return f"put it in quotes to make it text: '{format_value(value)}'"
    if isinstance(value, float) and int in members and value.is_integer():
        return f"write {int(value)}, a whole number without point or exponent"
    return f"correct it, or leave it out: the default is {format_value(default)}"


def _suggest_number(text: str, default: Any, *, is_integer: bool) -> str:
    value = resolve_scalar(text)
    if isinstance(value, (int, float)):
        return f"write it without quotes: {text}"
    if DECIMAL_COMMA.fullmatch(text) and not is_integer:
        return f"write {text.replace(',', '.')}, with a point instead of the comma"
    return f"write a plain number, such as {format_value(default)}; in YAML 1.2, 0777, 1_000 and 12:30:00 are text"


def nearest_key(key: str, section: str, siblings: Iterable[str]) -> str | None:
    """The `section.key` that an unknown key most likely means.

    It may be another tool's name, a key of another section, or a misspelled key.
    """
    for name in (f"{section}.{key}", key):
        if name in KEYS_OF_OTHER_TOOLS:
            return KEYS_OF_OTHER_TOOLS[name]
    elsewhere = {path.rpartition(".")[2]: path for path in reversed(key_paths(RunConfig))}
    if key in elsewhere:
        return elsewhere[key]
    if close := nearest_name(key, siblings):
        return f"{section}.{close}".removeprefix(".")
    close = nearest_name(key, elsewhere, 0.75)
    return elsewhere[close] if close else None


def key_paths(section_type: Any, above: str = "") -> dict[str, Any]:
    """The type of every `section.key` below a dataclass."""
    hints: dict[str, Any] = {}
    for name, hint in get_type_hints(section_type).items():
        hints |= key_paths(hint, f"{above}{name}.") if dataclasses.is_dataclass(hint) else {above + name: hint}
    return hints


def format_value(value: Any) -> str:
    """A value as one line of YAML, at most 80 characters. Addresses are redacted before it is cut."""
    line = _flow_yaml(value)
    line = redact(line if line.isprintable() else repr(value))  # YAML does not escape all line breaks
    return line if len(line) <= 80 else f"{line[:77]}..."


def _flow_yaml(value: Any) -> str:
    text = yaml.dump(value, Dumper=Yaml12Dumper, default_flow_style=True, width=float("inf"), allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


NAME_KEY: Final = "name"


def infer_name_from_section(section: str, value: Any) -> str | None:
    """The `section.name` that a user means who writes `model: resnet18`; None if it is not a name."""
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    key = f"{section}.{NAME_KEY}"
    if not isinstance(value, str) or key not in schema.RULES:
        return None
    if schema.rule_violation(key, value) is None:
        return value
    suggested: str | None = None if section == "run" else schema.suggest_value(key, value)
    return suggested or nearest_name(value, schema.KNOWN_NAMES.get(key, ()))


def infer_name_from_key(section: str, key: str, value: Any) -> str | None:
    """The `section.name` that a user means who writes `resnet18:` or `arch: resnet18` in the section."""
    names = schema.KNOWN_NAMES.get(f"{section}.{NAME_KEY}", ())
    candidate = key if value is None or value == {} else value
    right = isinstance(candidate, str) and (
        candidate in names or (f"{section}.{NAME_KEY}" in schema.FACTORY_KEYS and schema.is_factory(candidate))
    )
    return candidate if right else None


def unwrap_value(value: Any, fits: Callable[[Any], bool]) -> Any:
    """The value inside a mapping or list with one entry, if it `fits`; otherwise None."""
    return next((candidate for candidate in _unwrap_candidates(value) if fits(candidate)), None)


def _unwrap_candidates(value: Any) -> Iterator[Any]:
    """Yield x for `{any: x}`, `{x: }` and `[x]`; nothing for several entries, so that none is lost."""
    if isinstance(value, Mapping) and len(value) == 1:
        ((key, only),) = value.items()
        yield key if only in (None, {}) else only
    if isinstance(value, list) and len(value) == 1:
        yield value[0]


TYPE_MISMATCH = object()
# Wrong keys that are reported for a section: a file for another program may have thousands.
MAX_REPORTED_KEYS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLocation:
    """The key path of a value, and where each key was written.

    name: the name of the file. lines: the line of every key path in the file. overrides: those of
    the command line.
    """

    keys: KeyPath
    name: str
    lines: Mapping[KeyPath, int]
    overrides: Mapping[KeyPath, Override]

    def __str__(self) -> str:
        return ".".join(self.keys) or "the configuration"

    def below(self, key: str) -> KeyLocation:
        return dataclasses.replace(self, keys=(*self.keys, key))

    def wants(self, value: Any) -> str:
        """The fix that writes `value` for this key, in the syntax of its source."""
        return (
            f"write {shlex.quote(f'{self}={value if str(self) in text_keys() else format_value(value)}')}"
            if self.source.startswith("`")
            else f"write {self}: {format_value(value)}"
        )

    @property
    def source(self) -> str:
        """The override that set this key, or a key above or below it; otherwise its line in the file."""
        upwards = [self.keys[:length] for length in range(len(self.keys), -1, -1)]
        inside = [
            keys for keys in self.overrides if keys[: len(self.keys)] == self.keys and self.keys not in self.lines
        ]
        if over := next((self.overrides[keys] for keys in [*upwards, *inside] if keys in self.overrides), None):
            return f"`{over.text}` on the command line"
        line = next((self.lines[keys] for keys in upwards if keys in self.lines), 1)
        return f"{self.name}, line {line}"


def load_config(path: str | None, overrides: Sequence[str] = ()) -> RunConfig:
    """Load the configuration of a file (None: the quickstart) and apply the overrides.

    A run that neither names is called as its file.

    Raises:
        Failure: USAGE, NO_INPUT or SECURITY, naming the key, its line, its value and the most similar
            allowed name.
    """
    if path is not None and re.match(r"-$|[a-z][a-z0-9+]+://", path):
        fix = "write it into a file first (curl -o cfg.yaml ADDRESS): each process reads it once more"
        raise Failure(f"--config {path} is no file", fix=fix, code=ExitCode.USAGE)
    document = read_yaml_file(Path(path)) if path is not None else YamlDocument(value=None, lines={})
    config = build_config(document, path or "the quickstart", overrides)
    if path is None or _is_run_named(apply_overrides(document.value, parse_overrides(overrides))):
        return config
    return dataclasses.replace(config, run=dataclasses.replace(config.run, name=_run_name_of_file(path)))


def _is_run_named(value: Any) -> bool:
    section = value.get("run") if isinstance(value, dict) else None
    return isinstance(section, dict) and NAME_KEY in section


def _run_name_of_file(path: str) -> str:
    """The file's name without its suffix, if a run can have this name; otherwise the default."""
    stem = Path(path).stem
    return schema.RunSection().name if schema.rule_violation("run.name", stem) else stem


def build_config(document: YamlDocument, name: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Build the configuration from a parsed document. `name` is the source that errors name."""
    parsed = parse_overrides(overrides)
    at = KeyLocation(
        keys=(), name=name, lines=document.lines, overrides={override.keys: override for override in parsed}
    )
    config: RunConfig = parse_section(RunConfig, apply_overrides(document.value, parsed), at)
    return config


def dump_config(config: RunConfig) -> str:
    """The configuration as YAML that loads back to the same configuration."""
    return yaml.dump(as_mapping(config), Dumper=Yaml12Dumper, sort_keys=False, allow_unicode=True, width=120)


def as_mapping(config: RunConfig) -> dict[str, Any]:
    """The configuration as nested dicts."""
    return dataclasses.asdict(config)


def parse_section(section_type: Any, value: Any, at: KeyLocation) -> Any:
    """Parse a mapping into the dataclass `section_type`; an empty section gives its defaults."""
    value = {} if value is None else value
    if not isinstance(value, dict):
        raise_invalid_value(at, value, "a mapping of keys to values", _section_fix(value, at))
    hints, default = get_type_hints(section_type), section_type()
    taken, refused = {}, []
    for key in value:
        try:
            if key not in hints:
                raise_unknown_key(key, value[key], hints, at)
            taken[key] = parse_value(hints[key], value[key], getattr(default, key), at.below(key))
        except Failure as failure:
            refused.append(failure)
            if len(refused) == MAX_REPORTED_KEYS:
                break
    if refused:  # the first failure lists the others, so that a user fixes them all at once
        first, *others = refused
        first.also = (*first.also, *(line for other in others for line in summarize_failure(other)))
        raise first
    return section_type(**taken)


def summarize_failure(failure: Failure) -> Sequence[str]:
    """The failure in one line, and its lines about other failures."""
    return f"{failure.found or failure.what}, fix: {failure.fix}", *failure.also


def _section_fix(value: Any, at: KeyLocation) -> str:
    """The fix for a plain value instead of a section: its `name`, or `key: value` lines."""
    typed = at.source.startswith("`")
    if name := infer_name_from_section(str(at), value):
        return at.below(NAME_KEY).wants(name) if typed else at.wants({NAME_KEY: name})
    if typed:
        return f"write {at}.KEY=VALUE"
    return f"write `key: value` lines{f' below `{at}:`' if at.keys else ''}"


def parse_value(hint: Any, value: Any, default: Any, at: KeyLocation) -> Any:
    """Parse the value of one key: a section, or a value with the right type and range."""
    if dataclasses.is_dataclass(hint):
        return parse_section(hint, value, at)
    fitted = match_type(hint, value)
    if fitted is TYPE_MISMATCH:
        plain = unwrap_value(
            value,
            lambda candidate: (
                match_type(hint, candidate) is not TYPE_MISMATCH and not schema.rule_violation(str(at), candidate)
            ),
        )
        if schema.RULES.get(str(at)) is schema.REGEX and isinstance(value, list):
            plain = format_value(value)  # `[a-z]` is a list to YAML: at.wants puts it in quotes
        if plain is None and isinstance(value, (bool, int, str)):
            plain = _value_of_other_tool(str(at), value)
        plain = _read_list(hint, value, str(at)) if plain is None else plain
        if (
            isinstance(value, str)
            and value.endswith("%")
            and isinstance(percent := resolve_scalar(value[:-1]), (int, float))
        ):
            plain = schema.suggest_value(str(at), percent)  # a share, where the key is one
        fix = FIXES_FOR_OTHER_TOOLS["pretrained"] if str(at) == "model.weights" else suggest_fix(hint, value, default)
        raise_invalid_value(at, value, describe_type(hint), fix if plain is None else at.wants(plain))
    if expected := schema.rule_violation(str(at), fitted):
        if problem := schema.find_problem(str(at), fitted):
            raise_invalid_value(at, value, problem.expected, problem.fix)
        names, better = schema.KNOWN_NAMES.get(str(at)), schema.suggest_value(str(at), fitted)
        better = _value_of_other_tool(str(at), fitted) if better is None else better
        if str(at) == "optim.schedule" and "plateau" in str(fitted).lower():
            raise_invalid_value(at, value, expected, PLATEAU_FIX)
        fix = suggest_fix(Literal[names] if names else None, value, default) if better is None else at.wants(better)
        raise_invalid_value(at, value, expected, fix)
    return fitted


def _read_list(hint: Any, value: Any, key: str) -> list[Any] | None:
    """The list that is meant by `wandb` or `1, 2`, where the key takes one; None if it takes none of these."""
    members = {hint} if get_origin(hint) is list else {hint, *get_args(hint)}
    items = [resolve_scalar(item.strip()) for item in str(value).split(",")]
    fits = any(get_origin(member) is list and match_type(member, items) is not TYPE_MISMATCH for member in members)
    fits = fits and not isinstance(value, (list, dict)) and not schema.rule_violation(key, items)
    return items if fits and (len(items) > 1 or not members & {int, float, str}) else None


def _value_of_other_tool(key: str, value: Any) -> Any:
    """What `value` is called here, if other tools use it for this key; None if they do not."""
    names = VALUES_OF_OTHER_TOOLS.get(key, {})
    return (
        names.get(value.lower() if isinstance(value, str) else value) if isinstance(value, (bool, int, str)) else None
    )


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


def raise_invalid_value(at: KeyLocation, value: Any, expected: str, fix: str) -> NoReturn:
    """Refuse a value of the wrong type or range."""
    what = f"{at} has a value that cannot be used"
    raise Failure(what, found=describe_entry(at, value), expected=expected, fix=fix, code=ExitCode.USAGE)


def raise_unknown_key(key: str, value: Any, siblings: Mapping[str, Any], at: KeyLocation) -> NoReturn:
    """Refuse an unknown key, naming the most similar allowed one."""
    location = at.below(key if key.isprintable() else format_value(key))
    fix = _unknown_key_fix(key, value, siblings, at, location)
    expected = f"one of {', '.join(siblings)}"
    raise Failure(
        f"unknown key {location}",
        found=describe_entry(location, value),
        expected=expected,
        fix=fix,
        code=ExitCode.USAGE,
    )


def _unknown_key_fix(key: str, value: Any, siblings: Mapping[str, Any], at: KeyLocation, location: KeyLocation) -> str:
    """What to write instead of an unknown key: what another tool calls it, a similar key, or nothing."""
    if key in FIXES_FOR_OTHER_TOOLS:
        return FIXES_FOR_OTHER_TOOLS[key]
    if key == "<<":
        inside = format_value(value)[1:-1] if isinstance(value, dict) else "its keys"
        return f"write {inside} below `{at}:` instead: YAML 1.2 has no `<<`"
    above, _, leaf = f"{'.'.join(at.keys)}.{key}".lstrip(".").rpartition(".")
    if "." in key and (
        full := f"{above}.{leaf}" if f"{above}.{leaf}" in key_paths(RunConfig) else nearest_key(leaf, above, ())
    ):
        above, _, leaf = full.rpartition(".")
        return (
            f"write `{leaf}: {format_value(value)}` below `{above.replace('.', ': ')}:`; a key in a file has no points"
        )
    if key in ARGUMENTS_WRITTEN_AS_KEYS:
        arguments = dataclasses.replace(location, keys=tuple(ARGUMENTS_WRITTEN_AS_KEYS[key].split(".")))
        if location.source.startswith("`"):
            return f"write {arguments.below(key)}={format_value(value)}"
        return f"write {arguments}: {format_value({key: value})}"
    if close := nearest_key(key, ".".join(at.keys), siblings):
        return f"write {close} instead of {location}"
    if name := infer_name_from_key(str(at), key, value):
        return at.below(NAME_KEY).wants(name)
    return f"remove {location}"


def describe_entry(at: KeyLocation, value: Any) -> str:
    """Key, value and source in words."""
    return f"{at}: {redact_value(str(at), format_value(value))} ({at.source})"
