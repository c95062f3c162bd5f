"""How images are cut, scaled and normalized in evaluation, compared with torchvision and timm."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torchvision.transforms import v2

from entrypoint import Failure
from train.config.resume_rules import changed_keys
from train.config.schema import KEYS, DataConfig, RunConfig
from train.data import augment, decode, loader, preprocessing, registry
from train.data.preprocessing import DEFAULT_PREPROCESSING, Preprocessing, parse_preprocessing

IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
SIZES = [(300, 200), (200, 300), (97, 300), (224, 224), (64, 64)]


def picture(width: int, height: int) -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(noise)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("ratio", "scaled"), [(224 / 256, 256), (224 / 232, 232), (0.9, 248)])
def test_a_crop_ratio_cuts_as_torchvision_does_to_the_pixel(
    size: tuple[int, int], interpolation: Any, ratio: float, scaled: int
) -> None:
    image = picture(*size)
    modes = {"bilinear": v2.InterpolationMode.BILINEAR, "bicubic": v2.InterpolationMode.BICUBIC}
    wanted = v2.CenterCrop(224)(v2.Resize(scaled, modes[interpolation])(image))
    chosen = Preprocessing(crop_ratio=ratio, interpolation=interpolation)
    assert np.array_equal(decode.fit_image(image, 224, chosen), wanted)


@pytest.mark.parametrize(
    "name", ["resnet18", "vit_tiny_patch16_224", "convnext_tiny", "efficientnet_b0", "swin_tiny_patch4_window7_224"]
)
@pytest.mark.parametrize("size", SIZES)
def test_the_evaluation_of_timms_models_is_timms(name: str, size: tuple[int, int]) -> None:
    record = timm.data.resolve_data_config(timm.get_pretrained_cfg(name).to_dict())
    side, image = record["input_size"][-1], picture(*size)
    wanted = timm.data.create_transform(**record, is_training=False)(image)
    chosen = Preprocessing(
        mean=record["mean"], std=record["std"], crop_ratio=record["crop_pct"], interpolation=record["interpolation"]
    )
    pixels = torch.from_numpy(np.array(decode.fit_image(image, side, chosen)))[None]
    torch.testing.assert_close(augment.normalize(pixels, chosen)[0], wanted, rtol=1e-5, atol=1e-5)


def test_the_default_normalization_is_that_of_before_to_the_bit() -> None:
    pixels = torch.arange(256, dtype=torch.uint8).view(1, 16, 16, 1)
    assert torch.equal(augment.normalize(pixels)[0, 0], (pixels[0, :, :, 0].float() - 127.5) / 63.75)


def test_auto_takes_what_the_weights_were_trained_with() -> None:
    published = Preprocessing(mean=(0.1,), std=(0.2,), crop_ratio=0.9, interpolation="bicubic")
    data = DataConfig(crop_ratio=0.8)
    assert preprocessing.configured_preprocessing(data) == replace(DEFAULT_PREPROCESSING, crop_ratio=0.8)
    set_ = preprocessing.set_preprocessing(data, published)
    assert (set_.crop_ratio, set_.interpolation, set_.normalize) == (0.8, "bicubic", {"mean": [0.1], "std": [0.2]})
    assert preprocessing.configured_preprocessing(set_) == replace(published, crop_ratio=0.8)
    assert preprocessing.set_preprocessing(data, None) is data


def test_another_preprocessing_is_another_training() -> None:
    auto = asdict(RunConfig())
    other = asdict(RunConfig(data=DataConfig(crop_ratio=0.9, normalize=IMAGENET)))
    assert set(changed_keys(other, auto)) == set(changed_keys(auto, other)) == {"data.crop_ratio", "data.normalize"}


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"mean": [0.5]},
        {"mean": [0.5], "std": [0]},
        {"mean": 0.5, "std": 0.5},
        {"mean": [0.5, 0.5], "std": [0.2]},
        "x",
    ],
)
def test_a_normalization_that_is_none_is_refused(value: Any) -> None:
    assert KEYS["data.normalize"].violation(value) is not None


def test_numbers_for_other_channels_are_refused() -> None:
    data = DataConfig(samples=20, image_size=8, frames=2, normalize={"mean": [0.5] * 2, "std": [0.2] * 2})
    with pytest.raises(Failure, match="another number of channels") as caught:
        loader.open_loader(registry.open_splits(data), data, seed=0, device=torch.device("cpu"), cores=1)
    assert caught.value.code == 64


def test_training_and_evaluation_are_normalized_alike(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for number in range(8):
        Image.new("RGB", (20, 30), (number, 100, 200)).save(tmp_path / "ab"[number % 2] / f"{number}.png")
    data = DataConfig(
        name="folder", root=str(tmp_path), image_size=8, val_fraction=0.5, crop_ratio=0.8, normalize=IMAGENET
    )
    opened = loader.open_loader(registry.open_splits(data), data, seed=0, device=torch.device("cpu"), cores=1)
    (batch,) = opened.evaluate([np.arange(2)])
    mean, std = (torch.tensor(IMAGENET[key])[1:, None, None] for key in ("mean", "std"))
    wanted = (torch.tensor([100, 200])[:, None, None] / 255 - mean) / std
    torch.testing.assert_close(batch["image"][:, 1:], wanted.expand(2, 2, 8, 8), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mean", [(0.5,), (0.485, 0.456, 0.406)])
def test_an_export_reads_back_what_it_was_given(mean: tuple[float, ...]) -> None:
    chosen = Preprocessing(mean=mean, std=tuple(0.2 + value / 10 for value in mean), crop_ratio=0.9)
    recorded = json.loads(json.dumps({"preprocessing": asdict(chosen)}))
    read, pixels = parse_preprocessing(recorded["preprocessing"]), torch.arange(48, dtype=torch.uint8).view(1, 4, 4, 3)
    assert read == chosen
    assert torch.equal(augment.normalize(pixels, read), augment.normalize(pixels, chosen))
