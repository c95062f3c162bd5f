"""The table of published data sets says what torchvision says, and knows whole files from broken ones."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from torchvision import datasets

from entrypoint import ExitCode, Failure
from train.config.schema import DataConfig
from train.data import download
from train.data.download import PUBLISHED_ARCHIVES, PublishedArchive, PublishedFile

CIFAR = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}
MNIST = {"mnist": datasets.MNIST, "fashion_mnist": datasets.FashionMNIST}
DATA = b"what is published"
MD5 = hashlib.md5(DATA).hexdigest()


def test_every_published_data_set_has_its_files() -> None:
    assert set(PUBLISHED_ARCHIVES) == {*CIFAR, *MNIST}


@pytest.mark.parametrize("name", CIFAR)
def test_cifar_has_the_address_and_hashes_that_torchvision_publishes(name: str) -> None:
    theirs, (archive,) = CIFAR[name], PUBLISHED_ARCHIVES[name]
    assert archive.addresses(None) == (theirs.url,)
    assert (archive.path, archive.md5) == (theirs.filename, theirs.tgz_md5)
    listed = [*theirs.train_list, *theirs.test_list, [theirs.meta["filename"], theirs.meta["md5"]]]
    assert [(file.path, file.md5) for file in archive.files] == [
        (f"{theirs.base_folder}/{file}", md5) for file, md5 in listed
    ]


@pytest.mark.parametrize("name", MNIST)
def test_mnist_has_the_addresses_and_hashes_that_torchvision_publishes(name: str) -> None:
    theirs, ours = MNIST[name], PUBLISHED_ARCHIVES[name]
    assert [(archive.name, archive.md5) for archive in ours] == list(theirs.resources)
    for archive in ours:
        assert archive.addresses(None) == tuple(f"{mirror}{archive.name}" for mirror in theirs.mirrors)
        assert archive.path == f"{theirs.__name__}/raw/{archive.name}"
        assert archive.files[0].path == archive.path.removesuffix(".gz")


@pytest.mark.parametrize("mirror", ["http://h/some/where", "http://h/some/where/", "http://h/some/where//"])
def test_a_mirror_replaces_the_folder_of_the_address(mirror: str) -> None:
    (archive,) = PUBLISHED_ARCHIVES["cifar10"]
    assert archive.addresses(mirror) == ("http://h/some/where/cifar-10-python.tar.gz",)


def of(file: PublishedFile) -> PublishedArchive:
    return PublishedArchive(path="a.gz", md5=MD5, size=1, folders=(), files=(file,))


BY_HASH, BY_SIZE = PublishedFile(path="d/f", md5=MD5), PublishedFile(path="d/f", size=len(DATA))


@pytest.mark.parametrize("file", [BY_HASH, BY_SIZE], ids=["by-hash", "by-size"])
def test_a_whole_file_is_known(tmp_path: Path, file: PublishedFile) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_bytes(DATA)
    assert download.is_unpacked(of(file), tmp_path)


@pytest.mark.parametrize("file", [BY_HASH, BY_SIZE], ids=["by-hash", "by-size"])
@pytest.mark.parametrize("left", [b"", DATA[:-1], DATA + b"!"], ids=["empty", "half", "longer"])
def test_a_broken_file_is_not_whole(tmp_path: Path, file: PublishedFile, left: bytes) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_bytes(left)
    assert not download.is_unpacked(of(file), tmp_path)


@pytest.mark.parametrize("file", [BY_HASH, BY_SIZE], ids=["by-hash", "by-size"])
def test_what_is_not_a_readable_file_is_not_whole(tmp_path: Path, file: PublishedFile) -> None:
    assert not download.is_unpacked(of(file), tmp_path / "none")
    (tmp_path / "d/f").mkdir(parents=True)
    assert not download.is_unpacked(of(file), tmp_path)
    (tmp_path / "r").symlink_to("r")
    assert not download.is_unpacked(of(file), tmp_path / "r")


def test_one_changed_bit_is_not_whole(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_bytes(b"X" + DATA[1:])
    assert not download.is_unpacked(of(BY_HASH), tmp_path)


def test_names_alone_say_whether_data_seems_there(tmp_path: Path) -> None:
    assert not download.files_exist("cifar100", tmp_path)
    (tmp_path / "cifar-100-python").mkdir()
    for name in ("train", "test", "meta"):
        (tmp_path / "cifar-100-python" / name).touch()
    assert download.files_exist("cifar100", tmp_path)


BAD_DATA = {
    "synthetic": (DataConfig(), "data.name synthetic"),
    "folder": (DataConfig(name="folder"), "data.name folder"),
    "arrays": (DataConfig(name="npz"), "data.name npz"),
    "plugin": (DataConfig(name="my.data:factory"), "data.name my.data:factory"),
}


@pytest.mark.parametrize(("data", "said"), BAD_DATA.values(), ids=BAD_DATA.keys())
def test_what_cannot_be_downloaded_is_refused(data: DataConfig, said: str) -> None:
    with pytest.raises(Failure, match=said) as refused:
        download.refuse_unpublished(data)
    assert refused.value.code == ExitCode.USAGE


@pytest.mark.parametrize("mirror", [None, "http://host/a@b", "file:///srv/a@b", "https://host:8443"])
def test_a_published_data_set_may_be_downloaded(mirror: str | None) -> None:
    download.refuse_unpublished(DataConfig(name="mnist", mirror=mirror))


def test_the_first_missing_file_is_named_with_the_command_that_brings_it(tmp_path: Path) -> None:
    (tmp_path / "MNIST/raw").mkdir(parents=True)
    (tmp_path / "MNIST/raw/train-images-idx3-ubyte").touch()
    with pytest.raises(Failure, match="its files are not") as refused:
        download.refuse_missing_files(DataConfig(name="mnist", root=str(tmp_path)))
    assert refused.value.code == ExitCode.NO_INPUT
    assert refused.value.found == f"no {tmp_path}/MNIST/raw/train-labels-idx1-ubyte"
    assert f"`train data fetch data.name=mnist data.root={tmp_path}`" in refused.value.fix
    assert f"put train-labels-idx1-ubyte.gz at {tmp_path}/MNIST/raw/train-labels-idx1-ubyte.gz" in refused.value.fix


def test_what_is_there_is_not_missing(tmp_path: Path) -> None:
    for archive in PUBLISHED_ARCHIVES["cifar10"]:
        for file in archive.files:
            (tmp_path / file.path).parent.mkdir(exist_ok=True)
            (tmp_path / file.path).touch()
    download.refuse_missing_files(DataConfig(name="cifar10", root=str(tmp_path)))


def test_a_root_that_cannot_be_looked_into_is_missing_input(tmp_path: Path) -> None:
    (tmp_path / "r").symlink_to("r")
    with pytest.raises(Failure) as refused:
        download.refuse_missing_files(DataConfig(name="cifar100", root=str(tmp_path / "r")))
    assert refused.value.code == ExitCode.NO_INPUT
