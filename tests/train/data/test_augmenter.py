"""What data.augment does with the data that it is given: whole files, floats, many channels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms.v2 import functional as F

from entrypoint import Failure
from train.config.schema import DataConfig
from train.data import loader, registry
from train.data.augmenter import build_augmenter
from train.data.sampler import MicroBatch

CPU = torch.device("cpu")


@pytest.fixture
def photos(tmp_path: Path) -> DataConfig:
    """Wide images of noise in two classes."""
    noise = np.random.default_rng(0)
    for name in ("ant", "bee"):
        (tmp_path / name).mkdir()
        for number in range(4):
            pixels = noise.integers(0, 256, (40, 90, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    return DataConfig(name="folder", root=str(tmp_path), image_size=16, val_fraction=0.0, augment="imagenet")


def opened(data: DataConfig, **settings: Any) -> loader.BatchLoader:
    data = replace(data, **settings)
    return loader.open_loader(registry.open_splits(data), data, seed=0, device=CPU, cores=2)


@pytest.mark.parametrize(("decode", "convert"), [("auto", F.pil_to_tensor), ("exact", lambda image: image)])
def test_random_resized_crop_cuts_whole_files_as_torchvision_does(
    decode: Literal["auto", "exact"], convert: Callable[[Image.Image], Any], photos: DataConfig
) -> None:
    """As torchvision cuts tensors by default, and as it cuts Pillow's images if data.decode is exact."""
    photos = replace(photos, decode=decode)
    splits, samples = registry.open_splits(photos), np.arange(8)
    draws = build_augmenter(splits, photos, seed=0).crop_draws(samples, epoch=3)
    assert draws is not None
    read = splits.training.read_cropped(samples, draws)  # type: ignore[attr-defined]
    for index, path in enumerate(splits.training.paths):  # type: ignore[attr-defined]
        image = convert(Image.open(str(path)).convert("RGB"))
        expected = F.resized_crop(image, *draws.box(index, 40, 90), size=[16, 16], antialias=True)
        expected = np.asarray(expected) if isinstance(expected, Image.Image) else expected.permute(1, 2, 0).numpy()
        assert np.array_equal(read[index].numpy(), expected)


def test_crops_of_whole_files_reach_beyond_the_central_square(photos: DataConfig) -> None:
    draws = build_augmenter(registry.open_splits(photos), photos, seed=0).crop_draws(np.arange(200), epoch=0)
    assert draws is not None
    boxes = np.array([draws.box(index, 40, 90) for index in range(200)])
    assert (boxes[:, 1] < 25).any()
    assert (boxes[:, 1] + boxes[:, 3] > 65).any()


def test_whole_files_are_read_by_workers_though_their_pixels_would_fit_into_memory(photos: DataConfig) -> None:
    assert opened(photos).description == "1 worker"
    assert opened(photos, augment="micrographs").description == "memory"


def test_the_shift_that_the_config_sets_acts(photos: DataConfig) -> None:
    first = MicroBatch(step=0, number=0, epoch=0, samples=np.arange(8))
    still, shifted = (
        next(iter(opened(photos, augment=[{"translate": {"shift": shift}}]).train([first])))[1]["image"]
        for shift in (0, 0.25)
    )
    assert torch.equal(still, next(iter(opened(photos, augment="none").train([first])))[1]["image"])
    assert not torch.equal(still, shifted)


@pytest.mark.parametrize("setting", [{"loader": "memory"}, {"cache": "elsewhere"}])
def test_what_keeps_scaled_images_does_not_go_with_crops_of_whole_ones(
    photos: DataConfig, setting: dict[str, str]
) -> None:
    with pytest.raises(Failure, match="random_resized_crop cuts whole images") as caught:
        opened(photos, **setting)
    assert (caught.value.code, f"leave data.{next(iter(setting))} out" in str(caught.value.fix)) == (64, True)


@pytest.mark.parametrize(
    ("images", "problem"),
    [(np.zeros((20, 8, 8), "f4"), "floats"), (np.zeros((20, 8, 8, 4), "u1"), "4 channels")],
    ids=["floats", "4 channels"],
)
def test_colours_of_what_has_none_are_refused(images: np.ndarray[Any, Any], problem: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=images, labels=np.arange(20) % 2)
    data = DataConfig(name="npz", root=str(tmp_path / "a.npz"), augment=["horizontal_flip", "color_jitter"])
    with pytest.raises(Failure, match="color_jitter cannot change these samples") as caught:
        opened(data)
    assert (caught.value.code, problem in str(caught.value.found)) == (64, True)


def test_floats_are_flipped_cropped_and_erased(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.random.default_rng(0).normal(size=(20, 8, 10)), labels=np.arange(20) % 2)
    augment: list[Any] = ["random_resized_crop", "vertical_flip", "rotate90", "random_erasing", "mixup"]
    data = DataConfig(name="npz", root=str(tmp_path / "a.npz"), augment=augment)
    (batch,) = [
        given for _, given in opened(data).train([MicroBatch(step=0, epoch=0, number=0, samples=np.arange(16))])
    ]
    assert (batch["image"].shape, batch["image"].dtype) == ((16, 1, 8, 10), torch.float32)
    assert "share" in batch


def test_digits_are_not_flipped() -> None:
    data = DataConfig(samples=20, image_size=8, frames=2, augment=["horizontal_flip", "vertical_flip"])
    splits = registry.open_splits(data)
    assert not splits.mirror
    assert [step.name for step in build_augmenter(splits, data, seed=0).stored] == ["vertical_flip"]
