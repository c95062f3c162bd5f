"""The embedded images."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from train import synthetic

NUMBERS = np.arange(40)


def draw(numbers: np.ndarray, classes: int = 10, size: int = 16) -> torch.Tensor:  # type: ignore[type-arg]
    return synthetic.draw(numbers, classes=classes, size=size)


def test_images_are_bytes_of_the_size_asked_for() -> None:
    images = draw(NUMBERS, size=24)
    assert (images.shape, images.dtype) == ((40, 24, 24, 3), torch.uint8)


def test_an_image_depends_on_its_number_alone() -> None:
    assert torch.equal(draw(NUMBERS[[31, 2]]), draw(NUMBERS)[[31, 2]])


def test_images_of_one_class_differ() -> None:
    assert not torch.equal(*draw(np.array([0, 10])))


def test_all_classes_are_equally_often_in_any_run_of_samples() -> None:
    assert np.bincount(synthetic.labels(np.arange(13, 113), 10)).tolist() == [10] * 10


def test_drawing_in_chunks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = draw(NUMBERS)
    monkeypatch.setattr(synthetic, "CHUNK", 7)
    assert torch.equal(draw(NUMBERS), whole)


def test_no_images_are_no_images() -> None:
    assert draw(np.arange(0)).shape == (0, 16, 16, 3)


def test_the_mean_colour_does_not_give_the_class_away() -> None:
    numbers = np.arange(2000)
    means = draw(numbers).float().mean((1, 2))
    labels = torch.from_numpy(synthetic.labels(numbers, 10))
    centres = torch.stack([means[:1000][labels[:1000] == label].mean(0) for label in range(10)])
    guesses = torch.cdist(means[1000:], centres).argmin(1)
    assert (guesses == labels[1000:]).float().mean() < 0.25
