"""From a wrong value to the words that help: what was expected, and the nearest thing that would be right."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import yaml

from entrypoint import redact
from train.settings import yaml12
from train.settings.config import RunConfig

WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    NoneType: "null",
    Any: "any value",
}
# What YAML 1.1 and old habits write for a bool.
BOOLS = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}

# What other tools call our keys, where no likeness leads to them, or to one that means something else.
ELSEWHERE = {
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


def words(kind: Any) -> str:
    """A type in words: `int | Literal["auto"]` is "a whole number or auto"."""
    arguments = get_args(kind)
    if get_origin(kind) is Literal:
        return arguments[0] if len(arguments) == 1 else f"one of {', '.join(arguments)}"
    if get_origin(kind) is list and get_origin(arguments[0]) is Literal:
        return f"a list of {', '.join(get_args(arguments[0]))}"
    if get_origin(kind) is list:
        return f"a list of {words(arguments[0]).removeprefix('a ')}s"
    if get_origin(kind) is dict:
        return "a mapping"
    return WORDS[kind] if kind in WORDS else " or ".join(words(one) for one in arguments)


def remedy(kind: Any, value: Any, default: Any) -> str:
    """What to write instead of `value`."""
    members = {kind} if get_origin(kind) in (dict, list) else {kind, *get_args(kind)}
    if isinstance(value, str):
        if bool in members and value.lower() in BOOLS:
            return f"write {BOOLS[value.lower()]}: YAML 1.2 reads {value} as text"
        if members & {int, float}:
            return _number(value, default)
        if close := nearest(value, [one for one in members if isinstance(one, str)]):
            return f"write {close}"
    if str in members and isinstance(value, (bool, int, float)):
        return f"put it in quotes to make it text: '{show(value)}'"
    if isinstance(value, float) and int in members and value.is_integer():
        return f"write {int(value)}, a whole number without point or exponent"
    return f"correct it, or leave it out: the default is {show(default)}"


def _number(text: str, default: Any) -> str:
    value = yaml12.plain(text)
    if isinstance(value, (int, float)):
        return f"write it without quotes: {text}"
    return f"write a plain number, such as {show(default)}; in YAML 1.2, 0777, 1_000 and 12:30:00 are text"


def nearest(name: str, names: Iterable[str], likeness: float = 0.6) -> str | None:
    """The most similar of `names`, if any is as similar as that."""
    lowered = {known.lower(): known for known in names}
    return next((lowered[close] for close in difflib.get_close_matches(name.lower(), lowered, 1, likeness)), None)


def nearest_key(key: str, section: str, siblings: Iterable[str]) -> str | None:
    """The known `section.key` that an unknown key most likely means: by another tool's name, here, or elsewhere."""
    if key in ELSEWHERE:
        return ELSEWHERE[key]
    elsewhere = {path.rpartition(".")[2]: path for path in reversed(key_paths(RunConfig))}
    if key in elsewhere:
        return elsewhere[key]
    if close := nearest(key, siblings):
        return f"{section}.{close}".removeprefix(".")
    close = nearest(key, elsewhere, 0.75)
    return elsewhere[close] if close else None


def key_paths(kind: Any, above: str = "") -> list[str]:
    """Every `section.key` below a dataclass."""
    paths = []
    for name, hint in get_type_hints(kind).items():
        paths += key_paths(hint, f"{above}{name}.") if dataclasses.is_dataclass(hint) else [above + name]
    return paths


def show(value: Any) -> str:
    """A value as one short line of YAML, whole addresses redacted before it is cut."""
    text = yaml.dump(value, Dumper=yaml12.Dumper, default_flow_style=True, width=10_000, allow_unicode=True)
    line = text.removesuffix("\n").removesuffix("\n...")
    line = redact(line if line.isprintable() else repr(value))  # YAML writes line breaks as they are
    return line if len(line) <= 80 else f"{line[:77]}..."
