"""From a value of the wrong shape to the one that was meant: a name for a section, or a mapping for a name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from train.settings import names, rules
from train.settings.advice import nearest

NAME: Final = "name"


def name(section: str, value: Any) -> str | None:
    """The `section.name` that somebody meant who wrote `value` instead of the whole section; None where it is none."""
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    key = f"{section}.{NAME}"
    if not isinstance(value, str) or key not in rules.RULES:
        return None
    if rules.broken(key, value) is None:
        return value
    return nearest(value, rules.NAMES.get(key, ()))


def named(section: str, key: str, value: Any) -> str | None:
    """The same of an unknown key: `resnet18:` alone, or `arch: resnet18`. The name is a known one."""
    known = rules.NAMES.get(f"{section}.{NAME}", ())
    wanted = key if value is None or value == {} else value
    right = isinstance(wanted, str) and (
        wanted in known or (f"{section}.{NAME}" in rules.FACTORIES and names.is_factory(wanted))
    )
    return wanted if right else None


def inside(value: Any, fits: Callable[[Any], bool]) -> Any:
    """The one plain value in a mapping or a list that stands in its place; None where there is none."""
    return next((one for one in _candidates(value) if fits(one)), None)


def _candidates(value: Any) -> Iterator[Any]:
    """`{name: x}` and `{x: }`, `{any: x}` and `[x]`. What was written beside it would be lost: then there is none."""
    if isinstance(value, Mapping) and len(value) == 1:
        ((key, only),) = value.items()
        yield key if only in (None, {}) else only
    if isinstance(value, list) and len(value) == 1:
        yield value[0]
