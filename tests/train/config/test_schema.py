"""Every key has a default that keeps its rule, and a rule that refuses what cannot be used."""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from typing import Any

import pytest

from train.config import schema
from train.config.schema import ANYTHING, KEYS, RunConfig


@pytest.mark.parametrize("path", KEYS)
def test_every_default_keeps_its_own_rule(path: str) -> None:
    assert KEYS[path].violation(KEYS[path].default) is None


def test_every_number_has_a_rule() -> None:
    numbers = [path for path, key in KEYS.items() if type(key.default) in (int, float)]
    assert [path for path in numbers if KEYS[path].rule is ANYTHING] == []


def test_the_first_known_name_is_the_default() -> None:
    named = [key for key in KEYS.values() if key.rule.names]
    assert len(named) >= 5
    assert [key for key in named if key.rule.names[0] != key.default] == []


REFUSED: dict[str, list[Any]] = {
    "run.name": ["", ".", "..", "a/b", "/a", " a", "a ", "x" * 200, "a\nb", "a\0", "a\udcff"],  # no plain folders
    "data.val_fraction": [1.0],
    "optim.momentum": [1.0],
    "optim.label_smoothing": [1.0],
    "optim.lr": [1e308],  # would overflow
    "optim.weight_decay": [1e308],
    "optim.layer_decay": [0.0, 1.1],
    "model.freeze": [0, -1],
    "optim.warmup_epochs": [1e308],
    "optim.class_weights": [[1e308], [], {}, {"a": "much"}, {"a": -1}, {"a": True}, {"a": 0}],
    "data.group": ["", "(", "[a", "a{2,1}", "a{99999999999}"],  # Python does not compile them
    "data.mirror": ["https://me:pw@host/x", "https://me@host", "https://host/x?token=y", "http://host#x"],  # secrets
    "data.augment": [[], ["none", "cutout"], ["standard", "mirror"], ["standard", "translate"]],
    "profile.steps": [[], [10], [1, 2, 3], [20, 10], [0, 5], [-5, 5], [1, 201]],
}
TAKEN: dict[str, list[Any]] = {
    "run.name": ["a", "a b", "ü", "run-1_2.3", "...", "-x"],
    "data.val_fraction": [0.0],
    "optim.momentum": [0.0],
    "optim.label_smoothing": [0.0],
    "train.micro_batch_size": ["auto", None],
    "optim.lr": ["auto"],
    "optim.layer_decay": [None, 0.75, 1.0],
    "model.freeze": ["none", "backbone", 1],
    "data.group": [r"video_(\d+)", r"(\w+)/(.*)_\d{4}", "(a|b)c", r"(?:\d{4}_){12}", "^[^/]+/([^_]+)_"],
    "data.mirror": ["http://host/a@b", "https://host:8443", "file:///srv/a@b"],
    "data.augment": ["none", "cutout", ["standard", "cutout"], ["translate", "mirror", "cutout"]],
    "profile.steps": [None, [1, 1], [10, 20], [1, 200]],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key in REFUSED for value in REFUSED[key]])
def test_a_value_that_breaks_its_rule_is_refused(key: str, value: Any) -> None:
    assert KEYS[key].violation(value) is not None


@pytest.mark.parametrize(("key", "value"), [(key, value) for key in TAKEN for value in TAKEN[key]])
def test_a_value_that_keeps_its_rule_is_taken(key: str, value: Any) -> None:
    assert KEYS[key].violation(value) is None


@pytest.mark.parametrize("name", ["mine:make", "a.b.c:make_2", "_x._y:_z"])
def test_a_factory_is_a_module_and_a_name(name: str) -> None:
    assert schema.is_factory(name)


@pytest.mark.parametrize("name", ["mine", "mine:", ":make", "a b:c", "a.:c", "a/b:c", "a:b:c", "1a:b", "a:b()", ""])
def test_anything_else_is_not_a_factory(name: str) -> None:
    assert not schema.is_factory(name)


def test_only_the_keys_that_say_so_come_from_the_other_configuration() -> None:
    marker = {path: object() for path in KEYS if path.count(".") == 1}
    other = RunConfig()
    for path, value in marker.items():
        section, name = path.split(".")
        other = dataclasses.replace(other, **{section: dataclasses.replace(getattr(other, section), **{name: value})})
    mixed = schema.with_keys_of(RunConfig(), other, "in_evaluation")
    taken = {path for path, value in marker.items() if attrgetter(path)(mixed) is value}
    assert taken == {path for path in marker if KEYS[path].in_evaluation}
