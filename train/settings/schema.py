"""From a YAML file and `section.key=value` overrides to a RunConfig, strictly, and back to YAML.

The shape (a small recursion over type hints, errors that know their path) is dacite's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Final, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

import yaml

from entrypoint import ExitCode, Failure
from train.settings import meant, rules, yaml12
from train.settings.advice import nearest_key, remedy, show, words
from train.settings.config import RunConfig
from train.settings.overrides import Override, merge, parse_all

MISFIT = object()
ENOUGH: Final = 10  # wrong keys of a section that are looked for: a file for another program may have thousands


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    """Where a value belongs (`keys`), and what is known about where each key was written."""

    keys: yaml12.Keys
    name: str
    lines: Mapping[yaml12.Keys, int]
    overrides: Mapping[yaml12.Keys, Override]

    def __str__(self) -> str:
        return ".".join(self.keys) or "the configuration"

    def below(self, key: str) -> At:
        return dataclasses.replace(self, keys=(*self.keys, key))

    def wants(self, value: Any) -> str:
        """How `value` is written here: in the file, or on the command line."""
        return f"write {self}={show(value)}" if self.place.startswith("`") else f"write {self}: {show(value)}"

    @property
    def place(self) -> str:
        """The override that wrote this key, what is around it or inside it; else its line in the file."""
        upwards = [self.keys[:length] for length in range(len(self.keys), -1, -1)]
        inside = [
            keys for keys in self.overrides if keys[: len(self.keys)] == self.keys and self.keys not in self.lines
        ]
        if over := next((self.overrides[keys] for keys in [*upwards, *inside] if keys in self.overrides), None):
            return f"`{over.text}` on the command line"
        line = next((self.lines[keys] for keys in upwards if keys in self.lines), 1)
        return f"{self.name}, line {line}"


def load(path: str | None, overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration of a file (None: the quickstart) with overrides on top.

    Raises:
        Failure: USAGE, NO_INPUT or SECURITY, naming key, place, value and the nearest known name.
    """
    document = yaml12.read_file(Path(path)) if path is not None else yaml12.Document(value=None, lines={})
    return build(document, path or "the quickstart", overrides)


def build(document: yaml12.Document, name: str, overrides: Sequence[str] = ()) -> RunConfig:
    """The same from a mapping that was read already; `name` says in errors where it comes from."""
    parsed = parse_all(overrides)
    at = At(keys=(), name=name, lines=document.lines, overrides={override.keys: override for override in parsed})
    config: RunConfig = section(RunConfig, merge(document.value, parsed), at)
    return config


def dump(config: RunConfig) -> str:
    """YAML that loads back to the same configuration."""
    return yaml.dump(as_mapping(config), Dumper=yaml12.Dumper, sort_keys=False, allow_unicode=True, width=120)


def as_mapping(config: RunConfig) -> dict[str, Any]:
    """Plain dicts of all keys."""
    return dataclasses.asdict(config)


def section(kind: Any, value: Any, at: At) -> Any:
    """A dataclass from a mapping; a section without keys is its defaults."""
    value = {} if value is None else value
    if not isinstance(value, dict):
        wrong(at, value, "a mapping of keys to values", _section_fix(value, at))
    hints, default = get_type_hints(kind), kind()
    taken, refused = {}, []
    for key in value:
        try:
            if key not in hints:
                unknown(key, value[key], hints, at)
            taken[key] = entry(hints[key], value[key], getattr(default, key), at.below(key))
        except Failure as failure:
            refused.append(failure)
            if len(refused) == ENOUGH:
                break
    if refused:  # three typos are not three attempts: the first tells of the others
        first, *others = refused
        first.also = (*first.also, *(line for one in others for line in in_short(one)))
        raise first
    return kind(**taken)


def in_short(failure: Failure) -> Sequence[str]:
    """It in a line, and what it tells of others."""
    return f"{failure.found or failure.what}, fix: {failure.fix}", *failure.also


def _section_fix(value: Any, at: At) -> str:
    """What to write instead of a plain value: the name that it is, or lines."""
    typed = at.place.startswith("`")
    if name := meant.name(str(at), value):
        return at.below(meant.NAME).wants(name) if typed else at.wants({meant.NAME: name})
    if typed:
        return f"write {at}.KEY=VALUE"
    return f"write `key: value` lines{f' below `{at}:`' if at.keys else ''}"


def entry(kind: Any, value: Any, default: Any, at: At) -> Any:
    """One key's value: a section, or a leaf of the right type and range whose feature exists."""
    if dataclasses.is_dataclass(kind):
        return section(kind, value, at)
    if str(at) in rules.NOT_YET and value != default:
        fix = f"leave {at} out, or set it to {show(default)}"
        what = f"{at} is not available in this version"
        raise Failure(what, found=found(at, value), expected=show(default), fix=fix, code=ExitCode.USAGE)
    fitted = fit(kind, as_text(kind, value, at))
    if fitted is MISFIT:
        plain = meant.inside(value, lambda one: fit(kind, one) is not MISFIT and not rules.broken(str(at), one))
        wrong(at, value, words(kind), remedy(kind, value, default) if plain is None else at.wants(plain))
    if expected := rules.broken(str(at), fitted):
        names = rules.NAMES.get(str(at))
        wrong(at, value, expected, remedy(Literal[names] if names else None, value, default))
    return fitted


def as_text(kind: Any, value: Any, at: At) -> Any:
    """On the command line `run.name=7` is text: the shell has taken the quotes that YAML would want."""
    override = at.overrides.get(at.keys)
    wants_text = str in (kind, *get_args(kind))
    return override.plain if override and wants_text and isinstance(value, (str, int, float)) else value


def fit(kind: Any, value: Any) -> Any:
    """`value` as `kind`, or MISFIT. A whole number is also a float; nothing else is converted."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return next((fitted for one in arguments if (fitted := fit(one, value)) is not MISFIT), MISFIT)
    if origin is dict:
        return {} if value is None else value if isinstance(value, dict) else MISFIT
    if origin is list:
        items = [fit(arguments[0], item) for item in value] if isinstance(value, list) else [MISFIT]
        return MISFIT if MISFIT in items else items
    if origin is Literal:
        return value if isinstance(value, str) and value in arguments else MISFIT
    if kind is float and type(value) is int:
        return float(value)
    return value if type(value) is kind else MISFIT


def wrong(at: At, value: Any, expected: str, fix: str) -> NoReturn:
    """Refuse a value of the wrong type or range."""
    what = f"{at} has a value that cannot be used"
    raise Failure(what, found=found(at, value), expected=expected, fix=fix, code=ExitCode.USAGE)


def unknown(key: str, value: Any, known: Mapping[str, Any], at: At) -> NoReturn:
    """Refuse a key that does not exist, naming the nearest one that does."""
    here = at.below(key if key.isprintable() else show(key))
    close = nearest_key(key, ".".join(at.keys), known)
    fix = f"write {close} instead of {here}" if close else f"remove {here}"
    if not close and (name := meant.named(str(at), key, value)):
        fix = at.below(meant.NAME).wants(name)
    expected = f"one of {', '.join(known)}"
    raise Failure(f"unknown key {here}", found=found(here, value), expected=expected, fix=fix, code=ExitCode.USAGE)


def found(at: At, value: Any) -> str:
    """Key, value and place."""
    return f"{at}: {show(value)} ({at.place})"
