"""What a sample is, as it is stored and as the model gets it."""

from __future__ import annotations

from train.data.shape import Shape


def test_an_image_is_stored_channels_last_and_computed_channels_first() -> None:
    image = Shape(channels=3, size=(32, 48))
    assert image.stored == (32, 48, 3)
    assert image.input == (3, 32, 48)


def test_a_clip_has_its_frames_before_its_rows() -> None:
    clip = Shape(channels=1, size=(16, 8, 8))
    assert clip.stored == (16, 8, 8, 1)
    assert clip.input == (1, 16, 8, 8)
    assert str(clip) == "16 x 8 x 8 x 1"
