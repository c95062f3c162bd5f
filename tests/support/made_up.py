"""Small made-up data sets in the published layout; the md5 tables of torchvision and of ours are replaced by theirs."""

from __future__ import annotations

import hashlib
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torchvision import datasets

from train import rng
from train.data import download


def pixels(count: int, *shape: int) -> np.ndarray:  # type: ignore[type-arg]
    """Bytes that differ from sample to sample."""
    words = rng.random_bits(np.arange(count)[:, None], np.arange(int(np.prod(shape))))
    return (words >> np.uint64(56)).astype(np.uint8).reshape(count, *shape)


def with_made_up_cifar(root: Path, monkeypatch: pytest.MonkeyPatch, name: str, each: int = 20) -> Any:
    """`each` images in every file of cifar10 or cifar100 below root; torchvision takes them for the real ones."""
    kind: Any = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}[name]
    classes, key = (10, "labels") if name == "cifar10" else (100, "fine_labels")
    for table in ("train_list", "test_list"):
        found = []
        for place, (file, _) in enumerate(getattr(kind, table)):
            entry = {"data": pixels(each, 3072), key: [(place + number) % classes for number in range(each)]}
            found.append([file, _dump(root / kind.base_folder / file, entry)])
        monkeypatch.setattr(kind, table, found)
    names = {kind.meta["key"]: [f"name-{label}" for label in range(classes)]}
    md5 = _dump(root / kind.base_folder / kind.meta["filename"], names)
    monkeypatch.setattr(kind, "meta", kind.meta | {"md5": md5})
    (archive,) = download.PUBLISHED_ARCHIVES[name]
    hashes = [*kind.train_list, *kind.test_list, (kind.meta["filename"], md5)]
    files = tuple(download.PublishedFile(path=f"{kind.base_folder}/{file}", md5=each) for file, each in hashes)
    monkeypatch.setitem(download.PUBLISHED_ARCHIVES, name, (replace(archive, files=files),))
    return kind


def write_mnist(root: Path, folder: str = "MNIST", training: int = 100, validation: int = 20) -> Path:
    """So many digits in MNIST's files; returns their folder."""
    raw = root / folder / "raw"
    raw.mkdir(parents=True)
    for name, count in (("train", training), ("t10k", validation)):
        (raw / f"{name}-images-idx3-ubyte").write_bytes(idx(pixels(count, 28, 28)))
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(idx(np.arange(count, dtype=np.uint8) % 10))
    return raw


def idx(values: np.ndarray) -> bytes:  # type: ignore[type-arg]
    """Bytes in MNIST's format."""
    header = [0x800 + values.ndim, *values.shape]
    return b"".join(number.to_bytes(4, "big") for number in header) + values.tobytes()


def _dump(path: Path, content: object) -> str:
    """Pickled as numpy did when the files were published; returns the md5."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = pickle.dumps(content, protocol=2)
    path.write_bytes(data)
    return hashlib.md5(data).hexdigest()
