"""Image files get the shape, channels and numbers of the model, as torchvision and timm make them."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import timm
import torch
from PIL import ExifTags, Image, ImageOps
from torchvision.models import get_model_weights
from torchvision.transforms import v2

from entrypoint import Failure, Heartbeat
from train.config import checks
from train.config.resume_rules import changed_keys
from train.config.schema import KEYS, DataConfig, ModelConfig, RunConfig
from train.data import augment, custom, decode, decoded_cache, loader, preprocessing, registry, shape
from train.data.preprocessing import DEFAULT_PREPROCESSING, Preprocessing, parse_preprocessing
from train.data.sampler import MicroBatch
from train.data.shape import Shape
from train.data.splits import with_all_as_validation
from train.distributed.shared_memory import SINGLE_RANK
from train.inference import inputs
from train.models import pretrained
from train.models import registry as models

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
    expected = v2.CenterCrop(224)(v2.Resize(scaled, modes[interpolation])(image))
    chosen = Preprocessing(crop_ratio=ratio, interpolation=interpolation)
    assert np.array_equal(decode.fit_image(image, 224, chosen), expected)


@pytest.mark.parametrize(
    "name", ["resnet18", "vit_tiny_patch16_224", "convnext_tiny", "efficientnet_b0", "swin_tiny_patch4_window7_224"]
)
@pytest.mark.parametrize("size", SIZES)
def test_the_evaluation_of_timms_models_is_timms(name: str, size: tuple[int, int]) -> None:
    record = timm.data.resolve_data_config(timm.get_pretrained_cfg(name).to_dict())
    side, image = record["input_size"][-1], picture(*size)
    expected = timm.data.create_transform(**record, is_training=False)(image)
    chosen = Preprocessing(
        mean=record["mean"], std=record["std"], crop_ratio=record["crop_pct"], interpolation=record["interpolation"]
    )
    pixels = torch.from_numpy(np.array(decode.fit_image(image, side, chosen)))[None]
    torch.testing.assert_close(augment.normalize(pixels, chosen)[0], expected, rtol=1e-5, atol=1e-5)


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
    expected = (torch.tensor([100, 200])[:, None, None] / 255 - mean) / std
    torch.testing.assert_close(batch["image"][:, 1:], expected.expand(2, 2, 8, 8), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mean", [(0.5,), (0.485, 0.456, 0.406)])
def test_an_export_reads_back_what_it_was_given(mean: tuple[float, ...]) -> None:
    chosen = Preprocessing(mean=mean, std=tuple(0.2 + value / 10 for value in mean), crop_ratio=0.9)
    recorded = json.loads(json.dumps({"preprocessing": asdict(chosen)}))
    read, pixels = parse_preprocessing(recorded["preprocessing"]), torch.arange(48, dtype=torch.uint8).view(1, 4, 4, 3)
    assert read == chosen
    assert torch.equal(augment.normalize(pixels, read), augment.normalize(pixels, chosen))


IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
ODD_SIZES = [(40, 30), (30, 40), (97, 31), (24, 24), (9, 11), (200, 1), (1, 200), (1, 1)]
DECODERS: list[Any] = ["auto", "exact", "fast"]
FITS: list[Any] = ["crop", "pad", "stretch"]


@pytest.mark.parametrize("size", ODD_SIZES)
def test_a_crop_is_the_largest_central_square(size: tuple[int, int]) -> None:
    image, side = picture(*size), min(size)
    left, top = (size[0] - side) // 2, (size[1] - side) // 2
    expected = image.resize((16, 16), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
    assert np.array_equal(decode.fit_image(image, 16), expected)


@pytest.mark.parametrize("size", [size for size in ODD_SIZES if 1 not in size])
def test_a_padded_image_is_that_of_pillow(size: tuple[int, int]) -> None:
    chosen = Preprocessing(mean=IMAGENET_MEAN, std=IMAGENET_STD, fit="pad", interpolation="bicubic")
    expected = ImageOps.pad(picture(*size), (24, 24), Image.Resampling.BICUBIC, color=(124, 116, 104))
    assert np.array_equal(decode.fit_image(picture(*size), 24, chosen), expected)


@pytest.mark.parametrize("size", ODD_SIZES)
def test_a_stretched_image_is_scaled_along_both_sides(size: tuple[int, int]) -> None:
    expected = picture(*size).resize((24, 24), Image.Resampling.BILINEAR)
    assert np.array_equal(decode.fit_image(picture(*size), 24, Preprocessing(fit="stretch")), expected)


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("size", ODD_SIZES)
@pytest.mark.parametrize("target", [24, (24, 24), [16, 40], (40, 16)])
def test_every_image_gets_the_size_of_the_model(fit: Any, size: tuple[int, int], target: Any) -> None:
    height, width = shape.height_and_width(target)
    for chosen in (Preprocessing(fit=fit), Preprocessing(fit=fit, interpolation="bicubic")):
        assert decode.fit_image(picture(*size), target, chosen).size == (width, height)
    assert decode.fit_image(picture(*size), target, Preprocessing(crop_ratio=0.8)).size == (width, height)


@pytest.mark.parametrize(
    ("size", "box"), [((40, 40), (0, 10, 40, 30)), ((90, 30), (15, 0, 75, 30)), ((40, 20), (0, 0, 40, 20))]
)
def test_a_crop_is_the_largest_central_part_of_the_models_shape(size: tuple[int, int], box: Any) -> None:
    expected = picture(*size).resize((32, 16), Image.Resampling.BILINEAR, box=box)
    assert np.array_equal(decode.fit_image(picture(*size), [16, 32]), expected)
    assert decode.kept_share(size, [16, 32]) == (box[2] - box[0]) * (box[3] - box[1]) / (size[0] * size[1])


@pytest.mark.parametrize("fit", FITS)
def test_an_image_that_lies_on_its_side_is_decoded_large_enough(tmp_path: Path, fit: Any) -> None:
    path, tags = tmp_path / "a.jpg", Image.Exif()
    tags[ExifTags.Base.Orientation] = 6
    smooth = picture(8, 4).resize((640, 320), Image.Resampling.BICUBIC)
    smooth.transpose(Image.Transpose.ROTATE_90).save(path, exif=tags, quality=95)
    fast, exact = (
        decode.decode_image(path, [20, 40], 0, Preprocessing(fit=fit), draft=draft).astype(int)
        for draft in (True, False)
    )
    assert np.abs(fast - exact).mean() < 2
    assert np.abs(exact - np.asarray(decode.fit_image(smooth, [20, 40], Preprocessing(fit=fit)))).mean() < 4


@pytest.mark.parametrize("mean", [(0.5,), IMAGENET_MEAN])
def test_the_border_is_about_zero_for_the_network(mean: tuple[float, ...]) -> None:
    chosen = Preprocessing(mean=mean, std=(0.25,) * len(mean), fit="pad")
    padded = np.array(decode.fit_image(picture(40, 10), 24, chosen))
    values = augment.normalize(torch.from_numpy(padded)[None], chosen)[0]
    assert values[:, 0].abs().max() < 0.01
    assert values[:, 12].abs().max() > 0.1


def write_folder(root: Path, size: tuple[int, int] = (40, 10)) -> Path:
    for name, value in (("a", 50), ("b", 200)):
        (root / name).mkdir(parents=True)
        for number in range(4):
            noise = np.random.default_rng(value + number).integers(0, value, (size[1], size[0], 3), np.uint8)
            Image.fromarray(noise).save(root / name / f"{number}.png")
    return root


def folder_config(root: Path, **keys: Any) -> DataConfig:
    return DataConfig(name="folder", root=str(root), **({"image_size": 8, "val_fraction": 0.5} | keys))


@pytest.mark.parametrize("fit", FITS)
def test_predict_reads_an_image_as_training_does(tmp_path: Path, fit: Any) -> None:
    data = folder_config(write_folder(tmp_path), fit=fit)
    splits, chosen = registry.open_splits(data), preprocessing.configured_preprocessing(data)
    read = splits.validation.read(np.arange(1))[0].numpy()
    path = Path(splits.validation.paths[0])  # type: ignore[attr-defined]
    assert np.array_equal(inputs.read_image(path, splits.shape, chosen), read)


def test_an_evaluation_of_all_images_fits_them_too(tmp_path: Path) -> None:
    splits = registry.open_splits(folder_config(write_folder(tmp_path), fit="pad"))
    with_all = with_all_as_validation(splits)
    assert torch.equal(with_all.validation.read(np.arange(4)), splits.training.read(np.arange(4)))


def test_each_fit_has_a_cache_of_its_own_with_the_same_pixels(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "images")
    paths = set()
    for keys in (
        {},
        {"image_size": [8, 8]},
        {"image_size": [8, 6]},
        {"fit": "pad"},
        {"fit": "pad", "normalize": {"mean": [0.1], "std": [0.2]}},
        {"fit": "stretch"},
        {"decode": "exact"},
    ):
        data = folder_config(root, cache=str(tmp_path / "cache"), **keys)
        opened = registry.open_splits(data)
        cached = decoded_cache.use_cache(opened, data, SINGLE_RANK, Heartbeat())
        assert torch.equal(cached.training.read(np.arange(4)), opened.training.read(np.arange(4)))
        paths.add(cached.training.cache.path)  # type: ignore[attr-defined]
    assert len(paths) == 6  # [8, 8] is 8


@pytest.mark.parametrize("fit", ["pad", "stretch"])
def test_an_image_that_is_kept_whole_loses_no_border(fit: Any) -> None:
    published = Preprocessing(crop_ratio=0.875, interpolation="bicubic")
    data = DataConfig(fit=fit)
    assert preprocessing.configured_preprocessing(data, published) == replace(published, crop_ratio=1.0, fit=fit)
    checks.refuse_conflicts(RunConfig(data=preprocessing.set_preprocessing(data, published)))
    with pytest.raises(Failure, match="keeps whole images") as caught:
        checks.refuse_conflicts(RunConfig(data=DataConfig(fit=fit, crop_ratio=0.875)))
    assert caught.value.code == 64


def test_without_the_key_nothing_changes() -> None:
    assert preprocessing.configured_preprocessing(DataConfig()) == DEFAULT_PREPROCESSING == Preprocessing()


@pytest.mark.parametrize("loader_name", ["memory", "workers"])
def test_training_and_evaluation_have_the_height_and_the_width(tmp_path: Path, loader_name: Any) -> None:
    data = folder_config(write_folder(tmp_path), image_size=[8, 16], loader=loader_name, workers=0, augment="standard")
    splits = registry.open_splits(data)
    assert splits.shape == registry.configured_shape(data) == Shape(channels=3, size=(8, 16))
    opened = loader.open_loader(splits, data, seed=0, device=torch.device("cpu"), cores=1)
    micro_batch = MicroBatch(step=0, number=0, epoch=0, samples=np.arange(3))
    ((_, batch),) = opened.train([micro_batch])
    (validation,) = opened.evaluate([np.arange(2)])
    assert (batch["image"].shape, validation["image"].shape) == ((3, 3, 8, 16), (2, 3, 8, 16))


def test_a_random_crop_is_scaled_to_the_height_and_the_width(tmp_path: Path) -> None:
    data = folder_config(write_folder(tmp_path), image_size=[8, 16], workers=0, augment=["random_resized_crop"])
    opened = loader.open_loader(registry.open_splits(data), data, seed=0, device=torch.device("cpu"), cores=1)
    ((_, batch),) = opened.train([MicroBatch(step=0, number=0, epoch=0, samples=np.arange(3))])
    assert batch["image"].shape == (3, 3, 8, 16)


def test_drawn_samples_have_the_height_and_the_width() -> None:
    data = DataConfig(image_size=[8, 16], frames=3, samples=10)
    splits = registry.open_splits(data)
    assert splits.shape == registry.configured_shape(data)
    assert splits.training.read(np.arange(2)).shape == (2, 3, 8, 16, 3)


def test_published_images_stay_squares() -> None:
    registry.refuse_inapplicable_keys(DataConfig(name="cifar10", image_size=[24, 24]))
    with pytest.raises(Failure, match="image_size does not go with"):
        registry.refuse_inapplicable_keys(DataConfig(name="cifar10", image_size=[24, 32]))


def test_a_model_for_squares_says_so() -> None:
    model, samples = ModelConfig(name="vit_b_16"), Shape(channels=3, size=(32, 64))
    with pytest.raises(Failure) as caught:
        models.build_model(model, classes=2, shape=samples, seed=0)
    assert "set data.image_size to one number, such as 64" in caught.value.fix


GRAY = [("a.png", "L"), ("a.jpg", "L"), ("b.png", "1"), ("c.png", "LA"), ("d.png", "I;16"), ("e.tif", "I;16")]


@pytest.mark.parametrize(("name", "mode"), GRAY)
@pytest.mark.parametrize("fit", FITS)
def test_a_gray_image_has_one_channel_with_the_values_of_its_rgb_copy(
    tmp_path: Path, name: str, mode: str, fit: Any
) -> None:
    values = np.random.default_rng(0).integers(0, 65536, (20, 30), np.uint16)
    image = Image.fromarray(values) if mode == "I;16" else picture(30, 20).convert(mode)
    image.save(tmp_path / name)
    chosen = Preprocessing(fit=fit)
    gray = decode.decode_image(tmp_path / name, 8, 0, chosen, channels=1)
    assert gray.shape == (8, 8, 1)
    assert np.array_equal(np.repeat(gray, 3, axis=2), decode.decode_image(tmp_path / name, 8, 0, chosen))


def test_colours_become_gray_after_scaling(tmp_path: Path) -> None:
    picture(30, 20).save(tmp_path / "a.png")
    scaled = Image.fromarray(decode.decode_image(tmp_path / "a.png", 8, 0)).convert("L")
    assert np.array_equal(decode.decode_image(tmp_path / "a.png", 8, 0, channels=1)[..., 0], scaled)


@pytest.mark.parametrize("augmentation", ["standard", "micrographs", "photos"])
def test_gray_files_are_trained_on_with_one_channel(tmp_path: Path, augmentation: str) -> None:
    root = write_folder(tmp_path / "images")
    data = folder_config(
        root, color="gray", cache=str(tmp_path / "c") if augmentation == "standard" else None, augment=augmentation
    )
    splits = registry.open_splits(data)
    assert splits.shape == registry.configured_shape(data) == Shape(channels=1, size=(8, 8))
    opened = loader.open_loader(splits, replace(data, workers=0), seed=0, device=torch.device("cpu"), cores=1)
    ((_, batch),) = opened.train([MicroBatch(step=0, number=0, epoch=0, samples=np.arange(4))])
    (validation,) = opened.evaluate([np.arange(2)])
    assert (batch["image"].shape, validation["image"].shape) == ((4, 1, 8, 8), (2, 1, 8, 8))
    path = Path(splits.validation.paths[0])  # type: ignore[attr-defined]
    read = augment.normalize(torch.from_numpy(np.array(inputs.read_image(path, splits.shape)))[None])
    assert torch.equal(read[0], validation["image"][0])


def test_pictures_of_a_data_set_of_ones_own_become_gray() -> None:
    items, labels = [(picture(30, 20), 0), (picture(20, 30), 1)], torch.tensor([0, 1])
    source = custom.open_dataset_source(items, labels, (8, 16), "mine:make", channels=1)
    expected = Image.fromarray(np.asarray(decode.fit_image(picture(30, 20), (8, 16)))).convert("L")
    assert np.array_equal(source.read(np.arange(2))[0, ..., 0], expected)


def test_arrays_do_not_become_gray() -> None:
    items, labels = [(np.zeros((8, 8, 3), np.uint8), 0)], torch.tensor([0])
    assert custom.open_dataset_source(items, labels, 8, "mine:make").first == ((8, 8, 3), torch.uint8)
    with pytest.raises(Failure, match="converts image files and PIL images only") as caught:
        custom.open_dataset_source(items, labels, 8, "mine:make", channels=1)
    assert caught.value.code == 64


@pytest.mark.parametrize("name", ["synthetic", "cifar10", "npz"])
def test_gray_is_refused_where_it_would_do_nothing(name: str) -> None:
    with pytest.raises(Failure, match="color does not go with"):
        registry.refuse_inapplicable_keys(DataConfig(name=name, color="gray"))


def photograph(path: Path, orientation: int = 1) -> Path:
    """A JPEG of 640 x 400 pixels without sharp edges, or one that lies on its side."""
    tags, image = Image.Exif(), picture(16, 10).resize((640, 400), Image.Resampling.BICUBIC)
    tags[ExifTags.Base.Orientation] = orientation
    (image.transpose(Image.Transpose.ROTATE_90) if orientation == 6 else image).save(path, exif=tags, quality=95)
    return path


def difference(first: Any, second: Any) -> float:
    return float(np.abs(first.astype(int) - second.astype(int)).mean())


def test_exact_decodes_whole_images_in_full(tmp_path: Path) -> None:
    path = photograph(tmp_path / "a.jpg")
    of = {name: decode.decode_image(path, 32, 0, Preprocessing(decode=name)) for name in DECODERS}
    with Image.open(path) as image:
        assert np.array_equal(of["exact"], decode.fit_image(image.convert("RGB"), 32))
    assert np.array_equal(of["fast"], of["auto"])
    assert 0 < difference(of["fast"], of["exact"]) < 2


@pytest.mark.parametrize("orientation", [1, 6])
def test_fast_decodes_random_crops_at_a_reduced_size(tmp_path: Path, orientation: int) -> None:
    path = photograph(tmp_path / "a.jpg", orientation)
    of = {
        name: decode.decode_crop(
            path, [24, 32], 0, lambda height, width: (50, 100, 200, 300), Preprocessing(decode=name)
        )
        for name in DECODERS
    }
    assert np.abs(of["auto"].astype(int) - of["exact"]).max() <= 1
    assert 0 < difference(of["fast"], of["exact"]) < 2


@pytest.mark.parametrize("name", ["a.png", "small.jpg"])
def test_what_cannot_be_reduced_is_decoded_alike(tmp_path: Path, name: str) -> None:
    picture(40, 30).save(tmp_path / name)
    of = [
        (
            decode.decode_image(tmp_path / name, 24, 0, Preprocessing(decode=decoder)),
            decode.decode_crop(
                tmp_path / name, 24, 0, lambda height, width: (2, 3, 25, 26), Preprocessing(decode=decoder)
            ),
        )
        for decoder in DECODERS
    ]
    for image, crop in of[1:]:
        assert np.array_equal(image, of[0][0])
        assert np.abs(crop.astype(int) - of[0][1]).max() <= 1


def test_random_crops_of_a_jpeg_with_a_flaw_that_pillow_reads_are_read(tmp_path: Path) -> None:
    path = photograph(tmp_path / "a.jpg")
    content = path.read_bytes()
    middle = len(content) // 2
    path.write_bytes(content[:middle] + b"\xff\xd0" + content[middle:])
    with pytest.raises(ValueError, match="Corrupt JPEG data"):
        simplejpeg.decode_jpeg(path.read_bytes())
    read = decode.decode_crop(path, 24, 0, lambda height, width: (0, 0, 400, 640))
    with Image.open(path) as image:
        assert np.array_equal(read, decode.crop_image(image, 24, lambda height, width: (0, 0, 400, 640)))


def test_random_crops_of_half_a_jpeg_are_refused(tmp_path: Path) -> None:
    path = photograph(tmp_path / "a.jpg")
    path.write_bytes(path.read_bytes()[:4000])
    with pytest.raises(Failure, match="image 7 cannot be read") as caught:
        decode.decode_crop(path, 24, 7, lambda height, width: (0, 0, 200, 300))
    assert "truncated" in str(caught.value.found)


def test_predict_decodes_in_full_if_training_did(tmp_path: Path) -> None:
    path, chosen = photograph(tmp_path / "a.jpg"), Preprocessing(decode="exact")
    read = inputs.read_image(path, Shape(channels=3, size=(32, 32)), chosen)
    assert np.array_equal(read, decode.decode_image(path, 32, 0, chosen, draft=False))


@pytest.mark.parametrize(("size", "share"), [((40, 40), 1.0), ((40, 20), 0.5), ((20, 80), 0.25)])
def test_a_crop_keeps_a_share_of_the_area(size: tuple[int, int], share: float) -> None:
    assert decode.kept_share(size, 8) == share


def test_gray_networks_read_fitted_images_too(tmp_path: Path) -> None:
    picture(40, 10).save(tmp_path / "a.png")
    read = inputs.read_image(tmp_path / "a.png", Shape(channels=1, size=(8, 8)), Preprocessing(fit="pad"))
    assert read.shape == (8, 8, 1)
    assert (read[0] == 128).all()


DOCS = Path(__file__).parents[3] / "docs" / "evidence" / "recipes.md"
TORCHVISION = (
    "resnet50.IMAGENET1K_V1",
    "resnet50.IMAGENET1K_V2",
    "densenet121.IMAGENET1K_V1",
    "inception_v3.IMAGENET1K_V1",
    "mobilenet_v3_large.IMAGENET1K_V2",
    "efficientnet_b3.IMAGENET1K_V1",
    "efficientnet_v2_s.IMAGENET1K_V1",
    "regnet_y_400mf.IMAGENET1K_V2",
    "convnext_tiny.IMAGENET1K_V1",
    "swin_t.IMAGENET1K_V1",
    "vit_b_16.IMAGENET1K_V1",
)
TIMM = (
    "timm/resnet50.a1_in1k",
    "timm/resnet50.a3_in1k",
    "timm/resnet18.fb_swsl_ig1b_ft_in1k",
    "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k",
    "timm/deit_tiny_patch16_224.fb_in1k",
    "timm/convnext_tiny.fb_in22k",
    "timm/efficientnet_b0.ra_in1k",
    "timm/swin_tiny_patch4_window7_224.ms_in1k",
    "timm/mobilenetv3_large_100.ra_in1k",
)
CUT_FIRST = "efficientnet_v2_s.IMAGENET1K_V1"  # its crop ratio is 1: ours cuts the square before it scales, not after
PHOTO_SIZES = [(300, 200), (97, 310), (640, 480)]


def own_transform(name: str, image: Image.Image) -> torch.Tensor:
    """What the library that published the weights makes of an image, [3, side, side]."""
    model, _, tag = name.partition(".")
    if model.startswith("timm/"):
        record = timm.data.resolve_data_config(timm.get_pretrained_cfg(name.removeprefix("timm/")).to_dict())
        made: torch.Tensor = timm.data.create_transform(**record, is_training=False)(image)
    else:
        made = get_model_weights(model)[tag].transforms()(image)
    return made


@pytest.mark.parametrize("name", [name for name in (*TORCHVISION, *TIMM) if name != CUT_FIRST])
def test_published_weights_are_evaluated_on_their_own_librarys_pixels(name: str) -> None:
    record = pretrained.find_published(name).record
    assert record.name == name
    for size in PHOTO_SIZES:
        image = picture(*size)
        pixels = np.array(decode.fit_image(image, record.image_size[0], record.preprocessing))
        own = augment.normalize(torch.from_numpy(pixels)[None], record.preprocessing)[0]
        torch.testing.assert_close(own, own_transform(name, image), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [*TORCHVISION, *TIMM])
def test_the_docs_list_their_records(name: str) -> None:
    record = pretrained.find_published(name).record
    row = re.search(rf"^\| `{re.escape(name)}` \| (.*) \|$", DOCS.read_text(), re.MULTILINE)
    assert row is not None
    transform = record.preprocessing
    cells = [str(record.image_size[0]), f"{transform.crop_ratio:.4g}", transform.interpolation]
    assert row[1].split(" | ")[:3] == cells
