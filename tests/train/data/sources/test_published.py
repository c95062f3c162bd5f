"""Published data sets are read from torchvision's files."""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from jobs import trained
from made_up import idx, pixels, with_made_up_cifar, write_mnist

from entrypoint import ExitCode, Failure
from train.config.schema import DataConfig
from train.data import registry
from train.data.splits import DataSplits

FOLDERS = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST"}


def write(name: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in FOLDERS:
        write_mnist(root, FOLDERS[name])
    else:
        with_made_up_cifar(root, monkeypatch, name)


def find(name: str, root: Path, **settings: object) -> DataSplits:
    return registry.open_splits(DataConfig(name=name, root=str(root), **settings))  # type: ignore[arg-type]


EXPECTED = {"cifar10": (100, 20, 10, 3), "cifar100": (20, 20, 100, 3), "mnist": (100, 20, 10, 1)}
EXPECTED["fashion_mnist"] = EXPECTED["mnist"]


@pytest.mark.parametrize("name", EXPECTED)
def test_the_published_sides_classes_and_channels(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(name, tmp_path, monkeypatch)
    sets = find(name, tmp_path)
    sizes = (len(sets.training.labels), len(sets.validation.labels), len(sets.classes), sets.shape.channels)
    assert sizes == EXPECTED[name]
    assert sets.training.read(np.arange(3)).shape == (3, *sets.shape.stored)


@pytest.mark.parametrize("name", EXPECTED)
def test_it_is_trained_on(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(name, tmp_path, monkeypatch)
    settings = (f"data.name={name}", f"data.root={tmp_path}", "data.classes=10", "train.max_steps=2")
    trainer = trained(tmp_path / "run", *settings, "train.global_batch_size=8")
    assert trainer.checkpointer.newest is not None


def test_images_of_their_own_size_are_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_made_up_cifar(tmp_path, monkeypatch, "cifar10")
    read = find("cifar10", tmp_path).validation.read(np.array([4, 0]))
    expected = pixels(20, 3072)[[4, 0]].reshape(2, 3, 32, 32).transpose(0, 2, 3, 1)
    assert (read.numpy() == expected).all()


@pytest.mark.parametrize("size", [16, 28, 64])
def test_images_are_resized_alike_in_any_company(size: int, tmp_path: Path) -> None:
    write_mnist(tmp_path)
    training = find("mnist", tmp_path, image_size=size).training
    assert training.read(np.arange(4)).shape == (4, size, size, 1)
    assert torch.equal(training.read(np.array([2])), training.read(np.arange(4))[2:3])


def test_a_smaller_image_is_a_mean_of_what_it_covers(tmp_path: Path) -> None:
    raw = write_mnist(tmp_path)
    lines = np.zeros((100, 28, 28), np.uint8)
    lines[:, ::2] = 200
    (raw / "train-images-idx3-ubyte").write_bytes(idx(lines))
    middle = find("mnist", tmp_path, image_size=14).training.read(np.array([0]))[0, 3:-3]
    assert (middle.float() - 100).abs().max() <= 1


def test_digits_are_not_mirrored_and_clothes_are(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    write_mnist(tmp_path, "FashionMNIST")
    assert (find("mnist", tmp_path).mirror, find("fashion_mnist", tmp_path).mirror) == (False, True)


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("file", ["data_batch_3", "test_batch", "batches.meta"])
def test_a_changed_file_is_refused_before_anything_is_unpickled(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_made_up_cifar(tmp_path, monkeypatch, "cifar10")
    trap = tmp_path / "sprung"
    (tmp_path / "cifar-10-batches-py" / file).write_bytes(pickle.dumps({"data": Trap(trap), "labels": []}))
    with pytest.raises(Failure, match=f"{file} is not the published file") as caught:
        find("cifar10", tmp_path)
    assert caught.value.code == ExitCode.DATA
    assert not trap.exists()
    pickle.loads((tmp_path / "cifar-10-batches-py" / file).read_bytes())
    assert trap.exists(), "the trap itself works"


def test_an_old_cache_beside_the_files_is_not_read(tmp_path: Path) -> None:
    processed = write_mnist(tmp_path).with_name("processed")
    processed.mkdir()
    for name in ("training.pt", "test.pt"):
        torch.save((torch.zeros(7, 28, 28, dtype=torch.uint8), torch.zeros(7, dtype=torch.int64)), processed / name)
    assert len(find("mnist", tmp_path).training.labels) == 100


def test_the_pickles_of_an_old_numpy_are_read_without_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = pickle.dumps

    def with_numbers_for_bools(content: object, protocol: int) -> bytes:
        return real(content, protocol=protocol).replace(b"\x89\x88\x87", b"K\x00K\x01\x87")

    monkeypatch.setattr(pickle, "dumps", with_numbers_for_bools)
    with_made_up_cifar(tmp_path, monkeypatch, "cifar10")
    assert b"K\x00K\x01\x87" in (tmp_path / "cifar-10-batches-py/test_batch").read_bytes()
    assert len(find("cifar10", tmp_path).training.labels) == 100


IMAGES, LABELS = "train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
BROKEN: dict[str, tuple[str, bytes, str]] = {
    "empty": (IMAGES, b"", "ValueError"),
    "short": (IMAGES, idx(pixels(100, 28, 28))[:-1], "RuntimeError"),
    "no-header": (IMAGES, bytes(3), ""),
    "text": (IMAGES, b"<html>not found</html>", ""),
    "floats": (IMAGES, struct.pack(">IIII", 0x0D03, 1, 1, 1) + bytes(4), "TypeError"),
    "flat": (IMAGES, idx(pixels(100, 28)), "3 dimension"),
    "labels-for-images": (IMAGES, idx(np.zeros(100, np.uint8)), "3 dimension"),
    "images-for-labels": (LABELS, idx(pixels(20, 28, 28)), "1 dimension"),
    "one-label-less": (LABELS, idx(np.zeros(19, np.uint8)), "19 labels for 20 images"),
    "a-label-too-large": (LABELS, idx(np.arange(20, dtype=np.uint8)), "labels up to 19"),
    "still-packed": (LABELS, b"\x1f\x8b\x08\x00abcdefgh", ""),
}


@pytest.mark.parametrize(("file", "content", "problem"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_of_digits_is_named(file: str, content: bytes, problem: str, tmp_path: Path) -> None:
    (write_mnist(tmp_path) / file).write_bytes(content)
    with pytest.raises(Failure, match=f"{file} is not the published file") as caught:
        find("mnist", tmp_path)
    assert caught.value.code == ExitCode.DATA
    assert problem in str(caught.value.found)


@pytest.mark.parametrize("name", EXPECTED)
def test_missing_files_are_named_with_the_command_that_brings_them(name: str, tmp_path: Path) -> None:
    with pytest.raises(Failure, match="not in") as caught:
        find(name, tmp_path / "empty")
    assert caught.value.code == ExitCode.NO_INPUT
    assert f"train data fetch data.name={name}" in caught.value.fix
