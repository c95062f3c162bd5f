"""Arrays become samples and splits with labels of any task, or are refused with the way to write them."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from inference import evaluate_run
from jobs import trained
from safetensors.torch import save_file
from torch import Tensor

from entrypoint import ExitCode, Failure
from train.config.schema import DataConfig
from train.data import arrays, custom, registry
from train.data.arrays import ArraySource
from train.data.shape import Shape
from train.data.splits import DataSplits

LAID_OUT = {
    "gray": ((6, 8, 9), False, (6, 8, 9, 1)),
    "gray-tensor": ((6, 8, 9), True, (6, 8, 9, 1)),
    "colours": ((6, 8, 9, 3), False, (6, 8, 9, 3)),
    "one-channel": ((6, 8, 9, 1), False, (6, 8, 9, 1)),
    "with-alpha": ((6, 8, 9, 4), False, (6, 8, 9, 4)),
    "gray-clips": ((6, 5, 8, 9), False, (6, 5, 8, 9, 1)),
    "clips-of-as-many-frames-as-rows": ((6, 16, 16, 12), False, (6, 16, 16, 12, 1)),
    "narrow-clips": ((6, 16, 112, 50), False, (6, 16, 112, 50, 1)),
    "clips-that-look-like-bands": ((6, 32, 32, 2, 1), False, (6, 32, 32, 2, 1)),
    "colour-clips": ((6, 5, 8, 9, 3), False, (6, 5, 8, 9, 3)),
    "clips-of-two-channels": ((6, 5, 8, 9, 2), False, (6, 5, 8, 9, 2)),
    "clips-of-three-frames": ((6, 3, 8, 9, 1), False, (6, 3, 8, 9, 1)),
    "colour-tensors": ((6, 3, 8, 9), True, (6, 8, 9, 3)),
    "bands": ((6, 12, 8, 9), True, (6, 8, 9, 12)),
    "clip-tensors": ((6, 1, 5, 8, 9), True, (6, 5, 8, 9, 1)),
    "clip-tensors-of-three-frames": ((6, 3, 3, 8, 9), True, (6, 3, 8, 9, 3)),
    "clip-tensors-of-two-channels": ((6, 2, 5, 8, 9), True, (6, 5, 8, 9, 2)),
    "three-pixels-wide": ((6, 3, 8, 3), True, (6, 8, 3, 3)),
}


@pytest.mark.parametrize(("shape", "first", "expected"), LAID_OUT.values(), ids=LAID_OUT)
def test_axes(shape: tuple[int, ...], first: bool, expected: tuple[int, ...]) -> None:
    images = torch.zeros(shape)
    moved = arrays.move_channels_last(images, "my.npz", channels_first=first)
    assert tuple(moved.shape) == expected
    assert moved.data_ptr() == images.data_ptr(), "a view, not a copy"


def test_every_pixel_lands_in_its_place() -> None:
    tensor = torch.arange(2 * 3 * 5 * 7).view(2, 3, 5, 7)
    assert arrays.move_channels_last(tensor, "my.pt", channels_first=True)[1, 4, 6, 2] == tensor[1, 2, 4, 6]


WRONG_AXES = {
    "flat": ((6, 16), False, "[6, 16]", "write"),
    "one-axis": ((6,), False, "[6]", "write"),
    "no-axis": ((), True, "[]", "write"),
    "six-axes": ((6, 2, 2, 2, 2, 2), False, "[6, 2", "write"),
    "six-axes-of-a-tensor": ((6, 2, 2, 2, 2, 2), True, "[6, 2", "write"),
    "colours-first": ((6, 3, 8, 8), False, "seem to be first", "(0, 2, 3, 1); clips of 3 frames"),
    "gray-first": ((6, 1, 8, 8), False, "seem to be first", "(0, 2, 3, 1); clips of 1 frames"),
    "alpha-first": ((6, 4, 8, 8), False, "seem to be first", "[N, 4, H, W, 1]"),
    "colours-last": ((6, 8, 8, 3), True, "seem to be last", "(0, 3, 1, 2)"),
    "bands-last": ((6, 64, 64, 13), False, "to be 13 channels", "save tensors [N, 13, H, W]"),
    "two-bands-last": ((6, 32, 32, 2), False, "to be 2 channels", "clips of 32 frames are saved as [N, 32, H, W, 1]"),
    "bands-last-of-a-tensor": ((6, 64, 64, 13), True, "to be 13 channels", "permute the axes: (0, 3, 1, 2)"),
    "gray-last": ((6, 8, 8, 1), True, "seem to be last", "(0, 3, 1, 2)"),
    "clips-with-colours-behind-the-frames": ((8, 5, 3, 16, 16), True, "seem to be behind", "axes: (0, 2, 1, 3, 4)"),
    "gray-clips-behind-the-frames": ((6, 5, 1, 8, 9), True, "seem to be behind", "(0, 2, 1, 3, 4)"),
    "clips-with-colours-last": ((6, 16, 8, 9, 3), True, "seem to be last", "(0, 4, 1, 2, 3)"),
    "clips-with-colours-first-in-an-array": ((6, 3, 5, 8, 9), False, "seem to be first", "(0, 2, 3, 4, 1)"),
    "clips-of-an-array-with-colours-behind-the-frames": ((6, 5, 4, 8, 9), False, "behind", "(0, 1, 3, 4, 2)"),
}


@pytest.mark.parametrize(("shape", "first", "problem", "fix"), WRONG_AXES.values(), ids=WRONG_AXES)
def test_axes_that_cannot_be_meant_are_refused(shape: tuple[int, ...], first: bool, problem: str, fix: str) -> None:
    with pytest.raises(Failure) as caught:
        arrays.move_channels_last(torch.zeros(shape), "my.file", channels_first=first)
    assert caught.value.code == ExitCode.DATA
    assert problem in str(caught.value.found)
    assert fix in caught.value.fix


UINT8 = torch.uint8


def source(images: Tensor, labels: Tensor | None = None, *, first: bool = False) -> ArraySource:
    labels = torch.arange(len(images)) % 2 if labels is None else labels
    return arrays.checked_array_source(images, labels, "my.npz", channels_first=first)


def pixels(*shape: int, kind: torch.dtype = UINT8) -> Tensor:
    return torch.arange(torch.Size(shape).numel()).remainder(251).to(kind).view(shape)


def test_no_pixel_is_copied() -> None:
    images = pixels(6, 3, 8, 9)
    assert source(images, first=True).pixels.data_ptr() == images.data_ptr()


ZEROS = torch.zeros(6, dtype=torch.int64)
BAD_SIDES = {
    "lengths": (pixels(6, 4, 4), ZEROS[:5], "6 images, 5 labels", "write"),
    "no-samples": (pixels(0, 4, 4), ZEROS[:0], "images [0, 4, 4]", "write"),
    "no-pixels": (pixels(6, 4, 0), ZEROS, "images [6, 4, 0]", "write"),
    "int64-images": (pixels(6, 4, 4, kind=torch.int64), ZEROS, "int64 [6, 4, 4]", "save them as uint8"),
    "int8-images": (pixels(6, 4, 4, kind=torch.int8), ZEROS, "int8 [6, 4, 4]", "save them as uint8"),
    "bool-images": (pixels(6, 4, 4).bool(), ZEROS, "bool [6, 4, 4]", "save them as uint8"),
    "complex-images": (pixels(6, 4, 4).to(torch.complex64), ZEROS, "complex64", "save them as uint8"),
    "flat-images": (pixels(6, 16), ZEROS, "[6, 16]", "write"),
    "six-axes": (pixels(6, 2, 2, 2, 2, 2), ZEROS, "[6, 2, 2, 2, 2, 2]", "write"),
    "channels-first": (pixels(6, 3, 8, 8), ZEROS, "seem to be first", "(0, 2, 3, 1); clips of 3 frames"),
    "one-hot": (pixels(6, 4, 4), torch.eye(6), "labels [6, 6]", "argmax(1)"),
    "many-axes": (pixels(6, 4, 4), ZEROS.view(6, 1, 1), "labels [6, 1, 1]", "one label for each"),
    "one-label": (pixels(6, 4, 4), torch.tensor(3), "labels []", "one label for each"),
    "float-labels": (pixels(6, 4, 4), ZEROS.float(), "float32 [6]", "astype('int64')"),
    "bool-labels": (pixels(6, 4, 4), ZEROS.bool(), "bool [6]", "astype('int64')"),
    "negative-label": (pixels(6, 4, 4), ZEROS - 1, "-1", "from 0"),
}


@pytest.mark.parametrize(("images", "labels", "problem", "fix"), BAD_SIDES.values(), ids=BAD_SIDES)
def test_a_bad_side_is_refused_with_what_was_found(images: Tensor, labels: Tensor, problem: str, fix: str) -> None:
    with pytest.raises(Failure) as caught:
        source(images, labels)
    assert caught.value.code == ExitCode.DATA
    assert f"my.npz: {problem}" in str(caught.value.found) or problem in str(caught.value.found)
    assert fix in caught.value.fix


def test_without_validation_a_share_of_every_class_is_split_off() -> None:
    labels = torch.tensor([0] * 20 + [1] * 10)
    splits = arrays.build_splits(DataConfig(name="npz"), source(pixels(30, 4, 4), labels), None)
    assert torch.bincount(splits.validation.labels).tolist() == [4, 2]
    assert (len(splits.training.labels), splits.classes, splits.mirror) == (24, ("0", "1"), True)


def test_the_two_sides_of_a_split_share_no_sample() -> None:
    splits = arrays.build_splits(DataConfig(name="npz"), source(pixels(30, 4, 4)), None)
    assert isinstance(splits.training, ArraySource)
    assert isinstance(splits.validation, ArraySource)
    assert sorted([*splits.training.rows.tolist(), *splits.validation.rows.tolist()]) == list(range(30))


def test_a_validation_split_is_taken_whole() -> None:
    splits = arrays.build_splits(DataConfig(name="npz"), source(pixels(30, 4, 4)), source(pixels(7, 4, 4)))
    assert (len(splits.training.labels), len(splits.validation.labels)) == (30, 7)


def test_what_was_found_is_said() -> None:
    (note,) = arrays.build_splits(DataConfig(name="npz"), source(pixels(6, 5, 8, 8, kind=torch.float32)), None).notes
    assert note == "my.npz holds clips of 5 x 8 x 8 x 1, floats, which go to the model as they are"


def test_a_class_may_be_missing_where_the_config_counts_them() -> None:
    assert len(arrays.build_splits(DataConfig(name="npz", classes=5), source(pixels(6, 4, 4)), None).classes) == 5


def labelled(*labels: int, kind: torch.dtype = UINT8, size: int = 4) -> ArraySource:
    return source(pixels(len(labels), size, size, kind=kind), torch.tensor(labels))


BAD_SETS = {
    "from-one": ({}, labelled(1, 2, 3), None, "no label 0", "from 0"),
    "a-gap": ({}, labelled(0, 1, 4), None, "no label 2, 3", "data.classes to 5"),
    "one-class": ({}, labelled(0, 0, 0), None, "label 0 alone", "write"),
    "validation-only": ({}, labelled(0, 1), labelled(0, 2), "no label 2", "data.classes to 3"),
    "too-large": ({"classes": 3}, labelled(0, 1, 3), None, "label 3", "data.classes to 4"),
    "too-large-validation": ({"classes": 3}, labelled(0, 1), labelled(5), "label 5", "data.classes to 6"),
    "other-sizes": ({}, labelled(0, 1), labelled(0, 1, size=5), "4 x 4 x 1, bytes and 5 x 5 x 1", "write"),
    "other-types": ({}, labelled(0, 1), labelled(0, 1, kind=torch.float32), "bytes and 4 x 4", "write"),
    "other-axes": ({}, labelled(0, 1), source(pixels(2, 4, 4, 3)), "4 x 4 x 3", "write"),
    "a-claimed-size": ({"image_size": 8}, labelled(0, 1), None, "4 x 4 x 1", "leave data.image_size out"),
}


@pytest.mark.parametrize(("settings", "training", "validation", "problem", "fix"), BAD_SETS.values(), ids=BAD_SETS)
def test_sides_that_do_not_fit_are_refused(
    settings: dict[str, int], training: ArraySource, validation: ArraySource | None, problem: str, fix: str
) -> None:
    with pytest.raises(Failure) as caught:
        arrays.build_splits(DataConfig(name="npz", **settings), training, validation)  # type: ignore[arg-type]
    assert caught.value.code == ExitCode.DATA
    assert problem in str(caught.value.found)
    assert fix in caught.value.fix


STORED = torch.arange(6 * 4 * 4 * 3).view(6, 4, 4, 3).to(torch.uint8)
STORED_LABELS = torch.tensor([0, 1, 2, 0, 1, 2])


def test_samples_come_by_number() -> None:
    source = arrays.array_source(STORED, STORED_LABELS, "a.npz")
    assert torch.equal(source.read(np.array([5, 0])), STORED[[5, 0]])


def test_a_part_counts_its_own_samples() -> None:
    source = arrays.array_source(STORED, STORED_LABELS, "a.npz").select(STORED_LABELS == 2)
    assert source.labels.tolist() == [2, 2]
    assert torch.equal(source.read(np.array([1])), STORED[[5]])


def test_a_part_shares_the_array() -> None:
    source = arrays.array_source(STORED, STORED_LABELS, "a.npz").select(STORED_LABELS == 2)
    assert source.pixels.data_ptr() == STORED.data_ptr()


def test_channels_first_become_last_and_lie_in_order() -> None:
    read = arrays.array_source(STORED.movedim(-1, 1).contiguous().movedim(1, -1), STORED_LABELS, "a.pt").read(
        np.arange(2)
    )
    assert torch.equal(read, STORED[:2])
    assert read.is_contiguous()


@pytest.mark.parametrize("kind", [torch.float16, torch.float32, torch.float64])
def test_floats_are_read_as_float32(kind: torch.dtype) -> None:
    assert arrays.array_source(STORED.to(kind), STORED_LABELS, "a.pt").read(np.arange(2)).dtype == torch.float32


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_not_finite_is_refused_by_its_row(bad: float) -> None:
    pixels = STORED.float()
    pixels[4, 0, 0, 0] = bad
    source = arrays.array_source(pixels, STORED_LABELS, "a.npz").select(STORED_LABELS == 1)
    with pytest.raises(Failure, match="sample 4") as caught:
        source.read(np.array([0, 1]))
    assert caught.value.code == ExitCode.DATA
    assert "a.npz" in str(caught.value.found)


def test_no_samples_are_none() -> None:
    assert arrays.array_source(STORED[:0].float(), STORED_LABELS[:0], "a.npz").read(np.arange(0)).shape == (0, 4, 4, 3)


def test_images_of_the_right_size_are_not_resized() -> None:
    assert arrays.array_source(STORED, STORED_LABELS, "a.npz", size=4).size is None
    assert arrays.array_source(STORED, STORED_LABELS, "a.npz", size=8).read(np.arange(2)).shape == (2, 8, 8, 3)


@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (0, 2, 3, 1)])
def test_numbers_that_begin_at_any_byte_are_read(axes: tuple[int, ...]) -> None:
    expected = np.random.default_rng(0).random((6, 4, 4, 3), np.float32)
    shifted = np.frombuffer(bytearray(b"x" + expected.tobytes()), np.float32, offset=1).reshape(expected.shape)
    source = arrays.array_source(torch.from_numpy(shifted).permute(axes), STORED_LABELS, "a.npz")
    assert torch.equal(source.read(np.array([5, 0])), torch.from_numpy(expected).permute(axes)[[5, 0]])


COUNT = 60
IMAGES = np.random.default_rng(0).integers(0, 256, (COUNT, 8, 8, 3), np.uint8)
NUMBERS = IMAGES.mean(axis=(1, 2, 3))
TAGS = np.stack([NUMBERS > 127, np.arange(COUNT) % 3 == 0, np.arange(COUNT) % 20 == 1], axis=1)


def opened(path: Path, task: str, name: str = "npz", **settings: Any) -> Any:
    return registry.open_splits(DataConfig(name=name, root=str(path), task=task, **settings))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8"])
@pytest.mark.parametrize("column", [False, True])
def test_numbers_in_an_array_are_numbers_to_predict(tmp_path: Path, dtype: str, column: bool) -> None:
    labels = (np.arange(COUNT) % 50).astype(dtype)
    np.savez(tmp_path / "a.npz", images=IMAGES, labels=labels[:, None] if column else labels)
    splits = opened(tmp_path / "a.npz", "regression", test_fraction=0.1)
    assert (splits.task, splits.classes) == ("regression", ("number",))
    assert splits.training.labels.dtype == torch.float32
    counts = [len(split.labels) for split in (splits.training, splits.validation, splits.test)]
    assert counts == [42, 12, 6]
    for split in (splits.training, splits.validation, splits.test):
        assert split.labels.tolist() == labels[split.rows.numpy()].tolist()
    assert splits.target.mean == pytest.approx(splits.training.labels.double().mean().item())
    assert splits.target.std == pytest.approx(splits.training.labels.double().std(correction=0).item())


def test_a_number_in_an_array_that_stands_for_a_missing_one_is_warned_of(tmp_path: Path) -> None:
    labels = np.arange(COUNT, dtype=np.float32)
    labels[[3, 50]] = -999
    np.savez(tmp_path / "a.npz", images=IMAGES, labels=labels)
    (warning,) = opened(tmp_path / "a.npz", "regression", val_fraction=0.0).warnings
    assert warning.startswith("2 training images have the number -999 (such as 3, 50), and the others 0 to 59. fix: ")


@pytest.mark.parametrize(
    ("images", "text"),
    [
        (IMAGES.astype(np.float32), "are from 0 to 255, and go to the model as they are"),
        (IMAGES > 127, "are at most 1 of 255: black to the network"),
        (IMAGES, None),
        (IMAGES / np.float32(127.5) - 1, None),
    ],
)
def test_pixels_that_nobody_scaled_are_warned_of(tmp_path: Path, images: Any, text: str | None) -> None:
    pixels = images.astype(np.uint8) if images.dtype == bool else images
    np.savez(tmp_path / "a.npz", images=pixels, labels=np.arange(COUNT) % 2)
    warnings = opened(tmp_path / "a.npz", "classification").warnings
    assert len(warnings) == (text is not None)
    assert (text or "") in "".join(warnings)


def test_each_tenth_of_the_numbers_is_in_the_validation_split(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=IMAGES, labels=np.arange(COUNT, dtype=np.float32))
    validation = opened(tmp_path / "a.npz", "regression", val_fraction=0.5).validation
    tenths = (validation.labels // 6).long().bincount(minlength=10)
    assert set(tenths.tolist()) == {3}


@pytest.mark.parametrize("dtype", ["bool", "float32", "int64"])
def test_a_table_of_0_and_1_holds_several_labels(tmp_path: Path, dtype: str) -> None:
    np.savez(tmp_path / "a.npz", images=IMAGES, labels=TAGS.astype(dtype))
    splits = opened(tmp_path / "a.npz", "multi_label")
    assert (splits.task, splits.classes, splits.target) == ("multi_label", ("0", "1", "2"), None)
    assert torch.equal(splits.training.labels, torch.from_numpy(TAGS).float()[splits.training.rows])
    assert all(0 < split.labels[:, 2].sum() < 3 for split in (splits.training, splits.validation))  # a rare label


def test_tensor_files_have_labels_of_each_task_too(tmp_path: Path) -> None:
    images = torch.from_numpy(IMAGES).movedim(-1, 1).contiguous()
    save_file({"images": images, "labels": torch.from_numpy(TAGS)}, tmp_path / "a.safetensors")
    assert opened(tmp_path / "a.safetensors", "multi_label", "tensor").classes == ("0", "1", "2")
    torch.save({"images": images, "labels": torch.from_numpy(NUMBERS)}, tmp_path / "a.pt")
    assert opened(tmp_path / "a.pt", "regression", "tensor").task == "regression"


def test_classes_stay_what_labels_are_unless_the_config_says_otherwise(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=IMAGES, labels=np.arange(COUNT) % 3)
    splits = opened(tmp_path / "a.npz", "auto")
    assert (splits.task, splits.training.labels.dtype) == ("classification", torch.int64)


def test_train_check_describes_the_task(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=IMAGES, labels=NUMBERS)
    data = DataConfig(name="npz", root=str(tmp_path / "a.npz"), task="regression")
    summary = registry.summarize(data, registry.open_splits(data))
    assert summary.task == "regression"
    assert "one number for each image (number): " in summary.description


class Items:
    """A user's data set whose items have this label."""

    def __init__(self, label: Any, count: int = COUNT) -> None:
        self._label, self._count = label, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: int) -> tuple[Any, Any]:
        if row >= self._count:
            raise IndexError
        return IMAGES[row], self._label(row)


TASK_LABELS = {
    "float": ("regression", lambda row: float(NUMBERS[row])),
    "numpy": ("regression", lambda row: NUMBERS[row]),
    "tensor": ("regression", lambda row: torch.tensor(NUMBERS[row])),
    "integer": ("regression", lambda row: row),
    "row": ("multi_label", lambda row: TAGS[row]),
    "list": ("multi_label", lambda row: TAGS[row].astype(int).tolist()),
    "float-tensor": ("multi_label", lambda row: torch.from_numpy(TAGS[row]).float()),
}


@pytest.fixture
def factory(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets what the user's factory returns."""

    def set_to(returned: Any) -> None:
        monkeypatch.setattr(custom.plugin, "call_factory", lambda name, key, data: returned)

    return set_to


@pytest.mark.parametrize(("task", "label"), TASK_LABELS.values(), ids=TASK_LABELS)
def test_items_have_labels_of_the_task(factory: Any, task: str, label: Any) -> None:
    factory((Items(label), None))
    splits = opened(Path("x"), task, "mine:make")
    assert splits.task == task
    assert splits.training.read(np.arange(3)).shape == (3, 8, 8, 3)
    expected = torch.stack([torch.as_tensor(label(row)).float() for row in splits.training.rows.tolist()])
    assert torch.equal(splits.training.labels, expected)
    assert (splits.target is None) == (task == "multi_label")


def test_names_of_the_labels_are_those_of_the_data_set(factory: Any) -> None:
    items = Items(lambda row: TAGS[row])
    items.classes = ["bright", "third", "rare"]  # type: ignore[attr-defined]
    factory((items, None))
    assert opened(Path("x"), "multi_label", "mine:make").classes == ("bright", "third", "rare")


def made_splits(labels: torch.Tensor, classes: tuple[str, ...], task: str) -> DataSplits:
    """DataSplits of the user's own."""
    pixels = torch.from_numpy(IMAGES)
    training, validation = (ArraySource(pixels, torch.arange(n), labels[:n], "mine") for n in (COUNT, 10))
    shape = Shape(channels=3, size=(8, 8))
    return DataSplits(training=training, validation=validation, classes=classes, shape=shape, task=task)


@pytest.mark.parametrize("task", ["regression", "auto"])
def test_a_users_splits_may_say_their_task_themselves(factory: Any, task: str) -> None:
    factory(made_splits(torch.from_numpy(NUMBERS).float(), ("age",), "regression"))
    splits = opened(Path("x"), task, "mine:make")
    assert (splits.task, splits.classes, len(splits.validation.labels)) == ("regression", ("age",), 10)
    assert splits.target.mean == pytest.approx(NUMBERS.mean(), rel=1e-5)


def test_a_users_splits_with_another_number_of_names_than_labels_are_refused(factory: Any) -> None:
    factory(made_splits(torch.from_numpy(TAGS).float(), ("bright", "third"), "multi_label"))
    with pytest.raises(Failure, match="something else than a data set") as caught:
        opened(Path("x"), "auto", "mine:make")
    assert caught.value.found == "3 labels, and 2 classes"


UNFIT = {
    "vector": ("regression", lambda row: TAGS[row], "is a vector", "return one finite number for each image"),
    "text": ("regression", lambda row: "x", "is text", "return one finite number for each image"),
    "number": ("multi_label", lambda row: 1.0, "decimal point", "return a row of 0 and 1 for each image"),
    "share": ("multi_label", lambda row: [0.5, 1.0], "is a vector", "return a row of 0 and 1 for each image"),
    "class": ("auto", lambda row: NUMBERS[row], "decimal point", "set data.task=regression"),
    "row": ("auto", lambda row: TAGS[row], "is a vector", "set data.task=multi_label"),
}


@pytest.mark.parametrize(("task", "label", "what", "fix"), UNFIT.values(), ids=UNFIT)
def test_items_with_other_labels_are_refused(factory: Any, task: str, label: Any, what: str, fix: str) -> None:
    factory((Items(label), None))
    with pytest.raises(Failure) as caught:
        opened(Path("x"), task, "mine:make")
    assert what in caught.value.what
    assert fix in (caught.value.fix or "")


def test_an_item_whose_number_changes_is_named(factory: Any) -> None:
    items = Items(lambda row: float(row))
    items.targets = [float(row) for row in range(COUNT)]  # type: ignore[attr-defined]
    factory((items, None))
    splits = opened(Path("x"), "regression", "mine:make")
    items._label = lambda row: row + 0.5
    with pytest.raises(Failure, match="has another label than the dataset lists"):
        splits.training.read(np.arange(1))


@pytest.mark.parametrize(
    ("task", "labels"), [("regression", NUMBERS), ("multi_label", TAGS)], ids=["regression", "multi_label"]
)
def test_a_training_on_arrays_is_measured_image_by_image(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], task: str, labels: Any
) -> None:
    np.savez(tmp_path / "a.npz", images=IMAGES, labels=labels)
    settings = ("data.name=npz", f"data.root={tmp_path / 'a.npz'}", f"data.task={task}", "data.classes=10")
    trained(tmp_path / "run", *settings, "data.augment=none", "train.epochs=1")
    evaluate_run(tmp_path / "run", per_image=tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    if task == "regression":
        assert all(float(row["number"]) == pytest.approx(NUMBERS[int(row["sample"])], rel=1e-5) for row in rows)
    else:
        names = [["0", "1", "2"][number] for number in range(3)]
        expected = ["|".join(np.array(names)[TAGS[int(row["sample"])]]) for row in rows]
        assert [row["labels"] for row in rows] == expected
