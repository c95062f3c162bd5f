"""What was meant by a value of the wrong shape."""

from __future__ import annotations

from typing import Any

import pytest

from train.config import load


@pytest.mark.parametrize(
    ("section", "value", "name"),
    [
        ("model", "resnet18", "resnet18"),
        ("model", "resnet_18", "resnet18"),
        ("model", ["resnet18"], "resnet18"),
        ("model", "mine:make", "mine:make"),
        ("run", "photos", "photos"),
        ("run", "../photos", None),
        ("data", "photos", None),
        ("eval", "accuracy", None),
        ("model", 3, None),
        ("model", ["resnet18", "resnet50"], None),
    ],
)
def test_a_plain_section_may_mean_a_name(section: str, value: Any, name: str | None) -> None:
    assert load.infer_name_from_section(section, value) == name


@pytest.mark.parametrize(
    ("key", "value", "name"),
    [
        ("resnet18", None, "resnet18"),
        ("resnet18", {}, "resnet18"),
        ("arch", "resnet18", "resnet18"),
        ("arch", "mine:make", "mine:make"),
        ("arch", "unheard", None),
        ("resnet18", {"width": 3}, None),
    ],
)
def test_an_unknown_key_may_mean_one_that_is_known(key: str, value: Any, name: str | None) -> None:
    assert load.infer_name_from_key("model", key, value) == name


@pytest.mark.parametrize(
    ("value", "plain"),
    [({"n": 3}, 3), ([3], 3), ({3: None}, 3), ({"n": 3, "m": 4}, None), ({"n": "x"}, None), ([], None)],
)
def test_the_one_plain_value_inside_is_found_where_it_fits(value: Any, plain: int | None) -> None:
    assert load.unwrap_value(value, lambda one: type(one) is int) == plain
