"""The axes of images and clips, as files and tensors have them."""

from __future__ import annotations

import pytest
import torch

from entrypoint import ExitCode, Failure
from train.data import arrays

LAID_OUT = {
    "gray": ((6, 8, 9), False, (6, 8, 9, 1)),
    "gray-tensor": ((6, 8, 9), True, (6, 8, 9, 1)),
    "colours": ((6, 8, 9, 3), False, (6, 8, 9, 3)),
    "one-channel": ((6, 8, 9, 1), False, (6, 8, 9, 1)),
    "with-alpha": ((6, 8, 9, 4), False, (6, 8, 9, 4)),
    "gray-clips": ((6, 5, 8, 9), False, (6, 5, 8, 9, 1)),
    "clips-of-as-many-frames-as-rows": ((6, 16, 16, 12), False, (6, 16, 16, 12, 1)),
    "narrow-clips": ((6, 16, 112, 50), False, (6, 16, 112, 50, 1)),
    "clips-that-look-like-bands": ((6, 32, 32, 2, 1), False, (6, 32, 32, 2, 1)),
    "colour-clips": ((6, 5, 8, 9, 3), False, (6, 5, 8, 9, 3)),
    "clips-of-two-channels": ((6, 5, 8, 9, 2), False, (6, 5, 8, 9, 2)),
    "clips-of-three-frames": ((6, 3, 8, 9, 1), False, (6, 3, 8, 9, 1)),
    "colour-tensors": ((6, 3, 8, 9), True, (6, 8, 9, 3)),
    "bands": ((6, 12, 8, 9), True, (6, 8, 9, 12)),
    "clip-tensors": ((6, 1, 5, 8, 9), True, (6, 5, 8, 9, 1)),
    "clip-tensors-of-three-frames": ((6, 3, 3, 8, 9), True, (6, 3, 8, 9, 3)),
    "clip-tensors-of-two-channels": ((6, 2, 5, 8, 9), True, (6, 5, 8, 9, 2)),
    "three-pixels-wide": ((6, 3, 8, 3), True, (6, 8, 3, 3)),
}


@pytest.mark.parametrize(("shape", "first", "expected"), LAID_OUT.values(), ids=LAID_OUT)
def test_axes(shape: tuple[int, ...], first: bool, expected: tuple[int, ...]) -> None:
    images = torch.zeros(shape)
    found = arrays.move_channels_last(images, "my.npz", channels_first=first)
    assert tuple(found.shape) == expected
    assert found.data_ptr() == images.data_ptr(), "a view, not a copy"


def test_every_pixel_lands_in_its_place() -> None:
    tensor = torch.arange(2 * 3 * 5 * 7).view(2, 3, 5, 7)
    assert arrays.move_channels_last(tensor, "my.pt", channels_first=True)[1, 4, 6, 2] == tensor[1, 2, 4, 6]


WRONG = {
    "flat": ((6, 16), False, "[6, 16]", "write"),
    "one-axis": ((6,), False, "[6]", "write"),
    "no-axis": ((), True, "[]", "write"),
    "six-axes": ((6, 2, 2, 2, 2, 2), False, "[6, 2", "write"),
    "six-axes-of-a-tensor": ((6, 2, 2, 2, 2, 2), True, "[6, 2", "write"),
    "colours-first": ((6, 3, 8, 8), False, "seem to be first", "(0, 2, 3, 1); clips of 3 frames"),
    "gray-first": ((6, 1, 8, 8), False, "seem to be first", "(0, 2, 3, 1); clips of 1 frames"),
    "alpha-first": ((6, 4, 8, 8), False, "seem to be first", "[N, 4, H, W, 1]"),
    "colours-last": ((6, 8, 8, 3), True, "seem to be last", "(0, 3, 1, 2)"),
    "bands-last": ((6, 64, 64, 13), False, "to be 13 channels", "save tensors [N, 13, H, W]"),
    "two-bands-last": ((6, 32, 32, 2), False, "to be 2 channels", "clips of 32 frames are saved as [N, 32, H, W, 1]"),
    "bands-last-of-a-tensor": ((6, 64, 64, 13), True, "to be 13 channels", "permute the axes: (0, 3, 1, 2)"),
    "gray-last": ((6, 8, 8, 1), True, "seem to be last", "(0, 3, 1, 2)"),
    "clips-with-colours-behind-the-frames": ((8, 5, 3, 16, 16), True, "seem to be behind", "axes: (0, 2, 1, 3, 4)"),
    "gray-clips-behind-the-frames": ((6, 5, 1, 8, 9), True, "seem to be behind", "(0, 2, 1, 3, 4)"),
    "clips-with-colours-last": ((6, 16, 8, 9, 3), True, "seem to be last", "(0, 4, 1, 2, 3)"),
    "clips-with-colours-first-in-an-array": ((6, 3, 5, 8, 9), False, "seem to be first", "(0, 2, 3, 4, 1)"),
    "clips-of-an-array-with-colours-behind-the-frames": ((6, 5, 4, 8, 9), False, "behind", "(0, 1, 3, 4, 2)"),
}


@pytest.mark.parametrize(("shape", "first", "found", "fix"), WRONG.values(), ids=WRONG)
def test_axes_that_cannot_be_meant_are_refused(shape: tuple[int, ...], first: bool, found: str, fix: str) -> None:
    with pytest.raises(Failure) as caught:
        arrays.move_channels_last(torch.zeros(shape), "my.file", channels_first=first)
    assert caught.value.code == ExitCode.DATA
    assert found in str(caught.value.found)
    assert fix in caught.value.fix
