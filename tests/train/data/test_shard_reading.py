"""Runs of shards are read ahead into shared memory, and images that are not there one by one."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numbered import collate
from tars import data_of, numbered, write_tar

from train.data import registry
from train.data.process_pool import map_in_processes
from train.data.sampler import SampleIndices
from train.data.shards import index as shard_index
from train.data.shards import order as shard_order
from train.data.shards import source as shard_source
from train.data.shards.source import NOWHERE, ShardSource, SharedRuns
from train.data.workers import Split, UnreadableLog, WorkerLoader

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
