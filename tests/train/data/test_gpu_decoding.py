"""What data.decode: gpu does around the GPU. A CPU decodes here; tests/gpu/test_gpu.py shows a GPU."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from entrypoint import Failure
from train.config.schema import DataConfig
from train.data import gpu_decoding, loader, registry
from train.data.augmenter import build_augmenter
from train.data.boxes import CropDraws
from train.data.gpu_decoding import GpuDecoder
from train.data.loader import BatchLoader
from train.data.preprocessing import configured_preprocessing
from train.data.sampler import MicroBatch
from train.data.splits import EncodedImageSource

CPU = torch.device("cpu")
IMAGES = 12


def jpeg(number: int, *, mode: str = "RGB", format: str = "JPEG", **settings: Any) -> bytes:
    """A picture with smooth colours, of its own size."""
    down, across = np.mgrid[: 40 + number, : 70 - number]
    pixels = np.stack([3 * down + number, 2 * across, down + across], axis=-1).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(stream, format, **settings)
    return stream.getvalue()


def sideways(number: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return jpeg(number, exif=exif)


# What a worker decodes: the GPU gets these wrong, or cannot decode them.
FOR_THE_CPU: dict[str, Callable[[int], bytes]] = {
    "PNG": partial(jpeg, format="PNG"),
    "gray": partial(jpeg, mode="L"),
    "CMYK": partial(jpeg, mode="CMYK"),
    "turned by EXIF": sideways,
    "without luma": partial(jpeg, keep_rgb=True),
}


@pytest.fixture
def photos(tmp_path: Path) -> DataConfig:
    """JPEG files of several sizes in two classes."""
    for number in range(IMAGES):
        folder = tmp_path / "photos" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:02d}.jpg").write_bytes(jpeg(number))
    root = str(tmp_path / "photos")
    return DataConfig(name="folder", root=root, image_size=16, val_fraction=0.0, augment="imagenet", decode="gpu")


def source_and_draws(data: DataConfig) -> tuple[EncodedImageSource, CropDraws]:
    splits = registry.open_splits(data)
    draws = build_augmenter(splits, data, seed=0).crop_draws(np.arange(IMAGES), epoch=1)
    assert isinstance(splits.training, EncodedImageSource)
    assert draws is not None
    return splits.training, draws


def opened(data: DataConfig, monkeypatch: pytest.MonkeyPatch | None = None, **settings: Any) -> BatchLoader:
    """A loader. monkeypatch: has a CPU do what a GPU would."""
    data = replace(data, **settings)
    if monkeypatch is not None:
        preprocessing = configured_preprocessing(data)
        monkeypatch.setattr(loader, "decoder_for", lambda *facts: GpuDecoder(CPU, (16, 16), preprocessing, facts[-1]))
    return loader.open_loader(registry.open_splits(data), data, seed=0, device=CPU, cores=2)


def batches(opened: BatchLoader) -> list[torch.Tensor]:
    """The images of six micro batches in two epochs."""
    micro_batches = [
        MicroBatch(step=step, epoch=step // 3, number=0, samples=np.arange(4 * step, 4 * step + 4) % IMAGES)
        for step in range(6)
    ]
    given = list(opened.train(micro_batches))
    assert [micro_batch.step for micro_batch, _ in given] == list(range(6))
    return [batch["image"] for _, batch in given]


def test_boxes_that_are_decoded_later_have_the_pixels_of_those_that_workers_decode(photos: DataConfig) -> None:
    source, draws = source_and_draws(photos)
    encoded = gpu_decoding.read_encoded(source, np.arange(IMAGES), draws)
    assert (len(encoded.rows), encoded.decoded) == (IMAGES, None)
    pixels = GpuDecoder(CPU, (16, 16), source.preprocessing, print).decode(encoded)
    expected = source.read_cropped(np.arange(IMAGES), draws)
    assert (pixels.int() - expected.int()).abs().max() <= 1


@pytest.mark.parametrize("kind", FOR_THE_CPU)
def test_what_a_gpu_cannot_decode_is_decoded_by_a_worker(photos: DataConfig, kind: str) -> None:
    """Among others, in its row of the batch."""
    for number in (3, 8):
        (Path(photos.root) / "ab"[number % 2] / f"{number:02d}.jpg").write_bytes(FOR_THE_CPU[kind](number))
    source, draws = source_and_draws(photos)
    encoded = gpu_decoding.read_encoded(source, np.arange(IMAGES), draws)
    expected = source.read_cropped(np.arange(IMAGES), draws)
    others = [row for row, path in enumerate(source.paths) if Path(path).stem in ("03", "08")]
    assert encoded.other_rows().tolist() == others
    pixels = GpuDecoder(CPU, (16, 16), source.preprocessing, print).decode(encoded)
    assert torch.equal(pixels[others], expected[others])
    assert (pixels.int() - expected.int()).abs().max() <= 1


def test_a_batch_may_have_no_jpeg(photos: DataConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(IMAGES):
        (Path(photos.root) / "ab"[number % 2] / f"{number:02d}.jpg").write_bytes(jpeg(number, format="PNG"))
    usual, later = batches(opened(photos, decode="auto")), batches(opened(photos, monkeypatch, workers=1))
    assert all(torch.equal(expected, images) for expected, images in zip(usual, later, strict=True))


def test_large_images_are_decoded_in_parts(photos: DataConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    source, draws = source_and_draws(photos)
    expected = GpuDecoder(CPU, (16, 16), source.preprocessing, print).decode(
        gpu_decoding.read_encoded(source, np.arange(IMAGES), draws)
    )
    monkeypatch.setattr(gpu_decoding, "MAX_PIXELS_AT_ONCE", 10_000)
    encoded = gpu_decoding.read_encoded(source, np.arange(IMAGES), draws)
    parts = encoded.parts()
    assert len(parts) > 3
    assert all(encoded.sizes[part].prod(axis=1).sum() <= 10_000 for part in parts)
    assert [row for part in parts for row in range(IMAGES)[part]] == list(range(IMAGES))
    assert torch.equal(GpuDecoder(CPU, (16, 16), source.preprocessing, print).decode(encoded), expected)


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("augment", ["imagenet", ["random_resized_crop", "vertical_flip", "rotate90"]])
def test_batches_are_those_of_data_workers(
    photos: DataConfig, workers: int, augment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, with their labels; the operations on pixels come after decoding, with the same draws."""
    usual = batches(opened(photos, decode="auto", workers=0, augment=augment))
    later = batches(opened(photos, monkeypatch, workers=workers, augment=augment))
    for expected, images in zip(usual, later, strict=True):
        assert (expected - images).abs().max() < 0.04  # two of 255, normalized


@pytest.mark.parametrize("damage", ["cut short", "no Huffman table"])
def test_another_image_takes_the_place_of_a_broken_one(
    photos: DataConfig, damage: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same one as with data workers, whether the worker or the GPU notices it."""
    content = jpeg(5)
    table = content.index(b"\xff\xc4") + 5
    broken = content[:300] if damage == "cut short" else content[:table] + b"\xff" * 16 + content[table + 16 :]
    (Path(photos.root) / "b" / "05.jpg").write_bytes(broken)
    settings = {"max_bad_images": 1, "workers": 1}
    usual = batches(opened(photos, decode="auto", **settings))
    later = batches(opened(photos, monkeypatch, **settings))
    assert all((expected - images).abs().max() < 0.04 for expected, images in zip(usual, later, strict=True))
    assert capsys.readouterr().err.count("05.jpg") == 2  # once by each loader


def test_a_gpu_that_cannot_decode_a_batch_leaves_it_to_the_cpu_and_says_so_once(
    photos: DataConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("Failed to decode jpeg: 7\nat some place")

    usual = batches(opened(photos, decode="auto", workers=1))
    monkeypatch.setattr(gpu_decoding, "decode_jpegs", fail)
    taken = batches(opened(photos, monkeypatch, workers=1))
    assert all(torch.equal(expected, images) for expected, images in zip(usual, taken, strict=True))
    printed = capsys.readouterr().err
    assert (printed.count("the GPU cannot decode a batch"), printed.count("Failed to decode jpeg: 7")) == (1, 1)


def test_a_gpu_without_memory_is_no_broken_image(photos: DataConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(gpu_decoding, "decode_jpegs", fail)
    with pytest.raises(torch.OutOfMemoryError):
        batches(opened(photos, monkeypatch, workers=1))


@pytest.mark.parametrize(
    ("settings", "device", "problem"),
    [
        ({}, "cpu", "--device cpu"),
        ({"augment": "standard"}, "cuda", "no random_resized_crop"),
        ({"color": "gray"}, "cuda", "data.color: gray"),
        ({"name": "synthetic", "image_size": 16}, "cuda", "data.name: synthetic"),
    ],
)
def test_a_training_that_cannot_use_it_is_refused(
    photos: DataConfig, settings: dict[str, Any], device: str, problem: str
) -> None:
    data = replace(photos, **settings)
    splits = registry.open_splits(data)
    with pytest.raises(Failure, match="decodes JPEG files on a GPU") as caught:
        gpu_decoding.refuse_gpu_decoding(data, splits, build_augmenter(splits, data, 0), torch.device(device))
    assert (caught.value.code, problem in str(caught.value.found)) == (64, True)


def test_a_torchvision_that_cannot_decode_on_a_gpu_does_not_fit(
    photos: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("decode_jpegs_cuda: torchvision not compiled with nvJPEG support")

    monkeypatch.setattr(gpu_decoding, "decode_jpegs", fail)
    splits = registry.open_splits(photos)
    with pytest.raises(Failure, match="torchvision does not decode") as caught:
        gpu_decoding.refuse_gpu_decoding(photos, splits, build_augmenter(splits, photos, 0), torch.device("cuda"))
    assert (caught.value.code, "nvJPEG" in str(caught.value.found)) == (72, True)


def test_without_a_gpu_a_run_is_evaluated_as_with_one(photos: DataConfig) -> None:
    """A laptop reads what a GPU was trained on."""
    assert opened(photos).description == "1 worker"
