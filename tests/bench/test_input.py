"""The input pipeline beside Pillow's, and a step's calls: what is compared, and what comes of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from benches import quick
from PIL import Image

from bench import feed, harness, path_calls, photos
from bench import input as bench
from entrypoint import Failure
from train.bench import processes
from train.bench.measurements import Row
from train.bench.processes import Program
from train.bench.random_images import random_images
from train.config.schema import DataConfig
from train.data import packing


class Stand:
    """In the place of a process that feeds."""

    program: Program

    def __init__(self, seconds: float, workers: int) -> None:
        self.seconds, self.steps, self.facts = seconds, 1, {"workers": workers, "peer": "stand-in"}

    def step_seconds(self) -> float:
        return self.seconds

    def steps_in(self, seconds: float) -> int:
        return round(seconds / self.seconds)


def test_the_better_of_the_peers_is_compared_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stands = [Stand(0.1, -1), Stand(0.9, 0), Stand(0.5, 1)]

    @contextmanager
    def start_programs(*_: Any) -> Iterator[list[Stand]]:
        yield stands

    monkeypatch.setattr(processes, "start_programs", start_programs)
    row = bench.images_per_core(quick(tmp_path, quick=False, pairs=2))
    assert row.estimate is not None
    assert all(stand.steps > 10 * 2 for stand in stands)  # what a worker has made ready is less than a tenth
    assert (round(row.estimate.value, 6), row.facts["peer_workers"]) == (5.0, 1)
    assert round(row.facts["ours_images_per_s"]) == bench.BATCH * 10


def test_each_side_reads_files_with_its_better_number_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stands = [Stand(0.4, 0), Stand(0.2, 1), Stand(0.9, 0), Stand(0.8, 1), Stand(0.5, 0), Stand(0.7, 1)]

    @contextmanager
    def start_programs(_: Any, *programs: Program) -> Iterator[list[Stand]]:
        for stand, program in zip(stands, programs, strict=True):
            stand.program = program
        yield stands

    monkeypatch.setattr(processes, "start_programs", start_programs)
    monkeypatch.setattr(photos, "write_photos", lambda *_: 95_000)
    monkeypatch.setattr(packing, "pack_images", lambda *_, **__: None)
    row = next(bench.files_per_core(quick(tmp_path, quick=False, pairs=2)))
    assert row.estimate is not None
    assert (round(row.estimate.value, 6), row.facts["workers"], row.facts["peer_workers"]) == (2.5, 1, 0)


def test_photos_are_cut_from_the_large_jpegs_of_a_folder(tmp_path: Path) -> None:
    (source := tmp_path / "wallpapers" / "deeper").mkdir(parents=True)
    for seed, size in enumerate([(1200, 900), (900, 1000), (400, 300)]):
        photos.draw_photo(seed).resize(size).save(source / f"{seed}.jpg", quality=95)
    (source / "link.jpg").symlink_to(source / "0.jpg")
    photos.write_photos(tmp_path / "photos", 6, tmp_path / "wallpapers")
    files = sorted((tmp_path / "photos").glob("*/*.jpg"))
    assert len({file.read_bytes() for file in files}) == 6
    for file in files:
        with Image.open(file) as image:
            assert image.size in ((500, 375), (375, 500))


def test_a_folder_without_photographs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="no photographs to cut"):
        photos.write_photos(tmp_path / "photos", 4, tmp_path)


def test_drawn_photos_have_the_size_of_imagenets(tmp_path: Path) -> None:
    mean_bytes = photos.write_photos(tmp_path / "photos", 4)
    sizes = set()
    for file in (tmp_path / "photos").glob("*/*.jpg"):
        with Image.open(file) as image:
            sizes.add(image.size)
    assert abs(mean_bytes - photos.MEAN_BYTES) < 5_000
    assert sizes == {(500, 375), (375, 500)}


def test_ours_makes_batches_of_shards(tmp_path: Path) -> None:
    photos.write_photos(tmp_path / "photos", 8)
    data = DataConfig(name="folder", root=str(tmp_path / "photos"), val_fraction=0.0)
    packing.pack_images(data, tmp_path / "shards", scaling=None, say=lambda line: None)
    options = quick(tmp_path)
    words = ("--batch", "4", "--samples", "0", "--size", "32", "--root", str(tmp_path / "shards"), "--shards")
    feed = Program(name="feed", command=[sys.executable, "-m", "bench.feed", *words], environ=options.child_environ())
    with processes.start_programs(options, feed) as (ours,):
        assert ours.request(steps=2)["seconds"] > 0


@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_both_sides_make_batches_of_the_same_files(tmp_path: Path, library: str) -> None:
    photos.write_photos(tmp_path / "photos", 8)
    words = ("--batch", "4", "--samples", "0", "--size", "32", "--root", str(tmp_path / "photos"))
    options = quick(tmp_path)
    peer = (*harness.peer_command(options, "photos"), "--library", library, "--workers", "0", "--warm-up", "1", *words)
    ours = (sys.executable, "-m", "bench.feed", *words)
    both = [Program(name="side", command=[*side], environ=options.child_environ()) for side in (ours, peer)]
    with processes.start_programs(options, *both) as running:
        assert all(program.step_seconds() > 0 for program in running)


def row_five(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, ours: int, theirs: int) -> Row:
    """Row 5, where each step makes so many calls and each program 100 more."""

    def count_path_calls(
        program: str, words: list[str], environ: object, folder: Path, *, mark: str | None = None
    ) -> int:
        text = " ".join(words)
        steps = int(text.split("train.max_steps=")[1] if mark else text.split("--steps ")[1].split()[0])
        return 100 + steps * (ours if mark else theirs)

    monkeypatch.setattr(path_calls, "find_strace", lambda environ: "strace")
    monkeypatch.setattr(path_calls, "count_path_calls", count_path_calls)
    return next(bench.path_calls_per_step(quick(tmp_path)))


def test_what_a_start_asks_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = row_five(tmp_path, monkeypatch, ours=0, theirs=8)
    assert row.estimate is not None
    assert (row.estimate.value, row.facts["accelerate_per_step"], row.is_reached) == (0, 8, True)


def test_a_step_that_asks_misses_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert row_five(tmp_path, monkeypatch, ours=1, theirs=8).is_reached is False


def test_without_strace_nothing_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path_calls, "find_strace", lambda environ: None)
    assert next(bench.path_calls_per_step(quick(tmp_path))).missing == "needs strace (apt-get install strace)"


def test_batches_never_end() -> None:
    endless = feed.make_batches(feed.memory_settings(8), random_images, batch=4, size=8)
    batches = [batch for _, batch in islice(endless, 5)]
    assert {tuple(batch.images.shape) for batch in batches} == {(4, 3, 8, 8)}


def test_our_feed_runs_a_block_on_request(tmp_path: Path) -> None:
    words = (sys.executable, "-m", "bench.feed", "--batch", "4", "--samples", "8", "--size", "8")
    program = Program(name="feed", command=words, environ=quick(tmp_path).child_environ())
    with processes.start_programs(quick(tmp_path), program) as (running,):
        running.steps = 3
        assert running.step_seconds() > 0
        assert running.facts["batch"] == 4
