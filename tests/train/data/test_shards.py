"""Images in tar shards: their index, what is refused, and that they are read as they were packed."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hosts import together
from PIL import Image
from tars import Members, data_of, numbered, png, write_tar

from entrypoint import Failure
from train.config.schema import DataConfig
from train.data import registry, shard_labels
from train.data.shards import index as shard_index
from train.data.shards import packing
from train.data.shards import source as shard_source
from train.data.shards.packing import Scaling
from train.data.splits import SampleSource
from train.distributed.shared_memory import HostRanks


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two shards of 20 images each, indexed."""
    write_tar(tmp_path / "data" / "a-00.tar", numbered(0, 20))
    write_tar(tmp_path / "data" / "a-01.tar", numbered(20, 20))
    shard_index.write_index(tmp_path / "data", processes=1)
    return tmp_path / "data"


def values(source: SampleSource) -> list[int]:
    """The first value of each image."""
    return source.read(np.arange(len(source.labels)))[:, 0, 0, 0].tolist()


def refusal(folder: Path) -> Failure:
    with pytest.raises(Failure) as caught:
        registry.open_splits(data_of(folder))
    return caught.value


def test_images_and_labels_are_those_of_the_shards(folder: Path) -> None:
    splits = registry.open_splits(data_of(folder, val_fraction=0.0))
    pixels = splits.training.read(np.arange(40))
    assert pixels[:, 0, 0, 0].tolist() == list(range(40))
    assert splits.training.labels.tolist() == [0, 1] * 20
    assert splits.classes == ("0", "1")


def test_a_share_of_each_class_validates(folder: Path) -> None:
    splits = registry.open_splits(data_of(folder, val_fraction=0.25))
    assert splits.validation.labels.bincount().tolist() == [5, 5]
    both = [
        source.read(np.arange(len(source.labels)))[:, 0, 0, 0].tolist()
        for source in (splits.training, splits.validation)
    ]
    assert sorted(both[0] + both[1]) == list(range(40))


@pytest.mark.parametrize("name", ["val-00.tar", "val/00.tar", "imagenet-validation-00.tar", "test-00.tar"])
def test_shards_with_the_name_of_a_split_are_that_split(folder: Path, name: str) -> None:
    assert not registry.open_splits(data_of(folder)).has_own_validation
    write_tar(folder / name, numbered(100, 4))
    shard_index.write_index(folder, processes=1)
    splits = registry.open_splits(data_of(folder))
    assert splits.has_own_validation
    assert splits.validation.read(np.arange(4))[:, 0, 0, 0].tolist() == [100, 101, 102, 103]
    assert len(splits.training.labels) == 40


@pytest.mark.parametrize(
    ("suffix", "texts"),
    [
        ("cls", ["3", "1"]),
        ("json", ['{"label": 3, "caption": "x"}', '{"cls": 1}']),
        ("txt", ["3\n", " 1"]),
    ],
)
def test_labels_may_be_written_in_several_ways(tmp_path: Path, suffix: str, texts: list[str]) -> None:
    members = {"x/a.png": png(1), f"x/a.{suffix}": texts[0].encode(), f"x/b.{suffix}": texts[1].encode()}
    write_tar(tmp_path / "0.tar", members | {"x/b.png": png(2)})
    index = shard_index.write_index(tmp_path, processes=1)
    assert index.entries["label"].tolist() == [3, 1]
    assert index.labels.classes == ("0", "1", "2", "3")


def test_labels_may_be_names(tmp_path: Path) -> None:
    write_tar(tmp_path / "0.tar", {"a.png": png(1), "a.cls": b"dog", "b.png": png(2), "b.cls": b"cat"})
    index = shard_index.write_index(tmp_path, processes=1)
    assert (index.labels.classes, index.entries["label"].tolist()) == (("cat", "dog"), [1, 0])


def test_numbers_get_their_names_from_classes_txt(folder: Path) -> None:
    (folder / shard_labels.CLASSES_FILE).write_text("cat\ndog\n")
    assert shard_index.write_index(folder, processes=1).labels.classes == ("cat", "dog")


def test_several_processes_write_the_same_index(folder: Path) -> None:
    alone = shard_index.read_index(folder).entries.tobytes()
    assert shard_index.write_index(folder, processes=2).entries.tobytes() == alone


def test_an_entry_takes_24_bytes() -> None:
    assert shard_index.ENTRY.itemsize == 24


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({"a.png": png(1)}, "no label"),
        ({"a.png": png(1), "a.cls": b"1", "b.png": png(1), "b.cls": b"cat"}, "others are names"),
    ],
    ids=["no label", "mixed"],
)
def test_labels_that_cannot_be_used_are_refused(tmp_path: Path, members: Members, says: str) -> None:
    write_tar(tmp_path / "0.tar", members)
    with pytest.raises(Failure, match=says) as caught:
        shard_index.write_index(tmp_path, processes=1)
    assert caught.value.code == 65


@pytest.mark.parametrize("kept", [700, 10_000, -10_240], ids=["in an image", "in the middle", "without its end"])
def test_a_shard_that_is_cut_is_refused_when_it_is_indexed(tmp_path: Path, kept: int) -> None:
    path = write_tar(tmp_path / "0.tar", numbered(0, 20))
    whole = path.read_bytes()
    end = whole.rindex(b"0019.cls") + 1024
    path.write_bytes(whole[:kept] if kept > 0 else whole[:end])
    with pytest.raises(Failure, match="a shard is damaged") as caught:
        shard_index.write_index(tmp_path, processes=1)
    assert caught.value.code == 65


def test_shards_without_an_index_are_refused_with_the_command(tmp_path: Path) -> None:
    write_tar(tmp_path / "0.tar", numbered(0, 2))
    failure = refusal(tmp_path)
    assert (failure.code, failure.fix) == (66, f"train data index {tmp_path}")


def test_a_folder_without_shards_and_compressed_shards_are_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "gone").what == f"there is no folder {tmp_path / 'gone'}"
    assert "train data pack" in refusal(tmp_path).fix
    (tmp_path / "0.tar.gz").touch()
    assert "gunzip" in refusal(tmp_path).fix


def cut(folder: Path) -> None:
    os.truncate(folder / "a-01.tar", 5000)


def swap(folder: Path) -> None:
    first, second = folder / "a-00.tar", folder / "a-01.tar"
    first.rename(folder / "x"), second.rename(first), (folder / "x").rename(second)


def remove(folder: Path) -> None:
    (folder / "a-01.tar").unlink()


def add(folder: Path) -> None:
    write_tar(folder / "a-02.tar", numbered(40, 2))


def index_of_others(folder: Path) -> None:
    facts = json.loads((folder / "index.json").read_text())
    facts["shards"][0]["size"] += 512
    (folder / "index.json").write_text(json.dumps(facts))


def earlier_version(folder: Path) -> None:
    facts = json.loads((folder / "index.json").read_text())
    facts = {key: value for key, value in facts.items() if key != "task"} | {"version": 1}
    (folder / "index.json").write_text(json.dumps(facts))


def broken_index(folder: Path) -> None:
    (folder / "index.npy").write_bytes(b"nothing")


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        (cut, 65, "another size"),
        (swap, 65, "another time of its last change"),
        (remove, 66, "a-01.tar"),
        (add, 65, "not in the index: a-02.tar"),
        (index_of_others, 65, "another size"),
        (broken_index, 65, "index.npy"),
        (earlier_version, 65, "index.json: version is 1, not 3: another version wrote it"),
    ],
)
def test_an_index_that_does_not_fit_the_shards_is_refused(folder: Path, change, code: int, says: str) -> None:
    change(folder)
    failure = refusal(folder)
    assert (failure.code, says in str(failure)) == (code, True), str(failure)


def test_a_shard_that_is_missing_on_one_machine_is_refused_on_all_and_names_that_machine(folder: Path) -> None:
    other = folder.with_name("other")
    shutil.copytree(folder, other)
    (other / "a-01.tar").unlink()

    def open_on(host: HostRanks) -> tuple[int, str]:
        with pytest.raises(Failure) as caught:
            registry.open_splits(data_of((folder, other)[host.node]), host)
        return caught.value.code, caught.value.found or ""

    said = f"{other / 'a-01.tar'}: No such file or directory (on {socket.gethostname()})"
    assert together(open_on, [0, 0, 1, 1]) == [(66, said)] * 4


def test_a_flipped_byte_is_found_and_named(folder: Path) -> None:
    path = folder / "a-00.tar"
    status, content = path.stat(), bytearray(path.read_bytes())
    content[bytes(content).index(b"0007.png") + 512 + 60] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    training = registry.open_splits(data_of(folder, val_fraction=0.0)).training
    with pytest.raises(Failure, match=r"a-00\.tar:0007\.png: its bytes have another crc32") as caught:
        training.read(np.arange(20))
    assert caught.value.code == 65


def test_image_names_are_read_from_the_shards(folder: Path) -> None:
    source = registry.open_splits(data_of(folder, val_fraction=0.0)).training
    assert isinstance(source, shard_source.ShardSource)
    assert [source.paths[0], source.paths[39]] == ["a-00.tar:0000.png", "a-01.tar:0039.png"]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Class folders with 30 images each, of which all pixels have one value."""
    for number, name in enumerate(("cat", "dog")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number_in_class in range(30):
            (tmp_path / "photos" / name / f"{number_in_class}.v1.png").write_bytes(
                png(100 * number + number_in_class, side=16)
            )
    return tmp_path / "photos"


def packed(
    photos: Path, output: Path, *, scaling: Scaling | None = None, shard_bytes: int = 1000
) -> shard_index.ShardIndex:
    data = replace(DataConfig(), name="folder", root=str(photos), image_size=16)
    return packing.pack_images(data, output, scaling=scaling, say=lambda line: None, shard_bytes=shard_bytes)


def test_packed_images_have_the_pixels_classes_and_splits_of_the_folder(photos: Path, tmp_path: Path) -> None:
    packed(photos, tmp_path / "out")
    of_folder = registry.open_splits(replace(data_of(photos), name="folder", image_size=16))
    of_shards = registry.open_splits(replace(data_of(tmp_path / "out"), image_size=16))
    assert of_shards.classes == of_folder.classes == ("cat", "dog")
    for one, other in ((of_folder.training, of_shards.training), (of_folder.validation, of_shards.validation)):
        of_one, of_other = (sorted(zip(values(each), each.labels.tolist(), strict=True)) for each in (one, other))
        assert of_one == of_other


def test_shards_hold_all_classes(photos: Path, tmp_path: Path) -> None:
    index = packed(photos, tmp_path / "out", shard_bytes=3000)
    assert len(index.shards) > 2
    ends = np.cumsum([shard.images for shard in index.shards])
    assert all(len(set(part)) == 2 for part in np.split(index.entries["label"], ends)[: len(index.shards) - 1])


def test_packing_goes_on_where_it_was_stopped(photos: Path, tmp_path: Path) -> None:
    whole = packed(photos, tmp_path / "whole").entries.tobytes()
    packed(photos, tmp_path / "out")
    first, second, *_ = sorted((tmp_path / "out").glob("train-*.tar"))
    kept = first.stat().st_mtime_ns
    second.unlink()
    (tmp_path / "out" / "index.json").unlink()
    assert packed(photos, tmp_path / "out").entries.tobytes() == whole
    assert first.stat().st_mtime_ns == kept


def test_an_image_that_is_gone_leaves_no_half_shard(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = packing._read_image

    def fail(path: str, sample: int, scaling: Scaling | None) -> tuple[str, bytes]:
        if path.endswith("/7.v1.png"):
            Path(path).unlink(missing_ok=True)
        return read(path, sample, scaling)

    monkeypatch.setattr(packing, "_read_image", fail)
    monkeypatch.setattr("train.data.process_pool.num_usable_cores", lambda: 1)
    with pytest.raises(Failure, match="it is gone"):
        packed(photos, tmp_path / "out")
    assert not list((tmp_path / "out").glob(".tmp-*"))


def test_a_folder_with_other_files_is_refused(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").touch()
    with pytest.raises(Failure, match=r"mine\.txt") as caught:
        packed(photos, tmp_path / "out")
    assert caught.value.code == 73


def test_shards_of_other_options_are_not_mixed(photos: Path, tmp_path: Path) -> None:
    packed(photos, tmp_path / "out")
    with pytest.raises(Failure, match="of other options"):
        packed(photos, tmp_path / "out", scaling=Scaling(size=8, quality=90))


def test_larger_images_are_scaled_to_the_shorter_side(photos: Path, tmp_path: Path) -> None:
    index = packed(photos, tmp_path / "out", scaling=Scaling(size=12, quality=95))
    with tarfile.open(tmp_path / "out" / index.shards[0].name) as archive:
        member = archive.getmembers()[0]
        extracted = archive.extractfile(member)
        assert extracted is not None
        with Image.open(extracted) as image:
            assert (image.size, image.format, member.name.endswith(".jpg")) == ((12, 12), "JPEG", True)


def test_a_full_disk_keeps_the_shards_that_are_there_and_says_how_to_go_on(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = packing._add

    def fail(archive: tarfile.TarFile, name: str, content: bytes) -> None:
        if name.startswith("00000025"):
            raise OSError(errno.ENOSPC, "No space left on device")
        add(archive, name, content)

    monkeypatch.setattr("train.data.process_pool.num_usable_cores", lambda: 1)
    monkeypatch.setattr(packing, "_add", fail)
    with pytest.raises(Failure, match="cannot write") as caught:
        packed(photos, tmp_path / "out")
    assert (caught.value.code, "--output DIR" in caught.value.fix) == (74, True)
    assert len(list((tmp_path / "out").glob("train-*.tar"))) >= 2
    assert not list((tmp_path / "out").glob(".tmp-*"))


@pytest.mark.parametrize("members", [{}, {"a.txt": b"no image"}], ids=["empty", "no image"])
def test_shards_without_an_image_to_train_on_are_refused(tmp_path: Path, members: Members) -> None:
    write_tar(tmp_path / "0.tar", members)
    write_tar(tmp_path / "val-0.tar", numbered(0, 2))
    with pytest.raises(Failure, match="no image to train on") as caught:
        shard_index.write_index(tmp_path, processes=1)
    assert caught.value.code == 66


def test_class_names_are_kept_as_the_folders_have_them(tmp_path: Path) -> None:
    names = ["Bäume", " spaced", os.fsdecode(b"caf\xe9"), "line\u2028separator"]
    for name in names:
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(5):
            (tmp_path / "photos" / name / f"{number}.png").write_bytes(png(number, side=16))
    packed(tmp_path / "photos", tmp_path / "out")
    assert registry.open_splits(data_of(tmp_path / "out")).classes == tuple(sorted(names))
