"""What is known of the data before it is read."""

from __future__ import annotations

import importlib
from dataclasses import fields, replace
from pathlib import Path

import pytest
from processes import python

from entrypoint import ExitCode, Failure
from train.config import schema
from train.config.schema import DataConfig
from train.data import download, registry
from train.data.registry import DataSource


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


FITS = {
    "even": DataConfig(imbalance=1.0),
    "long-tail": DataConfig(imbalance=99.0, classes=2),
    "no-validation": DataConfig(imbalance=3.0, val_fraction=0.0),
    "clips": DataConfig(frames=8),
    "cifar100-by-default": DataConfig(name="cifar100"),
    "cifar100": DataConfig(name="cifar100", classes=100),
}


@pytest.mark.parametrize("data", FITS.values(), ids=FITS)
def test_what_goes_together(data: DataConfig) -> None:
    registry.refuse_inapplicable_keys(data)


OTHERS = [name for name in schema.DATA_SOURCES if name != "synthetic"]
REFUSED = {
    **{f"imbalance-of-{name}": DataConfig(name=name, imbalance=2.0) for name in (*OTHERS, "mine:make")},
    **{f"frames-of-{name}": DataConfig(name=name, frames=8) for name in (*OTHERS, "mine:make")},
    "cifar10-with-7": DataConfig(name="cifar10", classes=7),
    "mnist-with-100": DataConfig(name="mnist", classes=100),
    "cifar100-with-20": DataConfig(name="cifar100", classes=20),
    "a-split-too-small": DataConfig(imbalance=2.0, samples=40),
    "all-validation": DataConfig(imbalance=2.0, samples=100, val_fraction=0.95),
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED)
def test_what_does_not_go_together_is_refused(data: DataConfig) -> None:
    with pytest.raises(Failure) as caught:
        registry.refuse_inapplicable_keys(data)
    assert caught.value.code == ExitCode.USAGE
    assert "data." in caught.value.what
    assert caught.value.found
    assert "data." in caught.value.fix


MISSING = {
    "cifar10": (DataConfig(name="cifar10"), ExitCode.NO_INPUT),
    "mnist": (DataConfig(name="mnist"), ExitCode.NO_INPUT),
    "npz": (DataConfig(name="npz"), ExitCode.NO_INPUT),
    "tensor": (DataConfig(name="tensor"), ExitCode.NO_INPUT),
}


@pytest.mark.parametrize(("data", "code"), MISSING.values(), ids=MISSING)
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


@pytest.mark.parametrize(("data", "said"), ROWS.values(), ids=ROWS)
def test_the_row_of_data_that_is_not_opened(data: DataConfig, said: str) -> None:
    assert registry.summarize(data).description == said


def test_no_torch_is_loaded_for_it() -> None:
    imports = "import sys; from train.cli import check, launch; from train.config import schema"
    entries = "from train.data import registry; [*map(registry.find_source, [*schema.DATA_SOURCES, 'mine:make'])]"
    code = f"{imports}; {entries}; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert python("-c", code).returncode == 0
