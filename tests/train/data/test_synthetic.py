"""The embedded images."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from train.data import synthetic

NUMBERS = np.arange(40)


def draw(numbers: np.ndarray, classes: int = 10, size: int = 16) -> torch.Tensor:  # type: ignore[type-arg]
    return synthetic.draw_samples(numbers, synthetic.labels(numbers, classes), size=size)


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
    expected = draw(NUMBERS)
    monkeypatch.setattr(synthetic, "IMAGES_PER_CHUNK", 7)
    assert torch.equal(draw(NUMBERS), expected)


def test_no_images_are_no_images() -> None:
    assert draw(np.arange(0)).shape == (0, 16, 16, 3)


def test_the_mean_colour_does_not_give_the_class_away() -> None:
    numbers = np.arange(2000)
    means = draw(numbers).float().mean((1, 2))
    labels = torch.from_numpy(synthetic.labels(numbers, 10))
    centres = torch.stack([means[:1000][labels[:1000] == label].mean(0) for label in range(10)])
    guesses = torch.cdist(means[1000:], centres).argmin(1)
    assert (guesses == labels[1000:]).float().mean() < 0.25


def clips(numbers: np.ndarray, classes: int = 4) -> torch.Tensor:  # type: ignore[type-arg]
    return synthetic.draw_samples(numbers, synthetic.labels(numbers, classes), size=16, frames=5)


def test_clips_are_frames_of_images() -> None:
    assert (clips(NUMBERS).shape, clips(NUMBERS).dtype) == ((40, 5, 16, 16, 3), torch.uint8)
    assert clips(NUMBERS).is_contiguous()


def test_a_clip_depends_on_its_number_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = clips(NUMBERS)
    monkeypatch.setattr(synthetic, "IMAGES_PER_CHUNK", 11)
    assert torch.equal(clips(NUMBERS[[31, 2]]), expected[[31, 2]])


def test_every_frame_of_a_clip_is_another() -> None:
    moving = clips(NUMBERS).float()
    assert (moving.diff(dim=1).abs().amax((2, 3, 4)) > 20).all()


def test_two_classes_share_an_outline_and_turn_it_the_other_way() -> None:
    left, right = (synthetic.draw_samples(np.array([7]), np.array([label]), size=32, frames=9) for label in (0, 1))
    assert torch.equal(left[:, 0], right[:, 0])
    assert not torch.equal(left[:, -1], right[:, -1])


def test_a_long_tail_has_its_counts_in_every_side_of_the_split() -> None:
    sides = [synthetic.labels(np.arange(*side), 2, 99.0) for side in ((0, 8000), (8000, 10000))]
    assert [np.bincount(side).tolist() for side in sides] == [[7920, 80], [1980, 20]]


def test_a_long_tail_is_spread_evenly_over_its_side() -> None:
    labels = synthetic.labels(np.arange(8000), 2, 99.0)
    assert {int(labels[start : start + 1000].sum()) for start in range(0, 8000, 1000)} <= {9, 10, 11}


def test_without_imbalance_classes_come_in_turn() -> None:
    assert synthetic.labels(np.arange(5, 12), 3, 1.0).tolist() == [2, 0, 1, 2, 0, 1, 2]


def test_pixels_and_classes_stay_what_they_were_in_every_version() -> None:
    numbers = np.array([0, 1, 12345, 10**8])
    labels = synthetic.labels(numbers, 10)
    assert labels.tolist() == [0, 1, 5, 0]
    digest = hashlib.sha256(synthetic.draw_samples(numbers, labels, size=32).numpy().tobytes()).hexdigest()
    assert digest == "d3af7886c0293db33460364ae0d753f9844d3e4b24d1d7725b6935a5f18eeee0"
