"""The name table of the published data sets: their files, addresses, hashes, and where each belongs below data.root."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from entrypoint import ExitCode, Failure
from train.settings.config import Data

CHUNK = 1 << 20  # bytes at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file that torchvision reads. path: below data.root; inside a .tar.gz it has the same name.

    What is published of it: its md5 (CIFAR), or its size in bytes (MNIST: a header and so many images).
    """

    path: str
    md5: str | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """A published file, which holds `files`: a .tar.gz several, a .gz one. It stays beside them.

    path: where it is kept, below data.root. folders: addresses whose `/NAME` is this file, the best first.
    size: in bytes.
    """

    path: str
    md5: str
    size: int
    folders: tuple[str, ...]
    files: tuple[File, ...]

    @property
    def name(self) -> str:
        """Its file name, here and at its address."""
        return self.path.rpartition("/")[2]

    def addresses(self, mirror: str | None) -> tuple[str, ...]:
        """Where it is found: below data.mirror where there is one, else where it is published."""
        folders = self.folders if mirror is None else (mirror,)
        return tuple(f"{folder.rstrip('/')}/{self.name}" for folder in folders)


def _cifar(name: str, md5: str, size: int, folder: str, files: dict[str, str]) -> tuple[Archive, ...]:
    inside = tuple(File(path=f"{folder}/{name}", md5=md5) for name, md5 in files.items())
    return (Archive(path=name, md5=md5, size=size, folders=("https://www.cs.toronto.edu/~kriz",), files=inside),)


# Bytes once unpacked: images are a header of 16 bytes and 28 x 28 pixels each, labels one of 8 bytes and one byte each.
_IDX = {
    "train-images-idx3-ubyte": 16 + 60_000 * 28 * 28,
    "train-labels-idx1-ubyte": 8 + 60_000,
    "t10k-images-idx3-ubyte": 16 + 10_000 * 28 * 28,
    "t10k-labels-idx1-ubyte": 8 + 10_000,
}


def _mnist(folder: str, folders: tuple[str, ...], published: Sequence[tuple[str, int]]) -> tuple[Archive, ...]:
    return tuple(
        Archive(
            path=f"{folder}/raw/{name}.gz",
            md5=md5,
            size=size,
            folders=folders,
            files=(File(path=f"{folder}/raw/{name}", size=_IDX[name]),),
        )
        for name, (md5, size) in zip(_IDX, published, strict=True)
    )


# Hashes and addresses as torchvision.datasets has them: a test compares.
PUBLISHED: dict[str, tuple[Archive, ...]] = {
    "cifar10": _cifar(
        "cifar-10-python.tar.gz",
        "c58f30108f718f92721af3b95e74349a",
        170_498_071,
        "cifar-10-batches-py",
        {
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
            "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
        },
    ),
    "cifar100": _cifar(
        "cifar-100-python.tar.gz",
        "eb9058c3a382ffc7106e4002c42a8d85",
        169_001_437,
        "cifar-100-python",
        {
            "train": "16019d7e3df5f24257cddd939b257f8d",
            "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
            "meta": "7973b15100ade9c7d40fb424638fde48",
        },
    ),
    "mnist": _mnist(
        "MNIST",
        ("https://ossci-datasets.s3.amazonaws.com/mnist", "http://yann.lecun.com/exdb/mnist"),
        (
            ("f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
            ("d53e105ee54ea40749a09fcbcd1e9432", 28_881),
            ("9fb629c4189551a2d022fa330f9573f3", 1_648_877),
            ("ec29112dd5afa0611ce80d1b7f02629c", 4_542),
        ),
    ),
    "fashion_mnist": _mnist(
        "FashionMNIST",
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",),
        (
            ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
            ("25c81989df183df01b3e8a0aad5dffbe", 29_515),
            ("bef4ecab320f06d8554ea6380940ec79", 4_422_102),
            ("bb300cfdad3c16e7a12a480ee83cd310", 5_148),
        ),
    ),
}


def refuse_unpublished(data: Data) -> None:
    """Raises Failure (USAGE), where there is nothing to download."""
    if data.name not in PUBLISHED:
        raise Failure(
            f"data.name {data.name} is not a published data set: there is nothing to download",
            expected=f"data.name: one of {', '.join(PUBLISHED)}",
            fix="set data.name to one of these, or leave data.download out",
            code=ExitCode.USAGE,
        )


def whole(archive: Archive, root: Path) -> bool:
    """Whether all that `archive` holds lies unpacked below `root`: the published hashes (all is read) or sizes."""
    return all(is_whole(file, root) for file in archive.files)


def is_whole(file: File, root: Path) -> bool:
    """Whether this file is there with its published hash or size; False where it cannot be read."""
    path = root / file.path
    try:
        return path.is_file() and path.stat().st_size == file.size if file.md5 is None else md5_of(path) == file.md5
    except OSError:
        return False


def seem_there(name: str, root: Path) -> bool:
    """Whether every file of data set `name` has its name below `root`; nothing is read, for `train check`."""
    return all(_named(archive, root) for archive in PUBLISHED[name])


def refuse_missing(data: Data) -> None:
    """Raises Failure (NO_INPUT), naming the first file that is not below data.root and two ways to bring it there."""
    if seem_there(data.name, root := Path(data.root)):
        return
    first = next((archive for archive in PUBLISHED[data.name] if not _named(archive, root)), PUBLISHED[data.name][0])
    path = next((root / file.path for file in first.files if not os.path.isfile(root / file.path)), root)
    command = fetch_command(data.name, root)
    raise Failure(
        f"data.name {data.name}: its files are not in data.root",
        found=f"no {path.absolute()}",
        expected=f"what torchvision unpacks from {first.name} (md5 {first.md5})",
        fix=f"run `{command}` where there is a network; without one, put {first.name} at {root / first.path} first",
        code=ExitCode.NO_INPUT,
    )


def fetch_command(name: str, root: Path) -> str:
    """What a user types to bring data set `name` into `root`."""
    return f"train data fetch data.name={name} data.root={shlex.quote(str(root))}"


def _named(archive: Archive, root: Path) -> bool:
    return all(os.path.isfile(root / file.path) for file in archive.files)


def md5_of(path: Path) -> str:
    """In hexadecimal. Raises OSError."""
    digest = hashlib.md5(usedforsecurity=False)  # what is published; against accidents, and FIPS systems allow it so
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
