"""Keys that do nothing are said."""

from __future__ import annotations

import pytest

from train.config import checks, load
from train.config.schema import RunConfig
from train.data import registry

SAID = {
    "a-root-of-nothing": ["data.root=/my/images"],
    "samples-of-files": ["data.samples=50", "data.name=npz"],
    "a-share-of-published-data": ["data.val_fraction=0.1", "data.name=cifar10"],
    "a-cache-of-drawn-images": ["data.cache=/scratch"],
    "momentum-of-another": ["optim.momentum=0.5", "optim.name=RMSprop"],
    "decay-of-none": ["optim.weight_decay=0.1", "optim.name=Rprop"],
    "a-scale-without-scaling": ["optim.base_batch_size=64"],
    "patience-for-nothing": ["eval.patience=3"],
}


@pytest.mark.parametrize("settings", SAID.values(), ids=SAID.keys())
def test_a_key_that_does_nothing_is_said_with_a_way_out(settings: list[str]) -> None:
    (line,) = registry.unused_key_warnings(load.load_config(None, settings))
    assert line.startswith(settings[0].partition("=")[0])
    assert "fix: " in line


ACTS = {
    "root": ["data.root=/my/images", "data.name=folder"],
    "samples": ["data.samples=50"],
    "a-factorys": ["data.samples=50", "data.name=my:factory", "data.root=/x"],
    "cache": ["data.cache=/scratch", "data.name=folder"],
    "momentum": ["optim.momentum=0.5", "optim.name=SGD"],
    "scale": ["optim.base_batch_size=64", "optim.lr_scaling=sqrt"],
    "patience": ["eval.patience=3", "eval.target=0.5"],
}


@pytest.mark.parametrize("settings", ACTS.values(), ids=ACTS.keys())
def test_a_key_that_acts_is_not(settings: list[str]) -> None:
    assert registry.unused_key_warnings(load.load_config(None, settings)) == ()


def test_defaults_claim_nothing() -> None:
    assert registry.unused_key_warnings(RunConfig()) == ()


def test_of_a_folder_what_is_drawn_elsewhere_has_no_effect_at_its_default_either() -> None:
    found = set(registry.unused_keys(load.load_config(None, ["data.name=folder", "optim.name=adamw"])))
    assert {"data.samples", "data.classes", "data.imbalance", "data.frames", "optim.momentum"} <= found
    assert not found & {"data.root", "data.image_size", "data.val_fraction", "optim.lr"}


def test_a_number_of_classes_that_is_claimed_has_one() -> None:
    assert "data.classes" not in registry.unused_keys(load.load_config(None, ["data.name=folder", "data.classes=3"]))


@pytest.mark.parametrize("settings", SAID.values(), ids=SAID.keys())
def test_what_is_said_to_do_nothing_has_no_effect(settings: list[str]) -> None:
    assert settings[0].partition("=")[0] in registry.unused_keys(load.load_config(None, settings))


def test_mixing_the_images_of_one_reader_of_shards_is_warned_of() -> None:
    settings = ["data.name=shards", "data.root=/shards", "data.augment=[mixup]"]
    assert checks.conflict_warnings(load.load_config(None, settings)) == ()
    assert checks.conflict_warnings(load.load_config(None, [*settings[:2], "data.readers=1"])) == ()
    (line,) = checks.conflict_warnings(load.load_config(None, [*settings, "data.readers=1"]))
    assert line.startswith("data.readers: 1: mixup mixes images that lie near each other")
