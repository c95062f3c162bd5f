"""What was meant by a value that does not fit."""

from __future__ import annotations

from typing import Any

import pytest

from train.config import load


@pytest.mark.parametrize(
    ("path", "value", "meant"),
    [
        ("model.name", "resnet18", "resnet18"),
        ("model.name", "resnet_18", "resnet18"),
        ("model.name", ["resnet18"], "resnet18"),
        ("model.name", "mine:make", "mine:make"),
        ("model.name", {"arch": "resnet18"}, "resnet18"),
        ("model.name", {"arch": "mine:make"}, "mine:make"),
        ("model.name", {"resnet18": None}, "resnet18"),
        ("model.name", {"resnet18": {}}, "resnet18"),
        ("model.name", {"resnet18": {"width": 3}}, None),
        ("model.name", {"arch": "unheard"}, None),
        ("model.name", 3, None),
        ("model.name", ["resnet18", "resnet50"], None),
        ("run.name", "photos", "photos"),
        ("run.name", "../photos", "photos"),
        ("data.name", "photos", None),
        ("eval.name", "accuracy", None),  # there is no such key
        ("train.epochs", {"n": 3}, 3),
        ("train.epochs", [3], 3),
        ("train.epochs", {3: None}, 3),
        ("train.epochs", {"n": 3, "m": 4}, None),
        ("train.epochs", {"n": "x"}, None),
        ("train.epochs", [], None),
        ("train.epochs", [0], None),
        ("data.image_size", "224x224", [224, 224]),
        ("data.image_size", "(224, 192)", [224, 192]),
        ("log.trackers", "mybox:Tracker", ["mybox:Tracker"]),
        ("data.val_fraction", "20%", 0.2),
        ("data.task", "5%", None),
        ("train.precision", 16, "fp16"),
    ],
)
def test_the_one_value_that_is_meant_is_found_where_it_fits(path: str, value: Any, meant: Any) -> None:
    assert load.find_meant_value(path, value) == meant
