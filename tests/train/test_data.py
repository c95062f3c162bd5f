"""Both sides of the data, by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from images import write_classes

from train import data, synthetic
from train.config import Data

SMALL = Data(samples=100, image_size=16)


def test_the_embedded_images_are_split_into_two_sides() -> None:
    sets = data.open_sets(SMALL)
    assert (len(sets.training.labels), len(sets.held_out.labels), len(sets.classes)) == (80, 20, 10)


def test_no_held_out_image_is_trained_on() -> None:
    sets = data.open_sets(SMALL)
    first_held_out = sets.held_out.read(np.array([0]))[0]
    assert torch.equal(first_held_out, synthetic.draw(np.array([80]), classes=10, size=16)[0])


def test_both_sides_are_measured_in_bytes() -> None:
    assert data.open_sets(SMALL).numbers == 100 * 16 * 16 * 3


def test_nothing_may_be_held_out() -> None:
    assert len(data.open_sets(Data(samples=100, val_fraction=0.0)).held_out.labels) == 0


def test_a_folder_of_images_is_the_other_kind(tmp_path: Path) -> None:
    write_classes(tmp_path, ant=5, bee=5)
    sets = data.open_sets(Data(name="folder", root=str(tmp_path), image_size=8))
    assert (sets.classes, len(sets.training.labels)) == (("ant", "bee"), 8)
