"""The table of published data sets says what torchvision says, and knows whole files from broken ones."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from torchvision import datasets

from entrypoint import ExitCode, Failure
from train.fetching import archives
from train.fetching.archives import PUBLISHED, Archive, File
from train.settings import names
from train.settings.config import Data

CIFAR = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}
MNIST = {"mnist": datasets.MNIST, "fashion_mnist": datasets.FashionMNIST}
DATA = b"what is published"
MD5 = hashlib.md5(DATA).hexdigest()


def test_every_published_data_set_has_its_files() -> None:
    assert set(PUBLISHED) == set(names.PUBLISHED) == {*CIFAR, *MNIST}


@pytest.mark.parametrize("name", CIFAR)
def test_cifar_has_the_address_and_hashes_that_torchvision_publishes(name: str) -> None:
    theirs, (archive,) = CIFAR[name], PUBLISHED[name]
    assert archive.addresses(None) == (theirs.url,)
    assert (archive.path, archive.md5) == (theirs.filename, theirs.tgz_md5)
    listed = [*theirs.train_list, *theirs.test_list, [theirs.meta["filename"], theirs.meta["md5"]]]
    assert [(file.path, file.md5) for file in archive.files] == [
        (f"{theirs.base_folder}/{file}", md5) for file, md5 in listed
    ]


@pytest.mark.parametrize("name", MNIST)
def test_mnist_has_the_addresses_and_hashes_that_torchvision_publishes(name: str) -> None:
    theirs, ours = MNIST[name], PUBLISHED[name]
    assert [(archive.name, archive.md5) for archive in ours] == list(theirs.resources)
    for archive in ours:
        assert archive.addresses(None) == tuple(f"{mirror}{archive.name}" for mirror in theirs.mirrors)
        assert archive.path == f"{theirs.__name__}/raw/{archive.name}"
        assert archive.files[0].path == archive.path.removesuffix(".gz")


@pytest.mark.parametrize("mirror", ["http://h/some/where", "http://h/some/where/", "http://h/some/where//"])
def test_a_mirror_replaces_the_folder_of_the_address(mirror: str) -> None:
    (archive,) = PUBLISHED["cifar10"]
    assert archive.addresses(mirror) == ("http://h/some/where/cifar-10-python.tar.gz",)


def of(file: File) -> Archive:
    return Archive(path="a.gz", md5=MD5, size=1, folders=(), files=(file,))


BY_HASH, BY_SIZE = File(path="d/f", md5=MD5), File(path="d/f", size=len(DATA))


@pytest.mark.parametrize("file", [BY_HASH, BY_SIZE], ids=["by-hash", "by-size"])
def test_a_whole_file_is_known(tmp_path: Path, file: File) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_bytes(DATA)
    assert archives.whole(of(file), tmp_path)


@pytest.mark.parametrize("file", [BY_HASH, BY_SIZE], ids=["by-hash", "by-size"])
@pytest.mark.parametrize("left", [b"", DATA[:-1], DATA + b"!"], ids=["empty", "half", "longer"])
def test_a_broken_file_is_not_whole(tmp_path: Path, file: File, left: bytes) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_bytes(left)
    assert not archives.whole(of(file), tmp_path)


@pytest.mark.parametrize("file", [BY_HASH, BY_SIZE], ids=["by-hash", "by-size"])
def test_what_is_not_a_readable_file_is_not_whole(tmp_path: Path, file: File) -> None:
    assert not archives.whole(of(file), tmp_path / "none")
    (tmp_path / "d/f").mkdir(parents=True)
    assert not archives.whole(of(file), tmp_path)
    (tmp_path / "r").symlink_to("r")
    assert not archives.whole(of(file), tmp_path / "r")


def test_one_changed_bit_is_not_whole(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_bytes(b"X" + DATA[1:])
    assert not archives.whole(of(BY_HASH), tmp_path)


def test_names_alone_say_whether_data_seems_there(tmp_path: Path) -> None:
    assert not archives.seem_there("cifar100", tmp_path)
    (tmp_path / "cifar-100-python").mkdir()
    for name in ("train", "test", "meta"):
        (tmp_path / "cifar-100-python" / name).touch()
    assert archives.seem_there("cifar100", tmp_path)


BAD_DATA = {
    "synthetic": (Data(), "data.name synthetic"),
    "folder": (Data(name="folder"), "data.name folder"),
    "arrays": (Data(name="npz"), "data.name npz"),
    "plugin": (Data(name="my.data:factory"), "data.name my.data:factory"),
}


@pytest.mark.parametrize(("data", "said"), BAD_DATA.values(), ids=BAD_DATA.keys())
def test_what_cannot_be_downloaded_is_refused(data: Data, said: str) -> None:
    with pytest.raises(Failure, match=said) as refused:
        archives.refuse_unpublished(data)
    assert refused.value.code == ExitCode.USAGE


@pytest.mark.parametrize("mirror", [None, "http://host/a@b", "file:///srv/a@b", "https://host:8443"])
def test_a_published_data_set_may_be_downloaded(mirror: str | None) -> None:
    archives.refuse_unpublished(Data(name="mnist", mirror=mirror))


def test_the_first_missing_file_is_named_with_the_command_that_brings_it(tmp_path: Path) -> None:
    (tmp_path / "MNIST/raw").mkdir(parents=True)
    (tmp_path / "MNIST/raw/train-images-idx3-ubyte").touch()
    with pytest.raises(Failure, match="its files are not") as refused:
        archives.refuse_missing(Data(name="mnist", root=str(tmp_path)))
    assert refused.value.code == ExitCode.NO_INPUT
    assert refused.value.found == f"no {tmp_path}/MNIST/raw/train-labels-idx1-ubyte"
    assert f"`train data fetch data.name=mnist data.root={tmp_path}`" in refused.value.fix
    assert f"put train-labels-idx1-ubyte.gz at {tmp_path}/MNIST/raw/train-labels-idx1-ubyte.gz" in refused.value.fix


def test_what_is_there_is_not_missing(tmp_path: Path) -> None:
    for archive in PUBLISHED["cifar10"]:
        for file in archive.files:
            (tmp_path / file.path).parent.mkdir(exist_ok=True)
            (tmp_path / file.path).touch()
    archives.refuse_missing(Data(name="cifar10", root=str(tmp_path)))


def test_a_root_that_cannot_be_looked_into_is_missing_input(tmp_path: Path) -> None:
    (tmp_path / "r").symlink_to("r")
    with pytest.raises(Failure) as refused:
        archives.refuse_missing(Data(name="cifar100", root=str(tmp_path / "r")))
    assert refused.value.code == ExitCode.NO_INPUT
