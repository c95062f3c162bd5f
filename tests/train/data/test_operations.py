"""The pixels of each operation, compared with torchvision's transforms v2 and timm's with the same parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import auto_augment
from timm.data.random_erasing import RandomErasing
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from train.config import augmentations
from train.config.augmentations import Step
from train.data import boxes, operations, timm_policy

SAMPLES = np.arange(400)


def images(count: int = 8, side: int = 24, channels: int = 3) -> Tensor:
    """Images of noise and of smooth gray, uint8 [n, channels, side, side + 4]."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (count, channels, side, side + 4), dtype=torch.uint8, generator=generator)
    noise[::2] = (torch.arange(side + 4) * 8).clamp(max=255).to(torch.uint8)
    return noise


def step(name: str, **arguments: Any) -> Step:
    (made,) = augmentations.expand([{name: arguments}])
    return made


def applied(name: str, batch: Tensor, **arguments: Any) -> Tensor:
    return operations.apply_step(batch, step(name, **arguments), SAMPLES[: len(batch)], seed=1, epoch=2)


def numbers(name: str, **arguments: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    return operations.draw_numbers(step(name, **arguments), SAMPLES, seed=1, epoch=2)


def test_the_table_of_pixels_has_the_operations_of_the_table_of_names() -> None:
    listed = {name for name, entry in augmentations.OPERATIONS.items() if entry.stage in ("image", "pixels", "values")}
    assert set(operations.BATCH_OPERATIONS) == listed


def test_no_two_operations_share_their_random_numbers() -> None:
    streams = [entry.stream for entry in operations.BATCH_OPERATIONS.values()]
    assert len(set(streams)) == len(streams)
    assert min(streams) * operations.STREAMS_PER_OPERATION > 5  # those of standard, translate, mirror and cutout
    for name, entry in operations.BATCH_OPERATIONS.items():
        assert entry.draws(step(name).arguments) <= operations.STREAMS_PER_OPERATION


@pytest.mark.parametrize("name", operations.BATCH_OPERATIONS)
@pytest.mark.parametrize("channels", [1, 3])
def test_a_samples_pixels_do_not_depend_on_its_batch(name: str, channels: int) -> None:
    batch = images(channels=channels)
    normalized = batch.float() if augmentations.OPERATIONS[name].stage == "values" else batch
    changed = applied(name, normalized.clone())
    assert changed.shape == batch.shape
    for row in range(len(batch)):
        alone = operations.apply_step(
            normalized[row : row + 1].clone(), step(name), SAMPLES[row : row + 1], seed=1, epoch=2
        )
        assert torch.equal(alone[0], changed[row])


@pytest.mark.parametrize("name", ["horizontal_flip", "vertical_flip", "grayscale"])
def test_probability_0_changes_nothing_and_1_all(name: str) -> None:
    batch = images(side=20)[1::2]
    assert torch.equal(applied(name, batch, p=0), batch)
    changed = applied(name, batch, p=1)
    assert all(not torch.equal(after, before) for after, before in zip(changed, batch, strict=True))


@pytest.mark.parametrize(
    ("name", "operator"),
    [
        ("horizontal_flip", F.horizontal_flip),
        ("vertical_flip", F.vertical_flip),
        ("grayscale", lambda image: F.rgb_to_grayscale(image, num_output_channels=3)),
    ],
)
def test_flips_and_grayscale_are_torchvisions_to_the_pixel(name: str, operator: Any) -> None:
    assert torch.equal(applied(name, images(), p=1), torch.stack([operator(image) for image in images()]))


def test_rotations_by_90_degrees_are_torchvisions_to_the_pixel() -> None:
    batch = images(count=40)[..., :24]
    quarters = (numbers("rotate90")[0, :40] * 4).astype(int)
    expected = [F.rotate(image, 90.0 * int(turns)) for image, turns in zip(batch, quarters, strict=True)]
    assert set(quarters) == {0, 1, 2, 3}
    assert torch.equal(applied("rotate90", batch), torch.stack(expected))


def test_images_that_are_no_squares_are_turned_by_0_or_180_degrees() -> None:
    batch = images(count=40)
    turned = applied("rotate90", batch)
    kinds = [
        (torch.equal(new, old), torch.equal(new, old.flip(-1, -2))) for new, old in zip(turned, batch, strict=True)
    ]
    assert {(True, False), (False, True)} <= set(kinds)
    assert (False, False) not in kinds


JITTERS = {
    "brightness": F.adjust_brightness,
    "contrast": F.adjust_contrast,
    "saturation": F.adjust_saturation,
    "hue": F.adjust_hue,
}


@pytest.mark.parametrize("name", JITTERS)
@pytest.mark.parametrize("channels", [1, 3])
def test_color_jitter_is_torchvisions_to_one_gray_level(name: str, channels: int) -> None:
    batch, factors = images(channels=channels), np.linspace(-0.4, 0.4, 8) + (name != "hue")
    expected = torch.stack([JITTERS[name](image, float(f)) for image, f in zip(batch, factors, strict=True)])
    difference = (operations.JITTER[name](batch, factors).int() - expected.int()).abs()
    assert int(difference.max()) <= 1
    assert float((difference > 0).float().mean()) < 0.01


def test_color_jitter_draws_the_ranges_and_orders_of_torchvision() -> None:
    drawn = numbers("color_jitter")
    factors = operations.jitter_factors("brightness", drawn[0], 0.4)
    hues = operations.jitter_factors("hue", drawn[3], 0.1)
    assert (factors.min(), factors.max()) == pytest.approx((0.6, 1.4), abs=0.02)
    assert (hues.min(), hues.max()) == pytest.approx((-0.1, 0.1), abs=0.005)
    assert operations.jitter_factors("contrast", np.zeros(1), 3.0) == [0.0]  # not below 0
    assert len({*(drawn[4] * len(operations.JITTER_ORDERS)).astype(int)}) == 24


def test_a_random_crop_is_torchvisions_to_the_pixel() -> None:
    batch = images()
    drawn = boxes.CropDraws(numbers("random_resized_crop"), step("random_resized_crop").arguments)
    expected = [
        F.resized_crop(image, *drawn.box(index, 24, 28), size=[24, 28], antialias=True)
        for index, image in enumerate(batch)
    ]
    assert torch.equal(applied("random_resized_crop", batch), torch.stack(expected))


@pytest.mark.parametrize("name", ["horizontal_flip", "rotate90", "grayscale", "color_jitter"])
def test_few_images_at_once_are_changed_as_many_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    many = applied(name, images())
    monkeypatch.setattr(operations, "CACHED_BYTES", 1)
    assert torch.equal(applied(name, images()), many)


@pytest.mark.parametrize(("height", "width"), [(100, 100), (60, 200), (200, 60), (20, 500), (1, 1)])
def test_random_crops_have_the_areas_and_shapes_of_torchvision(height: int, width: int) -> None:
    transform = v2.RandomResizedCrop(8)
    torch.manual_seed(0)
    crops = [transform.make_params([torch.empty(3, height, width)]) for _ in SAMPLES]
    draws = boxes.CropDraws(numbers("random_resized_crop"), step("random_resized_crop").arguments)
    own_crops = np.array([draws.box(index, height, width) for index in range(len(SAMPLES))])
    assert (own_crops[:, :2] >= 0).all()
    assert (own_crops[:, :2] + own_crops[:, 2:] <= (height, width)).all()
    for column, name in enumerate(("top", "left", "height", "width")):
        expected, drawn = np.array([crop[name] for crop in crops]), own_crops[:, column]
        spread = max(expected.std(), drawn.std(), 1e-9) / np.sqrt(len(SAMPLES))
        assert abs(drawn.mean() - expected.mean()) < 6 * spread
        assert drawn.std() == pytest.approx(expected.std(), rel=0.25, abs=0.5)


def test_random_erasing_sets_one_rectangle_to_the_mean_colour() -> None:
    batch = torch.ones(400, 3, 32, 32)
    erased = applied("random_erasing", batch, p=0.5)
    holes = [(image[0] == 0).nonzero() for image in erased]
    changed = [hole for hole in holes if len(hole)]
    assert 150 < len(changed) < 250
    for hole in changed:
        sides = hole.max(0).values - hole.min(0).values + 1
        assert len(hole) == sides.prod()
        assert 0.015 < len(hole) / 32**2 < 0.36


def test_random_erasing_takes_areas_as_timm_and_torchvision_do() -> None:
    torch.manual_seed(0)
    blank = torch.ones(400, 3, 32, 32)
    own = applied("random_erasing", blank.clone(), p=1.0)
    timms = RandomErasing(probability=1.0, device="cpu")(blank.clone())
    torchvisions = torch.stack([v2.RandomErasing(p=1.0)(image) for image in blank])
    left_out = [(batch == 0).float().mean().item() for batch in (own, timms, torchvisions)]
    assert left_out[0] == pytest.approx(left_out[1], abs=0.02)
    assert left_out[0] == pytest.approx(left_out[2], abs=0.02)


POLICIES = {
    "rand": v2.RandAugment(),
    "trivial": v2.TrivialAugmentWide(),
    "trivial, bilinear": v2.TrivialAugmentWide(interpolation=v2.InterpolationMode.BILINEAR),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("index", range(len(operations.NAMES)))
@pytest.mark.parametrize("level", [0, 9, 17, 30])
def test_policy_operations_are_torchvisions_to_the_pixel(policy: str, index: int, level: int) -> None:
    reference = POLICIES[policy]
    name, (identifier, (magnitudes, signed)) = operations.NAMES[index], [*reference._AUGMENTATION_SPACE.items()][index]
    levels = magnitudes(31, 24, 28)
    strength = 0.0 if levels is None else float(levels[level])
    own_strength = (
        operations.rand_augment_strength(name, level, 24, 28)
        if policy == "rand"
        else operations.trivial_augment_strength(name, level)
    )
    assert levels is None or own_strength == strength
    assert operations.POLICY_OPERATIONS[name].signed == signed
    image = images()[1]
    expected = reference._apply_image_or_video_transform(
        image, identifier, strength, interpolation=reference.interpolation, fill=reference._fill
    )
    assert torch.equal(
        operations.POLICY_OPERATIONS[name].change(image, own_strength, reference.interpolation), expected
    )


def test_every_policy_operation_is_drawn() -> None:
    drawn = (numbers("trivial_augment") * len(operations.NAMES)).astype(int)[0]
    assert set(drawn) == set(range(len(operations.NAMES)))


# Ours -> timm's, with "increasing" and without.
TIMM_NAMES = dict(zip(timm_policy.NAMES, auto_augment._RAND_INCREASING_TRANSFORMS, strict=True))
TIMM_PLAIN_NAMES = dict(zip(timm_policy.NAMES, auto_augment._RAND_TRANSFORMS, strict=True))


@pytest.mark.parametrize("increasing", [True, False])
@pytest.mark.parametrize("name", timm_policy.NAMES)
@pytest.mark.parametrize("magnitude", [0, 3.3, 6, 10])
@pytest.mark.parametrize("sign", [-1, 1])
def test_the_operations_of_timms_variant_are_timms_to_the_pixel(
    monkeypatch: pytest.MonkeyPatch, name: str, magnitude: float, sign: int, increasing: bool
) -> None:
    monkeypatch.setattr(auto_augment.random, "random", lambda: 0.4 if sign == 1 else 0.9)
    fill, mode = (124, 116, 104), Image.Resampling.BICUBIC
    hparams = {"img_mean": fill, "interpolation": mode}
    timm_name = (TIMM_NAMES if increasing else TIMM_PLAIN_NAMES)[name]
    image = Image.fromarray(images()[1].movedim(0, -1).numpy())
    if name == "posterize" and magnitude == (10 if increasing else 0):
        monkeypatch.setitem(auto_augment.NAME_TO_OP, timm_name, lambda img, *_, **__: Image.new(img.mode, img.size))
    expected = auto_augment.AugmentOp(timm_name, prob=1.0, magnitude=magnitude, hparams=hparams)(image)
    drawn = timm_policy.Drawn(level=magnitude / 10, sign=sign, increasing=increasing, fill=fill, interpolation=mode)
    assert np.array_equal(timm_policy.POLICY_OPERATIONS[name](image, drawn), expected)


def test_the_strength_of_timms_variant_is_of_a_normal_distribution_cut_at_10() -> None:
    drawn = np.array([timm_policy.draw_level((n + 0.5) / 2000, 9, 1.0) for n in range(2000)])
    expected = np.clip(np.random.default_rng(0).normal(9, 1.0, 200_000), 0, 10) / 10
    assert drawn.mean() == pytest.approx(expected.mean(), abs=0.001)
    assert drawn.std() == pytest.approx(expected.std(), abs=0.001)
    assert timm_policy.draw_level(0.0, 6, 0.0) == 0.6
    assert timm_policy.draw_level(0.0, 6, 0.5) < timm_policy.draw_level(0.9, 6, 0.5)


def test_a_probability_leaves_operations_of_timms_variant_out() -> None:
    batch = images(count=200, side=8)[1::2]
    kept = [
        sum(torch.equal(*pair) for pair in zip(applied("rand_augment_timm", batch, p=p), batch, strict=True)) / 100
        for p in (0, 0.5)
    ]
    assert kept[0] == 1.0
    assert 0.15 < kept[1] < 0.45  # a quarter without both


def test_noise_in_an_erased_rectangle_is_as_timms() -> None:
    torch.manual_seed(0)
    batch = torch.full((100, 3, 32, 32), 9.0)
    own = applied("random_erasing", batch.clone(), p=1.0, mode="pixel")
    timms = RandomErasing(probability=1.0, mode="pixel", device="cpu")(batch.clone())
    for each in (own[own != 9], timms[timms != 9]):
        assert float(each.mean()) == pytest.approx(0, abs=0.03)
        assert float(each.std()) == pytest.approx(1, abs=0.03)
    assert len(own[own != 9].unique()) > 10_000


def test_a_random_colour_fills_an_erased_rectangle_evenly() -> None:
    erased = applied("random_erasing", torch.full((20, 3, 32, 32), 9.0), p=1.0, mode="color")
    colours = [image[channel][image[channel] != 9].unique() for image in erased for channel in range(3)]
    assert all(len(colour) == 1 for colour in colours)
    assert len(torch.cat(colours).unique()) == 60


def test_a_mode_of_erasing_changes_no_box() -> None:
    batch = torch.full((20, 3, 32, 32), 9.0)
    const, pixel = (applied("random_erasing", batch.clone(), p=0.5, mode=mode) for mode in ("const", "pixel"))
    assert torch.equal(const == 9, pixel == 9)
