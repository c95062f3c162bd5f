"""The data is opened by its name: what is known before it is read, and which keys act on it."""

from __future__ import annotations

import importlib
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from images import write_classes
from processes import python

from entrypoint import ExitCode, Failure
from train.config import load, schema
from train.config.schema import DataConfig, RunConfig
from train.data import download, registry, synthetic
from train.data.registry import DataSource

SMALL = DataConfig(samples=100, image_size=16)


def test_the_embedded_images_are_split_into_two_sides() -> None:
    sets = registry.open_splits(SMALL)
    assert (len(sets.training.labels), len(sets.validation.labels), len(sets.classes)) == (80, 20, 10)


def test_no_validation_image_is_trained_on() -> None:
    sets = registry.open_splits(SMALL)
    first_validation = sets.validation.read(np.array([0]))[0]
    assert torch.equal(first_validation, synthetic.draw_samples(np.array([80]), np.array([0]), size=16)[0])


def test_both_sides_are_measured_in_bytes() -> None:
    assert registry.open_splits(SMALL).bytes_ == 100 * 16 * 16 * 3


def test_the_validation_split_may_be_empty() -> None:
    assert len(registry.open_splits(DataConfig(samples=100, val_fraction=0.0)).validation.labels) == 0


def test_a_folder_of_images_is_the_other_kind(tmp_path: Path) -> None:
    write_classes(tmp_path, ant=5, bee=5)
    sets = registry.open_splits(DataConfig(name="folder", root=str(tmp_path), image_size=8))
    assert (sets.classes, len(sets.training.labels)) == (("ant", "bee"), 8)


def test_a_clip_is_frames_of_the_embedded_images() -> None:
    sets = registry.open_splits(DataConfig(samples=20, classes=4, image_size=8, frames=6))
    assert str(sets.shape) == "6 x 8 x 8 x 3"
    assert sets.training.read(np.array([0, 3])).shape == (2, *sets.shape.stored)
    assert sets.classes == ("outline-0-left", "outline-0-right", "outline-1-left", "outline-1-right")


def test_the_mirror_image_of_a_turning_clip_is_not_of_its_class() -> None:
    assert (registry.open_splits(SMALL).mirror, registry.open_splits(DataConfig(samples=20, frames=6)).mirror) == (
        True,
        False,
    )


def test_a_rare_class_is_on_both_sides() -> None:
    sets = registry.open_splits(DataConfig(samples=1000, classes=2, imbalance=99.0, image_size=8))
    assert [torch.bincount(side.labels).tolist() for side in (sets.training, sets.validation)] == [[792, 8], [198, 2]]


def test_a_side_too_small_for_every_class_is_refused() -> None:
    with pytest.raises(Failure, match="every class") as caught:
        registry.open_splits(DataConfig(samples=40, classes=10, imbalance=5.0))
    assert caught.value.found == "8 samples in one split, 10 classes"


def count_training(data: DataConfig) -> int | None:
    counts = registry.find_source(data.name).count(data)
    return None if counts is None else counts.training


@pytest.mark.parametrize("name", [*schema.DATA_SOURCES, "mine:make"])
def test_each_name_has_an_entry_whose_keys_are_in_the_config(name: str) -> None:
    source = registry.find_source(name)
    assert isinstance(source, DataSource)
    assert source.keys <= set(registry.OPTIONAL_KEYS) <= {field.name for field in fields(DataConfig)}
    assert ("download" in source.keys) == (name in download.PUBLISHED_ARCHIVES)


def test_the_published_numbers() -> None:
    data = DataConfig(name="mnist", download=True)
    size = next(file.size for file in download.PUBLISHED_ARCHIVES["mnist"][0].files)
    assert size == 16 + (count_training(data) or 0) * 28 * 28
    classes = importlib.import_module("torchvision.datasets").MNIST.classes
    registry.refuse_inapplicable_keys(replace(data, classes=len(classes)))


def test_published_files_that_are_to_be_downloaded_may_be_missing(tmp_path: Path) -> None:
    assert count_training(DataConfig(name="cifar100", root=str(tmp_path), download=True)) == 50_000


def test_the_users_own_samples_are_known_at_the_start() -> None:
    assert count_training(DataConfig(name="mine:make")) is None


FITTING = {
    "even": DataConfig(imbalance=1.0),
    "long-tail": DataConfig(imbalance=99.0, classes=2),
    "no-validation": DataConfig(imbalance=3.0, val_fraction=0.0),
    "clips": DataConfig(frames=8),
    "cifar100-by-default": DataConfig(name="cifar100"),
    "cifar100": DataConfig(name="cifar100", classes=100),
}


@pytest.mark.parametrize("data", FITTING.values(), ids=FITTING)
def test_what_goes_together(data: DataConfig) -> None:
    registry.refuse_inapplicable_keys(data)


OTHERS = [name for name in schema.DATA_SOURCES if name != "synthetic"]
UNFIT = {
    **{f"imbalance-of-{name}": DataConfig(name=name, imbalance=2.0) for name in (*OTHERS, "mine:make")},
    **{f"frames-of-{name}": DataConfig(name=name, frames=8) for name in (*OTHERS, "mine:make")},
    "cifar10-with-7": DataConfig(name="cifar10", classes=7),
    "mnist-with-100": DataConfig(name="mnist", classes=100),
    "cifar100-with-20": DataConfig(name="cifar100", classes=20),
    "a-split-too-small": DataConfig(imbalance=2.0, samples=40),
    "all-validation": DataConfig(imbalance=2.0, samples=100, val_fraction=0.95),
}


@pytest.mark.parametrize("data", UNFIT.values(), ids=UNFIT)
def test_what_does_not_go_together_is_refused(data: DataConfig) -> None:
    with pytest.raises(Failure) as caught:
        registry.refuse_inapplicable_keys(data)
    assert caught.value.code == ExitCode.USAGE
    assert "data." in caught.value.what
    assert caught.value.found
    assert "data." in caught.value.fix


MISSING_FILES = {
    "cifar10": (DataConfig(name="cifar10"), ExitCode.NO_INPUT),
    "mnist": (DataConfig(name="mnist"), ExitCode.NO_INPUT),
    "npz": (DataConfig(name="npz"), ExitCode.NO_INPUT),
    "tensor": (DataConfig(name="tensor"), ExitCode.NO_INPUT),
}


@pytest.mark.parametrize(("data", "code"), MISSING_FILES.values(), ids=MISSING_FILES)
def test_data_that_is_not_there_is_missing_input(
    data: DataConfig, code: ExitCode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Failure) as caught:
        count_training(data)
    assert caught.value.code == code


ROWS = {
    "synthetic": (
        DataConfig(),
        "synthetic, samples of 32 x 32 x 3, 10 classes: 8,000 for training, 2,000 for validation",
    ),
    "clips": (
        DataConfig(frames=8, classes=2, test_fraction=0.1),
        "synthetic, samples of 8 x 32 x 32 x 3, 2 classes: 7,000 for training, 2,000 for validation, 1,000 for the "
        "test at the end",
    ),
    "published": (
        DataConfig(name="cifar100", root="here", download=True),
        "cifar100 (not yet in here: fetched at the start), samples of 32 x 32 x 3, 100 classes: 50,000 for training, "
        "10,000 for validation",
    ),
}


@pytest.mark.parametrize(("data", "row"), ROWS.values(), ids=ROWS)
def test_the_row_of_data_that_is_not_opened(data: DataConfig, row: str) -> None:
    assert registry.summarize(data).description == row


def test_no_torch_is_loaded_for_it() -> None:
    imports = "import sys; from train.cli import check, launch; from train.config import schema"
    entries = "from train.data import registry; [*map(registry.find_source, [*schema.DATA_SOURCES, 'mine:make'])]"
    code = f"{imports}; {entries}; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert python("-c", code).returncode == 0


@pytest.mark.parametrize(
    ("data", "dims"),
    [
        (DataConfig(), 2),
        (DataConfig(frames=8), 3),
        (DataConfig(name="folder"), 2),
        (DataConfig(name="cifar10"), 2),
        (DataConfig(name="npz"), None),
        (DataConfig(name="tensor"), None),
        (DataConfig(name="my.data:make"), None),
    ],
    ids=str,
)
def test_the_name_tells_where_it_can(data: DataConfig, dims: int | None) -> None:
    shape = registry.configured_shape(data)
    assert (None if shape is None else len(shape.size)) == dims


UNUSED_KEYS = {
    "a-root-of-nothing": ["data.root=/my/images"],
    "samples-of-files": ["data.samples=50", "data.name=npz"],
    "a-share-of-published-data": ["data.val_fraction=0.1", "data.name=cifar10"],
    "a-cache-of-drawn-images": ["data.cache=/scratch"],
    "momentum-of-another": ["optim.momentum=0.5", "optim.name=RMSprop"],
    "decay-of-none": ["optim.weight_decay=0.1", "optim.name=Rprop"],
    "a-scale-without-scaling": ["optim.base_batch_size=64"],
    "patience-for-nothing": ["eval.patience=3"],
}


@pytest.mark.parametrize("settings", UNUSED_KEYS.values(), ids=UNUSED_KEYS.keys())
def test_a_key_that_does_nothing_is_said_with_a_way_out(settings: list[str]) -> None:
    (line,) = registry.unused_key_warnings(load.load_config(None, settings))
    assert line.startswith(settings[0].partition("=")[0])
    assert "fix: " in line


ACTING_KEYS = {
    "root": ["data.root=/my/images", "data.name=folder"],
    "samples": ["data.samples=50"],
    "a-factorys": ["data.samples=50", "data.name=my:factory", "data.root=/x"],
    "cache": ["data.cache=/scratch", "data.name=folder"],
    "momentum": ["optim.momentum=0.5", "optim.name=SGD"],
    "scale": ["optim.base_batch_size=64", "optim.lr_scaling=sqrt"],
    "patience": ["eval.patience=3", "eval.target=0.5"],
}


@pytest.mark.parametrize("settings", ACTING_KEYS.values(), ids=ACTING_KEYS.keys())
def test_a_key_that_acts_is_not(settings: list[str]) -> None:
    assert registry.unused_key_warnings(load.load_config(None, settings)) == ()


def test_defaults_claim_nothing() -> None:
    assert registry.unused_key_warnings(RunConfig()) == ()


def test_of_a_folder_what_is_drawn_elsewhere_has_no_effect_at_its_default_either() -> None:
    unused = set(registry.unused_keys(load.load_config(None, ["data.name=folder", "optim.name=adamw"])))
    assert {"data.samples", "data.classes", "data.imbalance", "data.frames", "optim.momentum"} <= unused
    assert not unused & {"data.root", "data.image_size", "data.val_fraction", "optim.lr"}


def test_a_number_of_classes_that_is_claimed_has_one() -> None:
    assert "data.classes" not in registry.unused_keys(load.load_config(None, ["data.name=folder", "data.classes=3"]))


@pytest.mark.parametrize("settings", UNUSED_KEYS.values(), ids=UNUSED_KEYS.keys())
def test_what_is_said_to_do_nothing_has_no_effect(settings: list[str]) -> None:
    assert settings[0].partition("=")[0] in registry.unused_keys(load.load_config(None, settings))
