"""Which files and which arrays are meant by data.root."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from entrypoint import ExitCode, Failure
from train.config.schema import DataConfig
from train.data import arrays
from train.data.sources import arrays as array_files

FILE = Path("my.npz")


def make(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).touch()
    return root


FOUND: dict[str, tuple[tuple[str, ...], str, dict[str, str]]] = {
    "two-splits": (("train.npz", "test.npz"), "npz", {"training": "train.npz", "test": "test.npz"}),
    "three-splits": (
        ("train.npz", "test.npz", "val.npz"),
        "npz",
        {"training": "train.npz", "validation": "val.npz", "test": "test.npz"},
    ),
    "one-split": (("train.npz",), "npz", {"training": "train.npz"}),
    "one-file": (("digits.npz", "readme.md"), "npz", {"training": "digits.npz"}),
    "any-case": (
        ("Training.npz", "Validation.npz"), "npz", {"training": "Training.npz", "validation": "Validation.npz"}
    ),
    "tensors": (("train.pt", "test.safetensors"), "tensor", {"training": "train.pt", "test": "test.safetensors"}),
    "another-kind-beside": (("train.npz", "train.pt"), "tensor", {"training": "train.pt"}),
    "hidden": ((".train.npz", "train.npz"), "npz", {"training": "train.npz"}),
}  # fmt: skip


@pytest.mark.parametrize(("names", "kind", "expected"), FOUND.values(), ids=FOUND)
def test_files_in_a_folder(names: tuple[str, ...], kind: str, expected: dict[str, str], tmp_path: Path) -> None:
    split_files = array_files.find_array_files(make(tmp_path, *names), kind)
    assert split_files == {split: tmp_path / name for split, name in expected.items()}


def test_the_root_may_be_the_file_itself(tmp_path: Path) -> None:
    assert array_files.find_array_files(make(tmp_path, "a.npz") / "a.npz", "npz") == {"training": tmp_path / "a.npz"}


NO_FILES: dict[str, tuple[tuple[str, ...], str, str]] = {
    "nothing": ((), ".", "npz"),
    "no-root": ((), "none", "npz"),
    "another-kind": (("train.pt",), ".", "npz"),
    "npz-for-tensors": (("train.npz",), ".", "tensor"),
    "another-ending": (("a.npy",), "a.npy", "npz"),
    "no-ending": (("a",), "a", "tensor"),
    "two-without-a-split": (("a.npz", "b.npz"), ".", "npz"),
    "two-training-files": (("train.pt", "train.safetensors"), ".", "tensor"),
    "validation-files-alone": (("test.npz", "val.npz"), ".", "npz"),
    "below-a-file": (("a.npz",), "a.npz/b", "npz"),
}


@pytest.mark.parametrize(("names", "root", "kind"), NO_FILES.values(), ids=NO_FILES)
def test_files_that_are_not_there_are_missing_input(
    names: tuple[str, ...], root: str, kind: str, tmp_path: Path
) -> None:
    with pytest.raises(Failure) as caught:
        array_files.find_array_files(make(tmp_path, *names) / root, kind)
    assert caught.value.code == ExitCode.NO_INPUT
    assert "data.root" in caught.value.what
    assert f"a folder with train.{'npz' if kind == 'npz' else 'safetensors'}" in str(caught.value.expected)


@pytest.mark.parametrize(("name", "kind", "other"), [("a.pt", "npz", "tensor"), ("a.npz", "tensor", "npz")])
def test_a_file_of_the_other_kind_is_told_from_its_ending(name: str, kind: str, other: str, tmp_path: Path) -> None:
    with pytest.raises(Failure) as caught:
        array_files.find_array_files(make(tmp_path, name) / name, kind)
    assert caught.value.fix == f"set data.name to {other}"


NAMED: dict[str, tuple[tuple[str, ...], dict[str, tuple[str, str]]]] = {
    "ours": (("labels", "images", "classes"), {"training": ("images", "labels")}),
    "short": (("x", "y"), {"training": ("x", "y")}),
    "sklearn": (("X", "y"), {"training": ("X", "y")}),
    "bunch": (("data", "target"), {"training": ("data", "target")}),
    "keras": (
        ("x_test", "x_train", "y_train", "y_test"), {"training": ("x_train", "y_train"), "test": ("x_test", "y_test")}
    ),
    "medmnist": (
        ("train_images", "val_images", "test_images", "train_labels", "val_labels", "test_labels"),
        {
            "training": ("train_images", "train_labels"),
            "validation": ("val_images", "val_labels"),
            "test": ("test_images", "test_labels"),
        },
    ),
    "one-split-named": (("images_train", "labels_train"), {"training": ("images_train", "labels_train")}),
    "bare-training-split": (
        ("images", "labels", "x_test", "y_test"), {"training": ("images", "labels"), "test": ("x_test", "y_test")}
    ),
}  # fmt: skip


@pytest.mark.parametrize(("keys", "expected"), NAMED.values(), ids=NAMED)
def test_arrays_by_name(keys: tuple[str, ...], expected: dict[str, tuple[str, str]]) -> None:
    assert arrays.find_array_names(keys, FILE) == expected


NO_PAIR: dict[str, tuple[tuple[str, ...], str]] = {
    "nothing": ((), "no pairs"),
    "images-alone": (("images",), "no pairs"),
    "labels-alone": (("labels",), "no pairs"),
    "two-halves": (("images", "y"), "no pairs"),
    "misspelt": (("image", "label"), "no pairs"),
    "numpys-own": (("arr_0", "arr_1"), "no pairs"),
    "validation-alone": (("x_test", "y_test"), "no pairs"),
    "another-split": (("x_dev", "y_dev"), "no pairs"),
    "two-pairs": (("images", "labels", "x", "y"), "2 pairs"),
    "two-targets": (("data", "target", "targets"), "2 pairs"),
    "bare-and-training": (("x", "y", "x_train", "y_train"), "2 pairs"),
}


@pytest.mark.parametrize(("keys", "said"), NO_PAIR.values(), ids=NO_PAIR)
def test_arrays_that_are_not_one_pair_are_refused_by_name(keys: tuple[str, ...], said: str) -> None:
    with pytest.raises(Failure, match=said) as caught:
        arrays.find_array_names(keys, FILE)
    assert caught.value.code == ExitCode.DATA
    assert all(key in str(caught.value.found) for key in keys)


def located(root: Path, kind: str = "npz") -> dict[str, tuple[str, ...]]:
    places, _ = arrays.locate_splits(DataConfig(name=kind, root=str(root)), arrays.list_names)
    return {split: (file.name, *pair) for split, (file, pair) in places.items()}


def test_a_test_file_is_for_validation_if_there_is_no_other(tmp_path: Path) -> None:
    np.savez(tmp_path / "train.npz", images=np.zeros((50, 4, 4), np.uint8), labels=np.zeros(50, int))
    training = {"training": ("train.npz", "images", "labels")}
    assert located(tmp_path) == training
    np.savez(tmp_path / "test.npz", x=np.zeros((5, 4, 4), np.uint8), y=np.zeros(5, int))
    assert located(tmp_path) == training | {"validation": ("test.npz", "x", "y")}


def test_all_splits_may_lie_in_one_file(tmp_path: Path) -> None:
    sizes = {"train": 9, "val": 3, "test": 2}
    splits = {f"x_{split}": np.zeros((size, 4, 4)) for split, size in sizes.items()}
    splits |= {f"y_{split}": np.zeros(size) for split, size in sizes.items()}
    np.savez(tmp_path / "a.npz", **splits)  # type: ignore[arg-type]
    assert located(tmp_path / "a.npz") == {
        "training": ("a.npz", "x_train", "y_train"),
        "validation": ("a.npz", "x_val", "y_val"),
        "test": ("a.npz", "x_test", "y_test"),
    }
