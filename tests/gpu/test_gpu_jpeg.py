"""What a real GPU makes of JPEGs (data.decode: gpu). `pytest tests/gpu/test_gpu_jpeg.py -n 8` takes a minute."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gpu_trainings import bits, losses, run_program, train, write_photos
from PIL import Image

from train.config import augmentations
from train.data.batch import Batch
from train.data.boxes import CropDraws
from train.data.gpu_decoding import GpuDecoder, read_encoded
from train.data.operations import draw_numbers
from train.data.preprocessing import DEFAULT_PREPROCESSING
from train.data.splits import ImageFileSource, SampleIndices
from train.data.workers import SkipUnreadable

pytestmark = pytest.mark.timeout(400)
if not torch.cuda.is_available():
    pytest.skip("gpu: none on this machine", allow_module_level=True)

DECODE = ("data.decode=gpu", "data.augment=imagenet")
SIZE = (64, 64)
KINDS: dict[str, dict[str, Any]] = {
    "4:2:0": {"subsampling": 2},
    "4:2:2": {"subsampling": 1},
    "4:4:4": {"subsampling": 0},
    "progressive": {"progressive": True},
    "restart markers": {"restart_marker_blocks": 4},
    "quality 100": {"quality": 100},
}


def jpeg(number: int, **settings: Any) -> bytes:
    """A picture with smooth colours and some noise, of its own size."""
    down, across = np.mgrid[: 150 + number, : 200 - number]
    noise = np.random.default_rng(number).integers(0, 30, (*down.shape, 1))
    pixels = np.stack([down, across, 255 - (down + across) // 2], axis=-1) * 0.8 + noise
    stream = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(stream, "JPEG", **{"quality": 90, **settings})
    return stream.getvalue()


def source_of(folder: Path, files: Sequence[bytes]) -> ImageFileSource:
    paths = [folder / f"{number:03d}.jpg" for number in range(len(files))]
    for path, content in zip(paths, files, strict=True):
        path.write_bytes(content)
    return ImageFileSource(list(map(str, paths)), torch.zeros(len(files), dtype=torch.int64), SIZE)


def draws(count: int) -> CropDraws:
    (step,) = augmentations.expand(["random_resized_crop"])
    return CropDraws(draw_numbers(step, np.arange(count), seed=0, epoch=0), step.arguments)


def decoder(lines: list[str]) -> GpuDecoder:
    return GpuDecoder(torch.device("cuda", 0), SIZE, DEFAULT_PREPROCESSING, lines.append)


@pytest.mark.parametrize("kind", KINDS)
def test_its_pixels_are_near_those_of_a_cpu(tmp_path: Path, kind: str) -> None:
    source = source_of(tmp_path, [jpeg(number, **KINDS[kind]) for number in range(20)])
    batch = read_encoded(source, np.arange(20), draws(20))
    assert batch.decoded is None
    pixels = decoder([]).decode(batch).cpu()
    differences = (pixels.int() - source.read_cropped(np.arange(20), draws(20)).int()).abs().float()
    assert differences.mean() < 1.5
    assert differences.max() <= 24


def test_an_image_has_the_same_pixels_in_any_batch(tmp_path: Path) -> None:
    source, samples = source_of(tmp_path, [jpeg(number) for number in range(40)]), np.arange(40)
    all_images = decoder([]).decode(read_encoded(source, samples, draws(40)))
    for part in np.array_split(samples, 7):
        of_part = CropDraws(draws(40).numbers[:, part], draws(40).arguments)
        assert torch.equal(decoder([]).decode(read_encoded(source, part, of_part)), all_images[part])


def test_damaged_bytes_do_no_harm(tmp_path: Path) -> None:
    """nvJPEG decodes most of them to something, as libjpeg does. The GPU decodes the next batch."""
    noise, files = np.random.default_rng(0), [jpeg(number) for number in range(64)]
    for number in range(0, 64, 2):
        damaged = bytearray(files[number])
        for position in noise.integers(2, len(damaged) - 2, 6):
            damaged[position] = noise.integers(256)
        files[number] = bytes(damaged)
    source, lines = source_of(tmp_path, files), list[str]()
    tolerant = SkipUnreadable(source.read, 64, most=64, replace=True)
    requests = [np.arange(first, first + 4) for first in range(0, 64, 4)]
    read = partial(read_encoded, source, draws=draws(4))
    encoded = [(part, part, {"image": tolerant.read(part, read)[0]}) for part in requests]

    def read_again(_: object, samples: SampleIndices) -> tuple[Batch | None, SampleIndices, dict[int, str]]:
        pixels, taken, bad = tolerant.read(samples, partial(source.read_cropped, draws=draws(4)))
        return (None if pixels is None else {"image": pixels}), taken, bad

    batches = list(decoder(lines).decode_ahead(encoded, read_again))
    assert [batch["image"].shape for *_, batch, _ in batches if batch is not None] == [(4, *SIZE, 3)] * 16
    print(lines)


def test_a_training_learns_and_is_continued_with_the_same_bits(tmp_path: Path) -> None:
    write_photos(tmp_path)
    uninterrupted = train(tmp_path, *DECODE, name="whole")
    assert sum(losses(uninterrupted)[-4:]) < sum(losses(uninterrupted)[:4])
    train(tmp_path, *DECODE, "train.max_steps=7", name="stopped")
    assert bits(train(tmp_path, *DECODE, name="stopped")) == bits(uninterrupted)


def test_shards_are_decoded_as_their_files_are(tmp_path: Path) -> None:
    """The operations on pixels follow on the GPU."""
    write_photos(tmp_path)
    run_program(tmp_path, "train", "data", "pack", "photos", "--output", "shards")
    settings = ("data.name=shards", "data.root=shards", "data.decode=gpu", "data.workers=2")
    run = train(tmp_path, *settings, "data.augment=[random_resized_crop, rand_augment, random_erasing]")
    assert sum(losses(run)[-4:]) < sum(losses(run)[:4])
