"""Which files of arrays are meant by `data.root`, and which of its splits each is."""

from __future__ import annotations

from pathlib import Path

import pytest

from entrypoint import ExitCode, Failure
from train.data.sources import arrays as array_files


def make(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).touch()
    return root


LAYOUTS: dict[str, tuple[tuple[str, ...], str, dict[str, str]]] = {
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


@pytest.mark.parametrize(("names", "kind", "expected"), LAYOUTS.values(), ids=LAYOUTS)
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
