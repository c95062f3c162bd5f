"""All samples of the configured data are read once: what a sample is, why it cannot be read, and what is said of it."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from images import write_classes, write_image
from PIL import ExifTags, Image

from entrypoint import ExitCode, Failure
from train.cli import data_check
from train.cli.data_check import DataFindings, InspectedSample, SplitFindings
from train.config import load
from train.config.load import keep_last_overrides
from train.data import arrays
from train.data.decode import ImageFacts
from train.data.preprocessing import Preprocessing
from train.data.shape import Shape
from train.data.splits import ImageFileSource, SampleIndices, SampleSource

IMAGES = Shape(channels=3, size=(8, 8))
LABELS = [0, 0, 0, 0, 1, 1, 1, 1]
FILES = ImageFileSource([], torch.empty(0), 32)


def checked(*settings: str) -> tuple[DataFindings, list[str]]:
    messages: list[str] = []
    return data_check.check_samples(
        load.load_config(None, settings), config_file=None, report_progress=messages.append
    ), messages


def folder(root: Path, *settings: str) -> DataFindings:
    return checked(*keep_last_overrides(["data.name=folder", f"data.root={root}", "data.image_size=8", *settings]))[0]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_classes(tmp_path / "train", ant=6, bee=4)
    write_classes(tmp_path / "val", cat=0, ant=2, bee=2)
    (tmp_path / "val" / "cat").rmdir()
    return tmp_path


def test_all_samples_of_both_sides_are_read_and_told() -> None:
    data_findings, printed = checked("data.samples=50", "data.image_size=8")
    assert ([split.samples for split in data_findings.splits], data_findings.failure) == ([40, 10], None)
    assert printed[-1] == "50 of 50 samples read"


def test_clips_are_read_too() -> None:
    data_findings, _ = checked("data.samples=20", "data.image_size=8", "data.frames=3", "data.classes=4")
    assert list(data_findings.splits[0].sizes) == [(8, 8, 3)]


def test_a_folder_is_looked_at_file_by_file(root: Path) -> None:
    data_findings = folder(root)
    assert [split.samples for split in data_findings.splits] == [10, 4]
    assert f"folder ({root}): 2 classes" in data_findings.as_text()
    assert json.loads(data_findings.as_json())["training"]["per_class"] == {"ant": 6, "bee": 4}


def test_a_file_that_is_no_image_is_bad_data(root: Path) -> None:
    (root / "val/bee/000.png").write_bytes(b"no image")
    failure = folder(root).failure
    assert failure is not None
    assert str(root / "val/bee/000.png") in str(failure)


def test_broken_files_are_named_though_training_may_skip_them(root: Path) -> None:
    (root / "train/ant/000.png").write_bytes(b"no image")
    assert folder(root, "data.max_bad_images=5").failure is not None


def test_a_training_image_in_the_validation_split_is_leakage(root: Path) -> None:
    shutil.copy(root / "train/ant/005.png", root / "val/bee/new.png")
    failure = folder(root).failure
    assert failure is not None
    assert f"{root}/val/bee/new.png = {root}/train/ant/005.png (of another class!)" in str(failure)


def test_a_test_image_in_the_validation_split_is_leakage(root: Path) -> None:
    write_classes(root / "test", ant=3, bee=2)
    shutil.copy(root / "val/ant/001.png", root / "test/ant/new.png")
    (root / "test/bee/000.png").write_bytes(b"no image")
    data_findings = folder(root)
    *_, test = data_findings.splits
    assert (test.name, test.samples, test.read) == ("test", 6, 5)
    leaked = [(test.name_of(leak.sample), leak.other.name) for leak in test.leaked]
    assert (f"{root}/test/ant/new.png", "validation") in leaked
    assert data_findings.failure is not None
    assert json.loads(data_findings.as_json())["test"]["per_class"] == {"ant": 4, "bee": 2}


def test_the_split_s_own_copies_are_found(tmp_path: Path) -> None:
    write_classes(tmp_path, ant=5, bee=5)
    for number in range(20):
        shutil.copy(tmp_path / "ant/000.png", tmp_path / f"ant/copy{number}.png")
    assert folder(tmp_path).splits[1].leaked


def test_small_images_are_counted_against_image_size(root: Path) -> None:
    assert len(folder(root, "data.image_size=9").splits[0].problems["small"]) == 10


def test_notes_of_the_split_and_unequal_classes_are_shown(tmp_path: Path) -> None:
    write_classes(tmp_path, ant=40, bee=10)
    shown = folder(tmp_path, "data.group=\\d+", "data.val_fraction=0.2").as_text()
    assert "note: val: 10 of 50 images in" in shown
    assert "weight, if optim.class_weights=balanced" in shown


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        (("data.name=folder", "data.root=nowhere"), 66),
        (("data.name=folder", "data.root=."), 66),
        (("data.name=folder", "data.root=.", "data.classes=3"), 66),
    ],
)
def test_what_cannot_be_opened_cannot_be_checked(
    tmp_path: Path, settings: tuple[str, ...], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Failure) as caught:
        checked(*settings)
    assert caught.value.code == code


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
    upright, other = saved(tmp_path / "a.png", "RGB"), tmp_path / "b.png"
    with Image.open(upright) as image:
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = 6
        image.transpose(Image.Transpose.ROTATE_90).save(other, exif=exif)
    first, second = (data_check.inspect_file(path, 0) for path in (upright, other))
    assert (first.size, first.digest) == (second.size, second.digest)


def test_16_bits_are_named(tmp_path: Path) -> None:
    Image.fromarray(np.full((8, 8), 40_000, np.uint16)).save(tmp_path / "a.png")
    assert data_check.inspect_file(tmp_path / "a.png", 0).mode == "I;16"


def test_the_same_pixels_in_another_file_format_are_the_same(tmp_path: Path) -> None:
    first, other = (saved(tmp_path / name, "RGB") for name in ("a.png", "a.bmp"))
    assert data_check.inspect_file(first, 0).digest == data_check.inspect_file(other, 0).digest


def test_the_same_bytes_in_another_shape_are_another_image(tmp_path: Path) -> None:
    first, other = (write_image(tmp_path / f"{w}.png", 5, size=(w, h)) for w, h in ((4, 9), (9, 4)))
    assert data_check.inspect_file(first, 0).digest != data_check.inspect_file(other, 0).digest


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
    ("channels", "size", "dtype", "expected"),
    [
        (3, (8, 6), torch.uint8, ((6, 8), "RGB")),
        (1, (8, 6), torch.uint8, ((6, 8), "L")),
        (4, (8, 6), torch.float32, ((6, 8), "4 channels float")),
        (3, (5, 8, 6), torch.uint8, ((6, 8, 5), "RGB")),
    ],
)
def test_samples_of_arrays_have_the_shape_of_the_set(
    channels: int, size: tuple[int, ...], dtype: torch.dtype, expected: tuple[tuple[int, ...], str]
) -> None:
    shape = Shape(channels=channels, size=size)
    source = Held(torch.zeros((2, *shape.stored), dtype=dtype))
    assert [(look.size, look.mode) for look in data_check.inspect_source(source, shape, 1)] == [expected, expected]


def test_one_broken_sample_of_an_array_does_not_hide_the_others() -> None:
    source = Held(torch.zeros((5, 8, 8, 3), dtype=torch.uint8), 1, 4)
    looks = list(data_check.inspect_source(source, IMAGES, 2))
    assert [look.broken for look in looks] == [None, "1: cut", None, None, "4: cut"]


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


def side(name: str, *looks: InspectedSample, others: Sequence[SplitFindings] = ()) -> SplitFindings:
    split = {"train": "training", "val": "validation"}.get(name, name)
    made = SplitFindings(
        name=split, name_of=lambda sample: f"{name}/{sample}.png", label_of=LABELS.__getitem__, files=FILES
    )
    for look in looks:
        made.add(look, others)
    return made


def look(sample: int, pixels: str, size: tuple[int, ...] = (32, 32), mode: str = "RGB") -> InspectedSample:
    return InspectedSample(sample=sample, size=size, mode=mode, digest=pixels.encode(), seconds=0.002)


def bad(sample: int, reason: str = "cut") -> InspectedSample:
    return InspectedSample(sample=sample, broken=reason)


def findings(training: list[InspectedSample], validation: list[InspectedSample] | None = None) -> DataFindings:
    training_split = side("train", *training)
    other = side("val", *(validation or []), others=[training_split])
    return DataFindings(
        title="folder: 2 classes", splits=[training_split, other], classes=["classes 4"], per_class=({"a": 4}, {"b": 1})
    )


FINE = [look(0, "a"), look(1, "b"), look(4, "c")]


def test_fine_data_has_no_failure() -> None:
    data_findings = findings(FINE, [look(0, "d")])
    assert data_findings.failure is None
    assert data_findings.as_text() == (
        "data           folder: 2 classes\n"
        "classes 4\n"
        "training       3 read, 2 ms each\n"
        "  sizes        all 32 x 32\n"
        "  pixels       RGB 3\n"
        "validation     1 read, 2 ms each\n"
        "  sizes        all 32 x 32\n"
        "  pixels       RGB 1\n"
        "broken         none\n"
        "leakage        none"
    )


@pytest.mark.parametrize(
    ("training", "validation", "text"),
    [
        ([bad(0), *FINE[1:]], [], "broken samples (1)"),
        (FINE, [bad(0), bad(1)], "broken samples (2)"),
        (FINE, [look(2, "a")], "validation images that are in the training split too (1)"),
        (
            [bad(0), *FINE[1:]],
            [look(2, "b"), look(3, "b")],
            "broken samples (1) and validation images that are",
        ),
    ],
)
def test_broken_samples_and_leakage_are_bad_data(
    training: list[InspectedSample], validation: list[InspectedSample], text: str
) -> None:
    failure = findings(training, validation).failure
    assert failure is not None
    assert failure.code == ExitCode.DATA
    assert text in failure.what


@pytest.mark.parametrize(
    ("validation", "fix", "other"),
    [([bad(0)], "data.max_bad_images", "data.group"), ([look(0, "a")], "data.group", "data.max_bad_images")],
)
def test_the_fix_is_that_of_what_was_found(validation: list[InspectedSample], fix: str, other: str) -> None:
    failure = findings(FINE, validation).failure
    assert failure is not None
    assert fix in failure.fix
    assert other not in failure.fix


def test_leakage_names_both_files_and_says_where_the_classes_differ() -> None:
    shown = findings(FINE, [look(0, "a"), look(5, "b")]).as_text()
    assert "leakage        2\n  val/0.png = train/0.png\n  val/5.png = train/1.png (of another class!)" in shown


def test_a_copy_on_the_same_side_is_said_and_no_failure() -> None:
    data_findings = findings([*FINE, look(2, "a"), look(5, "a")])
    assert data_findings.failure is None
    assert (
        "duplicates   2: train/2.png = train/0.png; train/5.png = train/0.png (of another class!)"
        in data_findings.as_text()
    )


def test_an_image_that_is_twice_in_the_validation_split_leaks_twice() -> None:
    leaked = findings(FINE, [look(0, "a"), look(1, "a")]).splits[1].leaked
    assert [(leak.sample, leak.same_as) for leak in leaked] == [(0, 0), (1, 0)]


def test_a_test_image_in_either_other_split_is_leakage() -> None:
    training, validation = side("train", *FINE), side("val", look(0, "d"))
    test = side("test", look(0, "a"), look(4, "d"), look(5, "e"), bad(6), others=[training, validation])
    data_findings = DataFindings(title="t", splits=[training, validation, test], classes=[], per_class=({}, {}, {}))
    failure = data_findings.failure
    assert failure is not None
    assert failure.what == (
        "the data has broken samples (1) and test images that are in the training split too (1) "
        "and test images that are in the validation split too (1)"
    )
    assert (
        "leakage        2\n  test/0.png = train/0.png\n  test/4.png = val/0.png (of another class!)"
        in data_findings.as_text()
    )
    assert "test           3 of 4 read, 2 ms each" in data_findings.as_text()
    (first, _) = json.loads(data_findings.as_json())["leaks"]
    assert (first["split"], first["other_split"], first["same_as"]) == ("test", "training", "train/0.png")


def test_broken_samples_are_never_duplicates() -> None:
    data_findings = findings([bad(0), bad(1)], [bad(2)])
    assert (data_findings.splits[0].duplicates, data_findings.splits[1].leaked) == ([], [])


def test_a_reason_that_begins_with_the_path_is_not_said_twice() -> None:
    assert "  train/0.png: cut\n" in findings([bad(0, "train/0.png: cut")]).as_text()


def test_sizes_are_the_smallest_the_largest_and_the_most_frequent() -> None:
    sizes = [(64, 48), (64, 48), (100, 10), (640, 480)]
    shown = findings([look(n, str(n), size) for n, size in enumerate(sizes)]).as_text()
    assert "  sizes        100 x 10 to 640 x 480, most often 64 x 48 (50.0%)" in shown


def test_the_highest_value_of_16_bits_is_told() -> None:
    looks = [
        InspectedSample(sample=n, size=(8, 8), mode="I;16", digest=b"%d" % n, facts=ImageFacts(highest=value))
        for n, value in enumerate((7, 3071))
    ]
    data_findings = findings(looks)
    assert "  pixels       I;16 2, highest value of 16 bits 3,071 of 65,535\n" in data_findings.as_text()
    assert json.loads(data_findings.as_json())["training"]["highest_of_16_bits"] == 3071


def test_modes_are_counted() -> None:
    modes = ["RGB", "L", "RGB", "I;16", "P", "RGBA"]
    assert (
        "RGB 2, L 1, I;16 1, P 1, RGBA 1" in findings([look(n, str(n), mode=m) for n, m in enumerate(modes)]).as_text()
    )


def test_an_image_is_small_by_its_shorter_side_and_a_clip_not_by_its_frames() -> None:
    data_findings = findings([look(0, "a", (31, 64)), look(1, "b", (32, 64)), look(2, "c", (32, 32, 4))])
    assert "1 below data.image_size 32, scaled up: train/0.png" in data_findings.as_text()


def test_of_many_broken_samples_the_first_ten_are_shown_and_json_has_all() -> None:
    data_findings = findings([bad(n % 8, f"reason {n}") for n in range(25)])
    assert "  and 15 more: see --json" in data_findings.as_text()
    assert len(json.loads(data_findings.as_json())["training"]["broken"]) == 25


def test_text_and_json_have_the_warnings_and_notes_of_the_data() -> None:
    data_findings = replace(findings(FINE), warnings=("classes look alike",), notes=("2 hidden files are not read",))
    text, output = data_findings.as_text().splitlines(), json.loads(data_findings.as_json())
    assert text[1:3] == ["WARNING: classes look alike", "note: 2 hidden files are not read"]
    assert (output["warnings"], output["notes"]) == (["classes look alike"], ["2 hidden files are not read"])


def test_json_tells_the_same() -> None:
    output = json.loads(findings([*FINE, bad(2)], [look(0, "a"), look(1, "x", (8, 8), "L")]).as_json())
    assert output["ok"] is False
    assert output["training"]["broken"] == [{"name": "train/2.png", "reason": "cut"}]
    pair = {"name": "val/0.png", "same_as": "train/0.png", "same_class": True}
    assert output["leaks"] == [{"split": "validation", "other_split": "training", **pair}]
    assert output["validation"]["smaller_than_image_size"] == ["val/1.png"]
    assert output["validation"]["modes"] == {"RGB": 1, "L": 1}
    assert output["validation"]["sizes"]["smallest"] == [8, 8]
    assert output["training"]["per_class"] == {"a": 4}


def test_of_broken_ones_it_is_said_how_many_could_be_read() -> None:
    assert "training       3 of 4 read, 2 ms each\n" in findings([*FINE, bad(2)]).as_text()


def test_a_path_that_is_not_utf_8_can_be_printed() -> None:
    data_findings = findings([bad(0, "caf\udce9.png: cut")])
    assert "caf\\udce9.png: cut" in data_findings.as_text()
    data_findings.as_json().encode("ascii")


def test_an_empty_validation_split_is_said() -> None:
    assert "validation     no samples\n" in findings(FINE).as_text()


def test_where_nothing_can_be_read_there_are_no_sizes() -> None:
    output = json.loads(findings([bad(0)]).as_json())["training"]
    assert (output["sizes"], output["seconds_per_sample"]) == (None, None)


def test_images_that_lose_more_than_half_to_the_crop_are_counted_with_the_fix() -> None:
    sizes = [(64, 64), (128, 64), (130, 64), (32, 200)]
    data_findings = findings([look(number, str(number), size) for number, size in enumerate(sizes)])
    assert (
        "  cut          2 of 4 lose more than half of their area to the crop: train/2.png, train/3.png. "
        "fix: data.fit=pad (the whole image and a border) or data.fit=stretch" in data_findings.as_text()
    )
    assert json.loads(data_findings.as_json())["training"]["cut_by_more_than_half"] == ["train/2.png", "train/3.png"]
    assert data_findings.failure is None


@pytest.mark.parametrize("fit", ["pad", "stretch"])
def test_whole_images_lose_nothing(fit: Any) -> None:
    made = side("train")
    made.files = replace(FILES, preprocessing=Preprocessing(fit=fit))
    made.add(look(0, "a", (32, 200)))
    assert made.problems["cut"] == []
    assert made.problems["small"] == []
