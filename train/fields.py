"""`check_fields` compares the fields of JSON that others may have written with rules, before any of it is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from train.config.schema import Rule
from train.files import shorten_name

MISSING: Final = object()
MAX_INT64: Final = 2**63 - 1


def whole_number(minimum: int, maximum: int = MAX_INT64) -> Rule:
    """A rule that allows whole numbers, and no text of one."""
    return Rule(
        holds=lambda value: type(value) is int and minimum <= value <= maximum,
        expected=f"a whole number from {minimum:,} to {maximum:,}",
    )


def is_number(value: Any) -> bool:
    """Whether the value is a number; JSON's true and false are none."""
    return type(value) in (int, float)


TEXT: Final = Rule(holds=lambda value: isinstance(value, str), expected="text")
TEXTS: Final = Rule(
    holds=lambda value: isinstance(value, list) and len(value) > 0 and all(isinstance(each, str) for each in value),
    expected="a list of texts",
)
FINITE: Final = Rule(holds=lambda value: is_number(value) and abs(value) < 1e300, expected="a finite number")


def check_fields(record: Any, rules: Mapping[str, Rule], within: str = "", *, optional: bool = False) -> None:
    """Compare fields with their rules; others pass.

    rules: by the path of the field, such as input.size. within: what comes before it in an error. optional: fields may
    be missing.

    Raises:
        ValueError: naming the first field that is missing, or not as its rule has it.
    """
    for path, rule in rules.items():
        value = record
        for name in path.split("."):
            value = value.get(name, MISSING) if isinstance(value, dict) else MISSING
        if value is MISSING and optional:
            continue
        if value is MISSING or not rule.holds(value):
            problem = "missing" if value is MISSING else f"{shorten_name(repr(value))}, not {rule.expected}"
            raise ValueError(f"{within}{path} is {problem}")
