"""What a sample is, or why it cannot be read."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from images import write_image
from PIL import ExifTags, Image

from entrypoint import ExitCode, Failure
from train.cli import data_check
from train.data import arrays
from train.data.shape import Shape
from train.data.splits import ImageFileSource, SampleIndices, SampleSource

IMAGES = Shape(channels=3, size=(8, 8))


class Held(SampleSource):
    """Samples in memory; those in `bad` fail."""

    labels: torch.Tensor

    def __init__(self, pixels: torch.Tensor, *bad: int, code: ExitCode = ExitCode.DATA) -> None:
        self.pixels, self.labels, self.bad, self.code = pixels, torch.zeros(len(pixels)), bad, code

    def read(self, samples: SampleIndices) -> torch.Tensor:
        for sample in samples:
            if sample in self.bad:
                raise Failure(f"sample {sample}", found=f"{sample}: cut", fix="-", code=self.code)
        return self.pixels[torch.from_numpy(samples)]


def saved(path: Path, mode: str, **options: object) -> Path:
    noise = np.random.default_rng(0).integers(0, 256, (6, 9, 3), np.uint8)
    Image.fromarray(noise).convert(mode).save(path, **options)  # type: ignore[arg-type]
    return path


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P", "1", "LA"])
def test_a_file_is_its_size_and_its_pillow_mode(tmp_path: Path, mode: str) -> None:
    look = data_check.inspect_file(saved(tmp_path / "a.png", mode), 3)
    assert (look.sample, look.size, look.mode, look.broken) == (3, (9, 6), mode, None)
    assert look.seconds > 0


def test_a_sideways_file_is_looked_at_upright(tmp_path: Path) -> None:
    one, other = saved(tmp_path / "a.png", "RGB"), tmp_path / "b.png"
    with Image.open(one) as image:
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = 6
        image.transpose(Image.Transpose.ROTATE_90).save(other, exif=exif)
    first, second = (data_check.inspect_file(path, 0) for path in (one, other))
    assert (first.size, first.digest) == (second.size, second.digest)


def test_16_bits_are_named(tmp_path: Path) -> None:
    Image.fromarray(np.full((8, 8), 40_000, np.uint16)).save(tmp_path / "a.png")
    assert data_check.inspect_file(tmp_path / "a.png", 0).mode == "I;16"


def test_the_same_pixels_in_another_file_format_are_the_same(tmp_path: Path) -> None:
    one, other = (saved(tmp_path / name, "RGB") for name in ("a.png", "a.bmp"))
    assert data_check.inspect_file(one, 0).digest == data_check.inspect_file(other, 0).digest


def test_the_same_bytes_in_another_shape_are_another_image(tmp_path: Path) -> None:
    one, other = (write_image(tmp_path / f"{w}.png", 5, size=(w, h)) for w, h in ((4, 9), (9, 4)))
    assert data_check.inspect_file(one, 0).digest != data_check.inspect_file(other, 0).digest


def cut(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:60])
    return path


BROKEN: dict[str, Callable[[Path], Path]] = {
    "empty": lambda folder: folder / "empty.png",
    "text": lambda folder: folder / "text.png",
    "cut png": lambda folder: cut(saved(folder / "cut.png", "RGB")),
    "cut jpeg": lambda folder: cut(saved(folder / "cut.jpg", "RGB")),
    "cut gif": lambda folder: cut(saved(folder / "cut.gif", "P")),
    "cut bmp": lambda folder: cut(saved(folder / "cut.bmp", "RGB")),
    "cut webp": lambda folder: cut(saved(folder / "cut.webp", "RGB")),
    "gone": lambda folder: folder / "gone.png",
    "a link to nothing": lambda folder: folder / "link.png",
    "32 bits": lambda folder: saved(folder / "deep.tif", "F"),
}


@pytest.mark.parametrize("make", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_file_is_a_fact_with_path_and_reason(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "link.png").symlink_to("nothing")
    path = make(tmp_path)
    look = data_check.inspect_file(path, 1)
    assert look.broken is not None
    assert look.broken.startswith(f"{path}: ")
    assert (look.digest, look.mode) == (b"", "")


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.ESTALE])
def test_where_the_system_fails_the_check_fails(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Image, "open", fail)
    (tmp_path / "a.png").touch()
    with pytest.raises(Failure) as caught:
        data_check.inspect_file(tmp_path / "a.png", 1)
    assert caught.value.code in (ExitCode.IO, ExitCode.RESOURCE)


@pytest.mark.parametrize(
    ("channels", "size", "dtype", "told"),
    [
        (3, (8, 6), torch.uint8, ((6, 8), "RGB")),
        (1, (8, 6), torch.uint8, ((6, 8), "L")),
        (4, (8, 6), torch.float32, ((6, 8), "4 channels float")),
        (3, (5, 8, 6), torch.uint8, ((6, 8, 5), "RGB")),
    ],
)
def test_samples_of_arrays_have_the_shape_of_the_set(
    channels: int, size: tuple[int, ...], dtype: torch.dtype, told: tuple[tuple[int, ...], str]
) -> None:
    shape = Shape(channels=channels, size=size)
    source = Held(torch.zeros((2, *shape.stored), dtype=dtype))
    assert [(look.size, look.mode) for look in data_check.inspect_source(source, shape, 1)] == [told, told]


def test_one_broken_sample_of_an_array_does_not_hide_the_others() -> None:
    source = Held(torch.zeros((5, 8, 8, 3), dtype=torch.uint8), 1, 4)
    found = list(data_check.inspect_source(source, IMAGES, 2))
    assert [look.broken for look in found] == [None, "1: cut", None, None, "4: cut"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_broken(value: float) -> None:
    pixels = torch.zeros((2, 8, 8, 3))
    pixels[1, 0, 0, 0] = value
    source = arrays.array_source(pixels, torch.zeros(2, dtype=torch.int64), "a.npz")
    first, second = data_check.inspect_source(source, IMAGES, 1)
    assert (first.broken, second.broken) == (None, "a.npz: NaN or infinity in row 1")


def test_a_source_that_fails_otherwise_ends_the_check() -> None:
    with pytest.raises(Failure, match="sample 0"):
        list(data_check.inspect_source(Held(torch.zeros((2, 8, 8, 3)), 0, code=ExitCode.IO), IMAGES, 1))


@pytest.mark.parametrize("threads", [1, 3])
def test_looks_come_in_order_whatever_the_number_of_threads(
    tmp_path: Path, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_check, "FILES_PER_CHUNK", 2)
    paths = [str(write_image(tmp_path / f"{number}.png", number)) for number in range(15)]
    files = ImageFileSource(paths, torch.zeros(15), 8)
    assert [look.sample for look in data_check.inspect_source(files, IMAGES, threads)] == list(range(15))


def test_only_a_few_chunks_are_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_check, "BYTES_PER_CHUNK", 1)
    asked: list[int] = []

    class Counting(Held):
        def read(self, samples: SampleIndices) -> torch.Tensor:
            asked.extend(samples)
            return super().read(samples)

    all_looks = data_check.inspect_source(Counting(torch.zeros((50, 8, 8, 3))), IMAGES, 2)
    assert next(all_looks).sample == 0
    assert len(asked) <= 2 * data_check.CHUNKS_AHEAD
    all_looks.close()  # type: ignore[attr-defined]


def test_an_empty_side_has_nothing_to_look_at() -> None:
    assert list(data_check.inspect_source(Held(torch.zeros((0, 8, 8, 3))), IMAGES, 1)) == []
