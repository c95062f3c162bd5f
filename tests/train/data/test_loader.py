"""Samples become batches, the same from memory and from workers, where shared memory has room for them."""

from __future__ import annotations

import subprocess
import sys
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from images import write_classes

from entrypoint import ExitCode, Failure
from train.config.schema import DataConfig
from train.data import in_memory, loader, registry
from train.data.batch import Batch
from train.data.loader import BatchLoader
from train.data.sampler import MicroBatch

CPU = torch.device("cpu")
MICRO_BATCHES = [
    MicroBatch(step=step, epoch=step // 2, number=0, samples=np.array(samples))
    for step, samples in enumerate([[3, 1], [0, 5], [2, 2], [7, 4]])
]


def opened(**changes: object) -> BatchLoader:
    settings = DataConfig(samples=12, image_size=16, val_fraction=0.25, **changes)  # type: ignore[arg-type]
    return loader.open_loader(registry.open_splits(settings), settings, seed=0, device=CPU, cores=2)


def training(**changes: object) -> list[tuple[MicroBatch, Batch]]:
    return list(opened(**changes).train(iter(MICRO_BATCHES)))


def same(first: Batch, second: Batch) -> bool:
    return torch.equal(first["image"], second["image"]) and torch.equal(first["label"], second["label"])


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_give_the_same_batches_as_memory(workers: int) -> None:
    pairs = zip(training(loader="memory"), training(loader="workers", workers=workers), strict=True)
    assert all(repr(expected[0]) == repr(read[0]) and same(expected[1], read[1]) for expected, read in pairs)


@pytest.mark.parametrize("kind", ["memory", "workers"])
def test_evaluation_gives_the_images_as_they_are(kind: str) -> None:
    (batch,) = opened(loader=kind, workers=0).evaluate([np.array([2, 0])])
    raw = registry.open_splits(DataConfig(samples=12, image_size=16, val_fraction=0.25)).validation.read(
        np.array([2, 0])
    )
    assert torch.equal(batch["image"], raw.permute(0, 3, 1, 2).float().sub(127.5).div(63.75))


def test_a_batch_is_channels_first_in_shape_and_last_in_memory() -> None:
    images = training()[0][1]["image"]
    assert (images.shape, images.dtype) == ((2, 3, 16, 16), torch.float32)
    assert images.is_contiguous(memory_format=torch.channels_last)


def test_a_sample_moves_otherwise_in_the_next_epoch() -> None:
    again = [MicroBatch(step=0, epoch=epoch, number=0, samples=np.arange(8)) for epoch in (0, 1)]
    first, second = (batch for _, batch in opened().train(iter(again)))
    assert not torch.equal(first["image"], second["image"])


def test_what_may_not_be_mirrored_is_only_shifted(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    real = loader.augment.draw_parameters
    monkeypatch.setattr(loader.augment, "draw_parameters", lambda *a, **k: seen.append(real(*a, **k)) or seen[-1])
    settings = DataConfig(samples=200, image_size=8, frames=2, val_fraction=0.0)
    clips = loader.open_loader(registry.open_splits(settings), settings, seed=0, device=CPU, cores=2)
    list(clips.train(iter([MicroBatch(step=0, epoch=0, number=0, samples=np.arange(200))])))
    assert (seen[0].down.any(), seen[0].mirror.any()) == (True, False)


def test_without_augmentation_every_epoch_sees_the_same() -> None:
    again = [MicroBatch(step=0, epoch=epoch, number=0, samples=np.arange(8)) for epoch in (0, 1)]
    first, second = (batch for _, batch in opened(augment="none").train(iter(again)))
    assert torch.equal(first["image"], second["image"])


@pytest.mark.parametrize("augmentation", ["none", "standard"])
def test_no_memory_is_kept_for_batches_of_the_past(augmentation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train.data.workers.SAMPLES_PER_BLOCK", 8)
    order = [np.arange(8) for _ in range(200)]
    seen = [weakref.ref(samples) for samples in order]
    again = (MicroBatch(step=0, epoch=0, number=0, samples=order.pop(0)) for _ in range(200))
    stream = opened(augment=augmentation).train(again)
    for _ in range(190):
        next(stream)
    assert {samples() is None for samples in seen[:100]} == {True}


def test_auto_takes_memory_where_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert opened().description == "memory"
    monkeypatch.setattr(loader, "MAX_IN_MEMORY_BYTES", 100)
    assert opened().description == "1 worker"


@pytest.mark.parametrize(("kind", "chosen"), [("u1", "memory"), ("f4", "workers")])
def test_floats_fill_the_memory_with_a_quarter_of_the_numbers(
    kind: str, chosen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "MAX_IN_MEMORY_BYTES", 20 * 8 * 8 * 2)
    np.savez(tmp_path / "a.npz", images=np.zeros((20, 8, 8), kind), labels=np.arange(20) % 2)
    settings = DataConfig(name="npz", root=str(tmp_path / "a.npz"))
    assert loader.choose_loader(registry.open_splits(settings), settings, 2)[0] == chosen


def test_memory_is_filled_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = training(loader="memory")
    monkeypatch.setattr(in_memory, "IMAGES_PER_CHUNK", 2)
    assert all(same(a[1], b[1]) for a, b in zip(expected, training(loader="memory"), strict=True))


@pytest.fixture
def broken(tmp_path: Path) -> DataConfig:
    """A folder in which one file is no image."""
    root = write_classes(tmp_path, ant=4, bee=4)
    (root / "ant/000.png").write_bytes(b"no image")
    return DataConfig(name="folder", root=str(root), image_size=8, val_fraction=0.0)


def read(settings: DataConfig, kind: str) -> Iterator[object]:
    pieces = iter([MicroBatch(step=0, epoch=0, number=0, samples=np.arange(8))])
    sets = registry.open_splits(settings)
    settings = replace(settings, loader=kind)  # type: ignore[arg-type]
    return loader.open_loader(sets, settings, seed=0, device=CPU, cores=2).train(pieces)


@pytest.mark.parametrize("kind", ["memory", "workers"])
def test_a_broken_image_is_named_whoever_reads_it(broken: DataConfig, kind: str) -> None:
    with pytest.raises(Failure, match="image 0 cannot be read") as caught:
        list(read(broken, kind))
    assert caught.value.code == 65
    assert "000.png" in str(caught.value)


@pytest.mark.parametrize("kind", ["memory", "workers"])
def test_a_broken_image_that_may_be_skipped_is_said_once_though_met_in_every_epoch(
    broken: DataConfig, kind: str
) -> None:
    settings = replace(broken, loader=kind, max_bad_images=1)  # type: ignore[arg-type]
    printed: list[str] = []
    pieces = [MicroBatch(step=epoch, epoch=epoch, number=0, samples=np.arange(8)) for epoch in range(3)]
    ready = loader.open_loader(
        registry.open_splits(settings), settings, seed=0, device=CPU, cores=2, say=printed.append
    )
    assert [len(batch["label"]) for _, batch in ready.train(pieces)] == [8, 8, 8]
    assert len(printed) == len(list(ready.broken)) == 1
    assert "ant/000.png" in printed[0]


def test_without_anyone_to_tell_it_is_said_on_stderr(broken: DataConfig, capsys: pytest.CaptureFixture[str]) -> None:
    list(read(replace(broken, max_bad_images=1), "memory"))
    assert capsys.readouterr().err.startswith("skipped a broken image (1 of at most 1): ")


@pytest.mark.parametrize("kind", ["memory", "workers"])
def test_a_cache_gives_the_same_batches_and_is_named(
    broken: DataConfig, kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings, cache = replace(broken, max_bad_images=1, workers=0), str(tmp_path_factory.mktemp("cache"))
    through = replace(settings, cache=cache)
    (expected,), (cached,) = (list(read(data, kind)) for data in (settings, through))
    assert same(expected[1], cached[1])  # type: ignore[index]
    opened = loader.open_loader(registry.open_splits(through), through, seed=0, device=CPU, cores=1)
    assert cache in opened.notes[0]


def test_without_validation_images_nothing_is_evaluated() -> None:
    settings = DataConfig(samples=12, image_size=16, val_fraction=0.0)
    opened = loader.open_loader(registry.open_splits(settings), settings, seed=0, device=CPU, cores=1)
    assert list(opened.evaluate([])) == []


ROOM = 64 * loader.MIB


@pytest.fixture
def shared_memory_of_64_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    status = type("Found", (), {"f_bavail": ROOM // 4096, "f_blocks": ROOM // 4096, "f_frsize": 4096})
    monkeypatch.setattr(loader.os, "statvfs", lambda path: status)


@pytest.mark.usefixtures("shared_memory_of_64_mib")
@pytest.mark.parametrize(("workers", "each", "ranks"), [(0, 2**40, 8), (2, ROOM // 4, 1), (1, ROOM // 8, 4)])
def test_what_fits_is_no_matter(workers: int, each: int, ranks: int) -> None:
    loader.refuse_small_shared_memory(workers, each, ranks=ranks)


@pytest.mark.usefixtures("shared_memory_of_64_mib")
def test_what_does_not_is_refused_with_two_ways_out() -> None:
    with pytest.raises(Failure) as refused:
        loader.refuse_small_shared_memory(8, 48 * loader.MIB, ranks=2)
    assert refused.value.code == ExitCode.RESOURCE
    assert refused.value.found == "/dev/shm of 64 MiB, 64 MiB free"
    assert "--shm-size=3g" in refused.value.fix
    assert "data.workers=0" in refused.value.fix


@pytest.mark.usefixtures("shared_memory_of_64_mib")
@pytest.mark.parametrize(("workers", "fewer"), [(8, 4), (5, 4), (6, 4)])
def test_as_many_workers_as_fit_are_named(workers: int, fewer: int) -> None:
    with pytest.raises(Failure, match="shared memory") as refused:
        loader.refuse_small_shared_memory(workers, ROOM // 8, ranks=1)
    assert refused.value.fix.endswith(f"data.workers={fewer}")
    loader.refuse_small_shared_memory(fewer, ROOM // 8, ranks=1)


def test_a_system_without_it_is_torchs_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: Path) -> None:
        raise FileNotFoundError(path)

    monkeypatch.setattr(loader.os, "statvfs", missing)
    loader.refuse_small_shared_memory(8, 2**40, ranks=8)


LARGE = ("data.loader=workers", "data.workers=2", "data.samples=600", "data.image_size=64", "run.output_dir={}")


def test_a_run_on_a_small_one_is_refused_before_its_first_step(tmp_path: Path) -> None:
    shut_in = [
        "unshare",
        "--mount",
        "--map-root-user",
        "sh",
        "-c",
        'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"',
    ]
    words = [word.format(tmp_path) for word in LARGE]
    command = [*shut_in, "sh", sys.executable, "-m", "train", "--device", "cpu", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path, check=False)
    if "unshare failed" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"machine: no private /dev/shm: {done.stderr.strip()}")
    assert (done.returncode, "ERROR[71] shared memory is too small" in done.stderr) == (71, True), done.stderr
    assert not list(tmp_path.rglob("metrics.jsonl"))
