"""Ranges, names and features that are not there yet."""

from __future__ import annotations

from typing import Any

import pytest

from train.config import load, schema
from train.config.schema import RunConfig


def test_every_default_keeps_its_own_rules() -> None:
    for section, values in load.as_mapping(RunConfig()).items():
        for key, value in values.items():
            assert schema.rule_violation(f"{section}.{key}", value) is None, f"{section}.{key}"


def test_every_number_has_a_rule() -> None:
    keys = {f"{s}.{k}": v for s, values in load.as_mapping(RunConfig()).items() for k, v in values.items()}
    numbers = {key for key, value in keys.items() if type(value) in (int, float)}
    assert numbers <= set(schema.RULES)


def test_the_first_known_name_is_the_default() -> None:
    mapping = load.as_mapping(RunConfig())
    for path, names in schema.KNOWN_NAMES.items():
        section, key = path.split(".")
        assert mapping[section][key] == names[0]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", " a", "a ", "x" * 200, "a\nb", "a\0", "a\udcff"])
def test_a_run_name_that_is_no_plain_folder_is_refused(name: str) -> None:
    assert schema.rule_violation("run.name", name)


@pytest.mark.parametrize("name", ["a", "a b", "ü", "run-1_2.3", "...", "-x"])
def test_a_run_name_that_is_a_plain_folder_is_accepted(name: str) -> None:
    assert schema.rule_violation("run.name", name) is None


@pytest.mark.parametrize(
    ("key", "low", "high"),
    [("data.val_fraction", 0.0, 1.0), ("optim.momentum", 0.0, 1.0), ("optim.label_smoothing", 0.0, 1.0)],
)
def test_fractions_include_nothing_and_exclude_everything(key: str, low: float, high: float) -> None:
    assert schema.rule_violation(key, low) is None
    assert schema.rule_violation(key, high)


@pytest.mark.parametrize("value", ["auto", None])
def test_what_is_left_open_breaks_no_rule(value: Any) -> None:
    assert schema.rule_violation("train.micro_batch_size", value) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("optim.lr", 1e308),
        ("optim.weight_decay", 1e308),
        ("optim.warmup_epochs", 1e308),
        ("optim.class_weights", [1e308]),
    ],
)
def test_numbers_that_would_overflow_are_refused(key: str, value: Any) -> None:
    assert schema.rule_violation(key, value)


def test_an_empty_list_of_class_weights_is_refused() -> None:
    assert schema.rule_violation("optim.class_weights", [])


@pytest.mark.parametrize("text", ["", "(", "[a", "a{2,1}", "a{99999999999}"])
def test_a_pattern_that_python_does_not_compile_is_refused(text: str) -> None:
    assert schema.rule_violation("data.group", text) is not None


@pytest.mark.parametrize("text", [r"video_(\d+)", r"(\w+)/(.*)_\d{4}", "(a|b)c", r"(?:\d{4}_){12}", "^[^/]+/([^_]+)_"])
def test_a_pattern_of_python_is_taken(text: str) -> None:
    assert schema.rule_violation("data.group", text) is None


@pytest.mark.parametrize("url", ["http://host/a@b", "https://host:8443", "file:///srv/a@b"])
def test_a_folder_on_a_server_is_a_mirror(url: str) -> None:
    assert schema.rule_violation("data.mirror", url) is None


@pytest.mark.parametrize("url", ["https://me:pw@host/x", "https://me@host", "https://host/x?token=y", "http://host#x"])
def test_an_address_with_a_secret_is_no_mirror(url: str) -> None:
    assert schema.rule_violation("data.mirror", url)


@pytest.mark.parametrize("words", ["none", "cutout", ["standard", "cutout"], ["translate", "mirror", "cutout"]])
def test_ways_to_augment_that_go_together_are_taken(words: Any) -> None:
    assert schema.rule_violation("data.augment", words) is None


@pytest.mark.parametrize("words", [[], ["none", "cutout"], ["standard", "mirror"], ["standard", "translate"]])
def test_ways_to_augment_that_contradict_each_other_are_refused(words: Any) -> None:
    assert schema.rule_violation("data.augment", words)


@pytest.mark.parametrize("steps", [[], [10], [1, 2, 3], [20, 10], [0, 5], [-5, 5], [1, 201]])
def test_steps_that_cannot_be_profiled_are_refused(steps: list[int]) -> None:
    assert schema.rule_violation("profile.steps", steps)


@pytest.mark.parametrize("steps", [None, [1, 1], [10, 20], [1, 200]])
def test_steps_that_can_be_profiled_are_taken(steps: list[int] | None) -> None:
    assert schema.rule_violation("profile.steps", steps) is None
