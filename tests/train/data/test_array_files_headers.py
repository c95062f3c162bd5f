"""Names of arrays, from headers alone; files whose headers are wrong."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from entrypoint import ExitCode, Failure
from train.data import arrays

ARRAYS = {"images": np.zeros((5, 8, 8, 3), np.uint8), "labels": np.zeros(5, np.int64), "one": np.float32(3)}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_of_an_npz_file(save: object, tmp_path: Path) -> None:
    save(tmp_path / "a.npz", **ARRAYS)  # type: ignore[operator]
    assert arrays.list_names(tmp_path / "a.npz") == [*ARRAYS]


def test_of_a_safetensors_file(tmp_path: Path) -> None:
    tensors = {name: torch.from_numpy(np.asarray(array)) for name, array in ARRAYS.items()}
    save_file(tensors, tmp_path / "a.safetensors", metadata={"who": "me"})
    assert sorted(arrays.list_names(tmp_path / "a.safetensors")) == [*ARRAYS]


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_of_every_version_of_numpys_format(version: tuple[int, int], tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive, archive.open("x.npy", "w") as entry:
        np.lib.format.write_array(entry, np.zeros((2, 3)), version=version)
    assert arrays.list_names(tmp_path / "a.npz") == ["x"]


def npy(header: str, version: int = 1) -> bytes:
    return b"\x93NUMPY" + bytes([version, 0]) + len(header).to_bytes(2, "little") + header.encode()


# What an .npz file holds as its only array.
BAD_ENTRIES = {
    "empty": b"",
    "text": b"hello, this is no array",
    "half-a-header": npy("{'shape': (3,)}")[:20],
    "no-dict": npy("[1, 2]"),
    "code": npy("__import__('os').mkdir('x')"),
    "no-shape": npy("{'descr': '<f4'}"),
    "negative": npy("{'shape': (-1, 3)}"),
    "text-for-a-side": npy("{'shape': ('3',)}"),
    "a-bool-for-a-side": npy("{'shape': (True,)}"),
    "larger-than-its-bytes": npy("{'shape': (1000000000000, 3)}"),
    "larger-than-any-number": npy("{'shape': (100000000000000000000000, 3)}"),
    "one-number": npy("{'shape': 3}"),
    "too-long": b"\x93NUMPY\x02\x00\xff\xff\xff\xff",
    "deep": npy("(" * 5000),
    "not-text": b"\x93NUMPY\x01\x00\x02\x00\xff\xff",
}


@pytest.mark.parametrize("content", BAD_ENTRIES.values(), ids=BAD_ENTRIES)
def test_a_broken_array_is_refused_by_its_file(content: bytes, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", content)
    refused(tmp_path / "a.npz")


def with_header(header: object) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text


BAD_FILES = {
    "empty": ("a.npz", b""),
    "text": ("a.npz", b"<html>"),
    "cut": ("a.npz", b"PK\x03\x04"),
    "an-npy": ("a.npz", npy("{'shape': (3,)}")),
    "no-tensors": ("a.safetensors", b""),
    "short": ("a.safetensors", b"\x08"),
    "too-long": ("a.safetensors", b"\xff" * 8),
    "no-json": ("a.safetensors", b"\x04" + bytes(7) + b"{{{{"),
    "cut-json": ("a.safetensors", with_header({"x": {"shape": [3]}})[:-2]),
    "a-list": ("a.safetensors", with_header([1, 2])),
    "no-shape": ("a.safetensors", with_header({"x": {"dtype": "F32"}})),
    "a-number": ("a.safetensors", with_header({"x": 3})),
    "negative": ("a.safetensors", with_header({"x": {"shape": [-3]}})),
    "deep": ("a.safetensors", (10**5).to_bytes(8, "little") + b"[" * 10**5),
}


@pytest.mark.parametrize(("name", "content"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_broken_file_is_refused(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    refused(tmp_path / name)


def test_a_bit_that_compression_trips_over_is_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", **ARRAYS)
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[60:75] = bytes(255 - byte for byte in content[60:75])
    (tmp_path / "a.npz").write_bytes(content)
    refused(tmp_path / "a.npz")


def refused(file: Path) -> None:
    with pytest.raises(Failure) as caught:
        arrays.list_names(file)
    assert caught.value.code == ExitCode.DATA
    assert str(file) in str(caught.value.found)


@pytest.mark.parametrize("name", ["gone.npz", "folder.npz"])
def test_what_cannot_be_opened_is_missing_input(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(Failure) as caught:
        arrays.list_names(tmp_path / name)
    assert caught.value.code == ExitCode.NO_INPUT
