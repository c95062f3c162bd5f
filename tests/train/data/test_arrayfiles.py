"""Which files and which arrays are meant by data.root."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from entrypoint import ExitCode, Failure
from train.data import array_files

FILE = Path("my.npz")


def make(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).touch()
    return root


FOUND: dict[str, tuple[tuple[str, ...], str, str, str | None]] = {
    "both-splits": (("train.npz", "test.npz"), "npz", "train.npz", "test.npz"),
    "val-before-test": (("train.npz", "test.npz", "val.npz"), "npz", "train.npz", "val.npz"),
    "one-split": (("train.npz",), "npz", "train.npz", None),
    "one-file": (("digits.npz", "readme.md"), "npz", "digits.npz", None),
    "any-case": (("Training.npz", "Validation.npz"), "npz", "Training.npz", "Validation.npz"),
    "tensors": (("train.pt", "test.safetensors"), "tensor", "train.pt", "test.safetensors"),
    "another-kind-beside": (("train.npz", "train.pt"), "tensor", "train.pt", None),
    "hidden": ((".train.npz", "train.npz"), "npz", "train.npz", None),
}


@pytest.mark.parametrize(("names", "kind", "training", "validation"), FOUND.values(), ids=FOUND)
def test_files_in_a_folder(
    names: tuple[str, ...], kind: str, training: str, validation: str | None, tmp_path: Path
) -> None:
    found = array_files.find_array_files(make(tmp_path, *names), kind)
    assert found == (tmp_path / training, tmp_path / validation if validation else None)


def test_the_root_may_be_the_file_itself(tmp_path: Path) -> None:
    assert array_files.find_array_files(make(tmp_path, "a.npz") / "a.npz", "npz") == (tmp_path / "a.npz", None)


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


NAMED: dict[str, tuple[tuple[str, ...], object]] = {
    "ours": (("labels", "images", "classes"), (("images", "labels"), None)),
    "short": (("x", "y"), (("x", "y"), None)),
    "sklearn": (("X", "y"), (("X", "y"), None)),
    "bunch": (("data", "target"), (("data", "target"), None)),
    "keras": (("x_test", "x_train", "y_train", "y_test"), (("x_train", "y_train"), ("x_test", "y_test"))),
    "medmnist": (
        ("train_images", "val_images", "test_images", "train_labels", "val_labels", "test_labels"),
        (("train_images", "train_labels"), ("val_images", "val_labels")),
    ),
    "one-split-named": (("images_train", "labels_train"), (("images_train", "labels_train"), None)),
    "bare-training-split": (("images", "labels", "x_test", "y_test"), (("images", "labels"), ("x_test", "y_test"))),
}


@pytest.mark.parametrize(("keys", "expected"), NAMED.values(), ids=NAMED)
def test_arrays_by_name(keys: tuple[str, ...], expected: object) -> None:
    assert array_files.find_array_names(keys, FILE) == expected


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
        array_files.find_array_names(keys, FILE)
    assert caught.value.code == ExitCode.DATA
    assert all(key in str(caught.value.found) for key in keys)


def test_a_look_reads_no_array(tmp_path: Path) -> None:
    np.savez(tmp_path / "train.npz", images=np.zeros((50, 4, 4), np.uint8), labels=np.zeros(50, int))
    seen = array_files.read_array_summary(tmp_path, "npz")
    assert seen == array_files.ArraySummary(shape=(50, 4, 4), validation=False)
    np.savez(tmp_path / "test.npz", images=np.zeros((5, 4, 4), np.uint8), labels=np.zeros(5, int))
    assert array_files.read_array_summary(tmp_path, "npz") == array_files.ArraySummary(
        shape=(50, 4, 4), validation=True, validation_images=5
    )


def test_both_sides_may_lie_in_one_file(tmp_path: Path) -> None:
    splits = {
        "x_train": np.zeros((9, 4, 4)),
        "y_train": np.zeros(9),
        "x_test": np.zeros((2, 4, 4)),
        "y_test": np.zeros(2),
    }
    np.savez(tmp_path / "a.npz", **splits)  # type: ignore[arg-type]
    assert array_files.read_array_summary(tmp_path / "a.npz", "npz") == array_files.ArraySummary(
        shape=(9, 4, 4), validation=True, validation_images=2
    )


def test_a_pickle_is_not_looked_into(tmp_path: Path) -> None:
    assert array_files.read_array_summary(make(tmp_path, "train.pt"), "tensor") is None
