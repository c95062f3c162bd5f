"""Both sides of the data, measured as one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from images import write_classes

from entrypoint import Failure
from train.config.schema import DataConfig
from train.data import registry, splits
from train.data.splits import DataSplits, ImageFileSource


def drawn(fraction: float = 0.25) -> DataSplits:
    return registry.open_splits(DataConfig(samples=40, classes=2, image_size=8, val_fraction=fraction))


@pytest.fixture
def pets(tmp_path: Path) -> DataSplits:
    """Eight images of cats and four of dogs, a quarter of them for validation."""
    root = write_classes(tmp_path / "pets", cat=8, dog=4)
    return registry.open_splits(DataConfig(name="folder", root=str(root), image_size=8, val_fraction=0.25))


def test_every_sample_of_both_sides_is_there_once_with_its_label() -> None:
    sets = drawn()
    found = splits.with_all_as_validation(sets).validation
    assert found.labels.tolist() == [*sets.training.labels.tolist(), *sets.validation.labels.tolist()]
    assert torch.equal(found.read(np.arange(30)), sets.training.read(np.arange(30)))
    assert torch.equal(found.read(np.arange(30, 40)), sets.validation.read(np.arange(10)))


def test_samples_of_both_sides_come_in_the_order_that_was_asked_for() -> None:
    sets = drawn()
    found = splits.with_all_as_validation(sets).validation.read(np.array([31, 2, 30, 29]))
    mine, theirs = sets.training.read(np.array([2, 29])), sets.validation.read(np.array([1, 0]))
    assert torch.equal(found, torch.stack([theirs[0], mine[0], theirs[1], mine[1]]))


def test_without_a_validation_split_the_training_split_is_all() -> None:
    sets = drawn(fraction=0)
    assert splits.with_all_as_validation(sets).validation is sets.training


def test_image_files_stay_image_files(pets: DataSplits) -> None:
    found = splits.with_all_as_validation(pets).validation
    assert isinstance(found, ImageFileSource)
    assert len(set(found.paths)) == len(found.labels) == 12
    assert all(
        Path(path).parent.name == pets.classes[label] for path, label in zip(found.paths, found.labels, strict=True)
    )


def test_a_file_that_cannot_be_read_has_one_number(pets: DataSplits) -> None:
    found = splits.with_all_as_validation(pets).validation
    assert isinstance(found, ImageFileSource)
    Path(str(found.paths[11])).write_text("no image")
    with pytest.raises(Failure, match="image 11 cannot be read"):
        found.read(np.array([11]))


def test_what_else_there_is_to_know_of_the_data_stays() -> None:
    sets = drawn()
    assert (splits.with_all_as_validation(sets).classes, splits.with_all_as_validation(sets).shape) == (
        sets.classes,
        sets.shape,
    )
