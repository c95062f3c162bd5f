"""Shards are opened by an index that fits them, and read in runs ahead, or image by image."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hosts import together
from numbered import collate
from tars import data_of, numbered, write_tar

from entrypoint import Failure
from train.data import registry
from train.data.process_pool import map_in_processes
from train.data.sampler import SampleIndices
from train.data.shards import index as shard_index
from train.data.shards import order as shard_order
from train.data.shards import source as shard_source
from train.data.shards.source import NOWHERE, ShardSource, SharedRuns
from train.data.workers import Split, UnreadableLog, WorkerLoader
from train.distributed.shared_memory import HostRanks


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two shards of 20 images each, indexed."""
    write_tar(tmp_path / "data" / "a-00.tar", numbered(0, 20))
    write_tar(tmp_path / "data" / "a-01.tar", numbered(20, 20))
    shard_index.write_index(tmp_path / "data", processes=1)
    return tmp_path / "data"


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


def warnings_of(folder: Path, members: dict[str, dict[str, bytes]]) -> tuple[str, ...]:
    for name, content in members.items():
        write_tar(folder / name, content)
    shard_index.write_index(folder, processes=1)
    return registry.open_splits(data_of(folder, val_fraction=0.0)).warnings


def test_shards_whose_names_say_no_split_beside_those_that_do_are_warned_of(tmp_path: Path) -> None:
    names = ("train2017-0.tar", "eval-0.tar", "val-0.tar")
    (warning,) = warnings_of(tmp_path, {name: numbered(10 * n, 4) for n, name in enumerate(names)})
    assert "no word train, as others have: eval-0.tar. fix: " in warning


@pytest.mark.parametrize("names", [("train-0.tar", "train-1.tar", "val-0.tar"), ("a-0.tar", "holdout-0.tar")])
def test_shards_that_all_say_their_split_or_none_does_are_not_warned_of(names: tuple[str, ...], tmp_path: Path) -> None:
    assert warnings_of(tmp_path, {name: numbered(10 * n, 4) for n, name in enumerate(names)}) == ()


def texts(*labels: str) -> dict[str, bytes]:
    """An image for each of these labels in KEY.txt."""
    images = numbered(0, len(labels))
    return {f"{n:04d}.txt": label.encode() for n, label in enumerate(labels)} | {
        name: content for name, content in images.items() if name.endswith(".png")
    }


def test_a_text_of_its_own_for_most_images_is_probably_a_caption(tmp_path: Path) -> None:
    (warning,) = warnings_of(tmp_path, {"0.tar": texts(*(f"a dog with {n} friends" for n in range(24)))})
    assert warning.startswith("24 classes for 24 images: captions?")


def test_labels_that_commas_divide_are_probably_several(tmp_path: Path) -> None:
    (warning,) = warnings_of(tmp_path, {"0.tar": texts("cat,dog", "dog", "cat", "cat,dog,sofa", "sofa")})
    assert warning.startswith("the labels hold commas: several labels of one image? (cat,dog). fix: ")


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

    problem = f"{other / 'a-01.tar'}: No such file or directory (on {socket.gethostname()})"
    assert together(open_on, [0, 0, 1, 1]) == [(66, problem)] * 4


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


IMAGES = 120


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ShardSource:
    """Four shards of 30 images, in runs of about six, and two batches ahead."""
    for number in range(4):
        write_tar(tmp_path / f"{number}.tar", numbered(30 * number, 30))
    monkeypatch.setattr(shard_order.cut_into_runs, "__defaults__", (10_000,))
    shard_index.write_index(tmp_path, processes=1)
    monkeypatch.setattr("train.data.shards.source.AHEAD", 16)
    training = registry.open_splits(data_of(tmp_path, val_fraction=0.0)).training
    assert isinstance(training, ShardSource)
    return training


def in_batches(samples: SampleIndices) -> Iterator[tuple[int, SampleIndices]]:
    yield from enumerate(samples.reshape(-1, 8))


def read(source: ShardSource, samples: SampleIndices, workers: int = 0) -> list[int]:
    """The values of all images, as a training gets them."""
    split = Split(
        name="training",
        source=source,
        collate=collate,
        ledger=UnreadableLog(0, print),
        most=0,
        replace=True,
    )
    loader = WorkerLoader(split, workers, torch.device("cpu"))
    batches = list(loader.read(in_batches(samples)))
    assert [number for number, _ in batches] == list(range(len(samples) // 8))
    return [value for _, batch in batches for value in batch["image"][:, 0, 0, 0].tolist()]


@pytest.fixture
def single_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each image that is read alone."""
    pread, counts = os.pread, list[int]()

    def count(handle: int, length: int, offset: int) -> bytes:
        counts.append(length)
        return pread(handle, length, offset)

    monkeypatch.setattr(shard_source.os, "pread", count)
    return counts


def test_images_in_order_are_read_in_runs(source: ShardSource, single_reads: list[int]) -> None:
    assert read(source, np.arange(IMAGES)) == list(range(IMAGES))
    assert single_reads == []


def test_shards_are_closed_when_the_threads_that_read_them_end(source: ShardSource) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with source.reading(in_batches(np.arange(IMAGES))):
        runs = source.paths.ahead.runs
        assert runs is not None
        runs.read_ahead(np.arange(IMAGES))
        assert (runs.locate(np.arange(IMAGES)) != NOWHERE).all()
        assert len(os.listdir("/proc/self/fd")) > before
    assert len(os.listdir("/proc/self/fd")) == before


def test_workers_find_the_runs_in_the_memory_that_they_share(source: ShardSource) -> None:
    assert read(source, np.arange(IMAGES), workers=2) == list(range(IMAGES))


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_workers_share_memory_whatever_way_python_starts_processes(method: str, source: ShardSource) -> None:
    usual = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method(method, force=True)
    try:
        assert read(source, np.arange(16), workers=1) == list(range(16))
        assert list(map_in_processes(abs, [-1, -2, -3], 2)) == [1, 2, 3]
    finally:
        multiprocessing.set_start_method(usual, force=True)


def test_images_far_from_each_other_are_read_alone(
    source: ShardSource, single_reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("train.data.shards.source.MIN_USES", 6.0)
    order = np.random.default_rng(0).permutation(IMAGES)
    assert read(source, order) == order.tolist()
    assert len(single_reads) == IMAGES


def test_images_are_read_alone_where_the_memory_has_no_room(source: ShardSource, single_reads: list[int]) -> None:
    source.paths.ahead.is_decided = True
    source.paths.ahead.runs = runs = SharedRuns(source.paths.layout, 1)
    assert read(source, np.arange(IMAGES)) == list(range(IMAGES))
    assert 0 < len(single_reads) < IMAGES
    assert len(runs._slots) == 1


def test_a_run_keeps_its_place_until_its_images_are_decoded(source: ShardSource) -> None:
    runs = SharedRuns(source.paths.layout, 1)
    first, last = np.arange(4), np.arange(IMAGES - 4, IMAGES)
    runs.read_ahead(first)
    runs.read_ahead(last)
    assert (runs.locate(first) != NOWHERE).all()
    assert (runs.locate(last) == NOWHERE).all()
    runs.release(first), runs.release(last)
    runs.read_ahead(last)
    assert (runs.locate(last) != NOWHERE).all()
    runs.stop()


def test_a_shard_that_is_gone_is_named_by_the_image_that_needs_it(source: ShardSource) -> None:
    (source.paths.layout.folder / "3.tar").unlink()
    with pytest.raises(shard_source.Failure, match=r"3\.tar: it is gone") as caught:
        read(source, np.arange(IMAGES))
    assert caught.value.code == 66
