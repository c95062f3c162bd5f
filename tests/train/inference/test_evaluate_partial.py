"""A test set that lacks classes of the training is measured by their names."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from train.config.schema import DataConfig
from train.data import registry
from train.data.shape import Shape
from train.data.splits import DataSplits, ImageFileSource
from train.inference import evaluate

PETS = ("cat", "dog", "owl", "yak")


def files(*labels: int, dtype: torch.dtype = torch.int64) -> ImageFileSource:
    return ImageFileSource([f"{number}.png" for number in range(len(labels))], torch.tensor(labels, dtype=dtype), 8)


def sets(*classes: str, dtype: torch.dtype = torch.int64) -> DataSplits:
    shape = Shape(channels=3, size=(8, 8))
    return DataSplits(
        training=files(0, 1, 1, dtype=dtype), validation=files(1, 0, dtype=dtype), classes=classes, shape=shape
    )


@pytest.mark.parametrize("dtype", [torch.int64, torch.int16, torch.uint8], ids=str)
def test_images_of_some_classes_get_the_numbers_of_the_training(dtype: torch.dtype) -> None:
    """In whatever width a source keeps its labels: shards have 16 bits."""
    found = evaluate.map_to_training_classes(sets("dog", "yak", dtype=dtype), PETS)
    assert found.classes == PETS
    assert found.training.labels.tolist() == [1, 3, 3]
    assert found.validation.labels.tolist() == [3, 1]


def test_an_empty_side_stays_empty() -> None:
    none = replace(sets("dog", "yak"), validation=ImageFileSource([], torch.empty(0, dtype=torch.int64), 8))
    assert len(evaluate.map_to_training_classes(none, PETS).validation.labels) == 0


@pytest.mark.parametrize("classes", [PETS, ("dog", "emu"), ("yak", "owl", "dog", "cat")])
def test_all_classes_others_and_another_order_are_left_as_they_are(classes: tuple[str, ...]) -> None:
    given = sets(*classes)
    assert evaluate.map_to_training_classes(given, PETS) is given


def test_classes_that_are_numbers_alone_are_left_as_they_are() -> None:
    given = registry.open_splits(DataConfig(samples=20, classes=2))
    assert evaluate.map_to_training_classes(given, ("outline-0", "outline-1", "outline-2")) is given
