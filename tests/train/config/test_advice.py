"""Words and nearest names for what is wrong."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from train.config import load
from train.config.schema import RunConfig


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (int, "a whole number"),
        (int | Literal["auto"], "a whole number or auto"),
        (float | None, "a number or null"),
        (Literal["a", "b"], "one of a, b"),
        (list[Literal["a", "b"]], "a list of a, b"),
        (list[str], "a list of texts"),
        (list[int] | None, "a list of whole numbers or null"),
        (dict[str, Any], "a mapping"),
    ],
)
def test_a_type_has_words(kind: Any, said: str) -> None:
    assert load.describe_type(kind) == said


@pytest.mark.parametrize(
    ("key", "section", "siblings", "nearest"),
    [
        ("lrr", "optim", ("lr", "args"), "optim.lr"),
        ("epochs", "", ("run", "train"), "train.epochs"),
        ("epochs", "optim", ("lr",), "train.epochs"),
        ("batchsize", "train", ("global_batch_size",), "train.global_batch_size"),
        ("zzz", "optim", ("lr",), None),
        ("save", "launch", ("device",), "launch.timeouts.save"),
    ],
)
def test_the_nearest_key_is_found(key: str, section: str, siblings: tuple[str, ...], nearest: str | None) -> None:
    assert load.nearest_key(key, section, siblings) == nearest


def test_a_long_value_is_cut() -> None:
    assert len(load.format_value("x" * 500)) == 80


def test_a_long_address_is_cut_after_its_password_was_taken_out() -> None:
    assert load.format_value(f"ftp://me:{'hunter2' * 20}@host") == "ftp://(not shown)@host"


def test_text_of_several_lines_is_shown_on_one() -> None:
    assert load.format_value("a\nb") == repr("a\nb")


@pytest.mark.parametrize(
    ("kind", "value", "advised"),
    [
        (int, 1e3, "write 1000, a whole number without point or exponent"),
        (int, 2.5, "correct it, or leave it out: the default is 5"),
        (float | None, [], "correct it, or leave it out: the default is 5"),
    ],
)
def test_a_wrong_value_is_not_replaced_by_another_meaning(kind: Any, value: Any, advised: str) -> None:
    assert load.suggest_fix(kind, value, 5) == advised


def test_case_does_not_hide_the_nearest_name() -> None:
    assert load.nearest_name("ResNet18", ["small_cnn", "resnet18"]) == "resnet18"


@pytest.mark.parametrize(("key", "ours"), load.KEYS_OF_OTHER_TOOLS.items(), ids=load.KEYS_OF_OTHER_TOOLS)
def test_another_tools_name_leads_to_a_key_that_exists(key: str, ours: str) -> None:
    assert ours in load.key_paths(RunConfig)
    assert load.nearest_key(key, "train", ("epochs",)) == ours
