"""Both splits of the data, by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from images import write_classes

from entrypoint import Failure
from train.config.schema import DataConfig
from train.data import registry, synthetic

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
