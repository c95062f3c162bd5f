"""Samples out of one array."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from entrypoint import ExitCode, Failure
from train.data import arrays

BYTES = torch.arange(6 * 4 * 4 * 3).view(6, 4, 4, 3).to(torch.uint8)
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])


def test_samples_come_by_number() -> None:
    source = arrays.array_source(BYTES, LABELS, "a.npz")
    assert torch.equal(source.read(np.array([5, 0])), BYTES[[5, 0]])


def test_a_part_counts_its_own_samples() -> None:
    source = arrays.array_source(BYTES, LABELS, "a.npz").select(LABELS == 2)
    assert source.labels.tolist() == [2, 2]
    assert torch.equal(source.read(np.array([1])), BYTES[[5]])


def test_a_part_shares_the_array() -> None:
    source = arrays.array_source(BYTES, LABELS, "a.npz").select(LABELS == 2)
    assert source.pixels.data_ptr() == BYTES.data_ptr()


def test_channels_first_become_last_and_lie_in_order() -> None:
    read = arrays.array_source(BYTES.movedim(-1, 1).contiguous().movedim(1, -1), LABELS, "a.pt").read(np.arange(2))
    assert torch.equal(read, BYTES[:2])
    assert read.is_contiguous()


@pytest.mark.parametrize("kind", [torch.float16, torch.float32, torch.float64])
def test_floats_are_read_as_float32(kind: torch.dtype) -> None:
    assert arrays.array_source(BYTES.to(kind), LABELS, "a.pt").read(np.arange(2)).dtype == torch.float32


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_not_finite_is_refused_by_its_row(bad: float) -> None:
    pixels = BYTES.float()
    pixels[4, 0, 0, 0] = bad
    source = arrays.array_source(pixels, LABELS, "a.npz").select(LABELS == 1)
    with pytest.raises(Failure, match="sample 4") as caught:
        source.read(np.array([0, 1]))
    assert caught.value.code == ExitCode.DATA
    assert "a.npz" in str(caught.value.found)


def test_no_samples_are_none() -> None:
    assert arrays.array_source(BYTES[:0].float(), LABELS[:0], "a.npz").read(np.arange(0)).shape == (0, 4, 4, 3)


def test_images_of_the_right_size_are_not_resized() -> None:
    assert arrays.array_source(BYTES, LABELS, "a.npz", size=4).size is None
    assert arrays.array_source(BYTES, LABELS, "a.npz", size=8).read(np.arange(2)).shape == (2, 8, 8, 3)


@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (0, 2, 3, 1)])
def test_numbers_that_begin_at_any_byte_are_read(axes: tuple[int, ...]) -> None:
    wanted = np.random.default_rng(0).random((6, 4, 4, 3), np.float32)
    shifted = np.frombuffer(bytearray(b"x" + wanted.tobytes()), np.float32, offset=1).reshape(wanted.shape)
    source = arrays.array_source(torch.from_numpy(shifted).permute(axes), LABELS, "a.npz")
    assert torch.equal(source.read(np.array([5, 0])), torch.from_numpy(wanted).permute(axes)[[5, 0]])
