"""From `section.key=value` on the command line to values that replace those of the file."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from entrypoint import ExitCode, Failure, redact
from train.settings import yaml12


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One override: its key path, its value as YAML reads it, and the argument as it was given."""

    keys: yaml12.Keys
    value: Any
    text: str

    @property
    def plain(self) -> Any:
        """The value for a key that holds text: as it stands, unless it is in quotes."""
        raw = self.text.partition("=")[2].strip()
        return self.value if raw[:1] in ("'", '"') else raw


def parse(text: str) -> Override:
    """Read one argument.

    Raises:
        Failure: USAGE, naming the argument.
    """
    left, equals, right = text.partition("=")
    keys = tuple(left.split("."))
    if not equals or not all(keys):
        fix = meant_file(text) or "write e.g. optim.lr=0.1"
        raise Failure(f"`{text}` is not section.key=value", fix=fix, code=ExitCode.USAGE)
    return Override(keys=keys, value=yaml12.read_text(right, f"`{text}`").value, text=text)


def parse_all(texts: Sequence[str]) -> list[Override]:
    """Read all arguments. One key twice is refused, as in a file.

    Raises:
        Failure: USAGE, naming the argument, or both.
    """
    parsed: dict[yaml12.Keys, Override] = {}
    for override in map(parse, texts):
        if before := parsed.get(override.keys):
            raise Failure(
                f"{'.'.join(override.keys)} is written twice on the command line",
                found=f"`{before.text}` and `{override.text}`",
                fix=f"remove `{before.text}` or `{override.text}`",
                code=ExitCode.USAGE,
            )
        parsed[override.keys] = override
    return list(parsed.values())


def last(texts: Iterable[str]) -> list[str]:
    """Of the arguments for one key the last alone: for a program that adds its own to those of its user."""
    found: dict[str, str] = {}
    for text in texts:
        key = text.partition("=")[0]
        found.pop(key, None)
        found[key] = text
    return list(found.values())


def meant_file(text: str) -> str | None:
    """What to write instead of a bare argument that is a file, or is called like one; None where it is neither."""
    if text.endswith((".yaml", ".yml")) or os.path.isfile(text):
        return f"write --config {shlex.quote(text)}"
    return None


def typed(words: Iterable[str], keys: Iterable[str]) -> set[str]:
    """Those of `keys` whose value is the command line's: set there, or with the whole section."""
    given = [parse(word).keys for word in words]
    return {key for key in keys if any(tuple(key.split("."))[: len(one)] == one for one in given)}


def merge(value: Any, overrides: Sequence[Override]) -> Any:
    """`value` with the overrides put in, the last one winning; `value` itself is left as it is."""
    for override in overrides:
        value = _put(value, override.keys, override)
    return value


def _put(value: Any, keys: yaml12.Keys, override: Override) -> Any:
    if not keys:
        return override.value
    if value is not None and not isinstance(value, dict):
        above = ".".join(override.keys[: len(override.keys) - len(keys)]) or "the file"
        what = f"`{override.text}` sets a key inside {above}, which is not a mapping"
        found = f"{above}: {redact(repr(value)):.80}"
        raise Failure(what, found=found, fix="remove one of the two", code=ExitCode.USAGE)
    inside = value or {}
    return inside | {keys[0]: _put(inside.get(keys[0]), keys[1:], override)}
