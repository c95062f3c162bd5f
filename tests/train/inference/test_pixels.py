"""Image files become the numbers that an evaluation of them would have seen."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from images import write_classes, write_image
from PIL import Image

from entrypoint import Failure
from train.config.schema import DataConfig
from train.data import augment, custom, decode, registry
from train.data.shape import Shape
from train.inference import inputs

COLOUR, GRAY = Shape(channels=3, size=(8, 8)), Shape(channels=1, size=(8, 8))


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as found:
        yield found


def noise(*shape: int, kind: type = np.uint8) -> np.ndarray:  # type: ignore[type-arg]
    return np.random.default_rng(1).integers(0, np.iinfo(kind).max, shape, dtype=kind)


def test_a_batch_is_what_the_folder_of_these_images_gives(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    sets = registry.open_splits(DataConfig(name="folder", root=str(write_classes(tmp_path, a=3, b=2)), image_size=8))
    paths = [Path(str(path)) for path in sets.training.paths]  # type: ignore[attr-defined]
    batch, bad = inputs.read_batch(paths, COLOUR, threads)
    assert torch.equal(batch, augment.normalize(sets.training.read(np.arange(len(paths)))))
    assert bad == [None] * len(paths)


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "P", "1", "CMYK", "I;16"])
@pytest.mark.parametrize("shape", [COLOUR, GRAY], ids=["colour", "gray"])
def test_images_of_every_kind_become_what_the_network_takes(mode: str, shape: Shape, tmp_path: Path) -> None:
    path = tmp_path / "image.tif"
    image = Image.fromarray(noise(9, 12, kind=np.uint16)) if mode == "I;16" else Image.fromarray(noise(9, 12, 3))
    (image if mode == "I;16" else image.convert(mode)).save(path)
    found = inputs.read_image(path, shape)
    assert (found.shape, found.dtype) == (shape.stored, np.uint8)
    assert found.std() > 0


def test_without_a_draft_a_file_is_the_picture_that_it_holds(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    Image.fromarray(noise(50, 41, 3)).save(path := tmp_path / "a.jpg")
    with Image.open(path) as image:
        wanted = custom.open_dataset_source([(image.convert("RGB"), 0)], torch.zeros(1, dtype=torch.int64), 8, "mine")
    batch, _ = inputs.read_batch([path], COLOUR, threads, draft=False)
    assert torch.equal(batch, augment.normalize(wanted.read(np.arange(1))))
    assert not torch.equal(batch, inputs.read_batch([path], COLOUR, threads)[0])


def test_a_gray_image_is_the_same_to_a_network_of_gray_ones(tmp_path: Path) -> None:
    values = noise(8, 8)
    Image.fromarray(values).save(tmp_path / "gray.png")
    assert np.array_equal(inputs.read_image(tmp_path / "gray.png", GRAY)[..., 0], values)


def test_what_cannot_be_read_is_told_in_its_place_and_the_rest_is_there(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    good, bad = write_image(tmp_path / "good.png"), tmp_path / "bad.png"
    bad.write_bytes(good.read_bytes()[:40])
    batch, reasons = inputs.read_batch([bad, good, bad, tmp_path / "gone.png"], COLOUR, threads)
    assert len(batch) == 1
    assert [reason is None for reason in reasons] == [False, True, False, False]


def test_a_lost_disk_is_no_broken_image(
    tmp_path: Path, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> Image.Image:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(decode, "open_image", fail)
    with pytest.raises(Failure) as caught:
        inputs.read_batch([tmp_path / "a.png"], COLOUR, threads)
    assert caught.value.code == 74
