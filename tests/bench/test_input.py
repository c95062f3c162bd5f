"""The input pipeline beside Pillow's, and a step's calls: what is compared, and what comes of it."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from benches import quick
from PIL import Image

from bench import feed, harness, path_calls, photos, processes
from bench import input as bench
from bench.measurements import Row
from bench.processes import BenchOptions, Program
from entrypoint import Failure
from train.config.schema import DataConfig
from train.data.shards import packing


class Stand:
    """In the place of a process that feeds."""

    program: Program

    def __init__(self, seconds: float, workers: int) -> None:
        self.seconds, self.steps, self.facts = seconds, 1, {"workers": workers, "peer": "stand-in", "pid": id(self)}

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


class Group:
    """Stand-ins in the place of programs, of which all but the one that is timed must be stopped."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float], missing: set[str]) -> None:
        self.seconds, self.stands, self.running = seconds, list[Stand](), set[int]()
        monkeypatch.setattr(processes, "start_programs", self.start_programs)
        monkeypatch.setattr(os, "killpg", self.signal)
        monkeypatch.setattr(photos, "write_photos", lambda *_: 100_000)
        monkeypatch.setattr(packing, "pack_images", lambda *_, **__: None)
        monkeypatch.setattr(bench, "_write_chunks", lambda *_: None)
        monkeypatch.setattr(bench, "is_usable", lambda _, name: name not in missing)

    @contextmanager
    def start_programs(self, _: Any, *programs: Program) -> Iterator[list[Stand]]:
        self.stands = []
        for program in programs:
            workers = int(program.command[-1])
            self.stands.append(stand := Stand(self.seconds[program.name] * (1 if workers else 2), workers))
            stand.program = program
        yield self.stands

    def signal(self, group: int, number: int) -> None:
        (self.running.add if number == signal.SIGCONT else self.running.discard)(group)
        assert len(self.running) <= 1


SECONDS = {"ours": 0.2, "torchvision": 0.5, "timm": 0.4, "webdataset": 0.8, "litdata": 0.32, "spdl": 0.1}


def test_each_side_reads_files_with_its_better_number_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Group(monkeypatch, SECONDS, missing={"webdataset", "litdata", "spdl"})
    row = next(bench.files_per_core(quick(tmp_path, quick=False, pairs=2)))
    assert row.estimate is not None
    assert (round(row.estimate.value, 6), row.facts["peer"]) == (2.0, "timm")
    assert (row.facts["workers"], row.facts["peer_workers"]) == (1, 1)


@pytest.mark.parametrize(
    ("missing", "ratio"), [({"spdl"}, 1.6), ({"spdl", "litdata"}, 2.5), (set[str](), 0.5)], ids=["litdata", "", "spdl"]
)
def test_shards_are_compared_with_the_best_of_what_is_installed(
    missing: set[str], ratio: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Group(monkeypatch, SECONDS, missing)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    rows = {row.number: row for row in bench.files_per_core(quick(tmp_path, quick=False, pairs=2))}
    for number in ("16", "16b"):
        estimate = rows[number].estimate
        assert estimate is not None
        assert round(estimate.value, 6) == ratio
        assert rows[number].facts["not_installed"] == ", ".join(name for name in bench.LOCKED_PEERS if name in missing)
    assert rows["16b"].facts["workers"] == rows["16b"].facts["peer_workers"] == 2
    assert rows["16 torchvision"].target.what == "ImageFolder from JPEG files, drawn images, workers: 1; 6.4 MB/s"


@pytest.mark.parametrize(
    ("missing", "names", "reached"),
    [
        (set[str](), "ImageFolder, WebDataset, LitData, SPDL", False),
        ({"spdl"}, "ImageFolder, WebDataset, LitData (SPDL could not be loaded)", None),
        ({"webdataset", "litdata", "spdl"}, "ImageFolder (WebDataset, LitData, SPDL could not be loaded)", None),
    ],
    ids=["all", "three", "one"],
)
def test_a_row_names_the_images_and_who_ran_and_without_one_of_them_reaches_nothing(
    missing: set[str], names: str, reached: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Group(monkeypatch, SECONDS, missing)
    rows = {row.number: row for row in bench.files_per_core(quick(tmp_path, quick=False, pairs=2))}
    assert rows["16"].target.what.endswith(f"of one core, drawn images: ours / the best of {names}")
    assert rows["16"].is_reached is reached
    assert rows["15"].target.what.endswith("drawn images: ours / the best of ImageFolder, timm")


def test_every_peer_is_locked_with_its_hash() -> None:
    packages = {line for line in (processes.PEERS / "requirements.txt").read_text().split() if line.isalpha()}
    locked = (processes.ROOT / "requirements-bench.lock").read_text().split("\n")
    assert set(bench.LOCKED_PEERS) <= packages
    pinned = [number for number, line in enumerate(locked) if re.match(r"[a-z0-9-]+==", line)]
    assert {locked[number].partition("=")[0] for number in pinned} >= set(bench.LOCKED_PEERS)
    assert all("--hash=sha256:" in locked[number + 1] for number in pinned)


def test_two_cores_are_not_measured_on_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Group(monkeypatch, SECONDS, missing={"webdataset", "litdata", "spdl"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    rows = {row.number: row for row in bench.files_per_core(quick(tmp_path, quick=False, pairs=2))}
    assert (rows["16"].missing, rows["16b"].missing) == (None, "needs 2 cores")


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


def reading(options: BenchOptions, library: str, folder: Path) -> tuple[str, ...]:
    words = ("--batch", "4", "--samples", "0", "--size", "32", "--workers", "0", "--root", str(folder))
    return (*harness.peer_command(options, "photos"), "--library", library, "--warm-up", "1", *words)


def feeds(folder: Path, program: Program) -> bool:
    """Whether the program makes a batch."""
    with processes.start_programs(quick(folder), program) as (running,):
        return running.step_seconds() > 0


@pytest.mark.parametrize("words", [(), ("--shards",)], ids=["files", "shards"])
def test_ours_makes_batches(tmp_path: Path, words: tuple[str, ...]) -> None:
    photos.write_photos(tmp_path / "photos", 8)
    data = DataConfig(name="folder", root=str(tmp_path / "photos"), val_fraction=0.0)
    packing.pack_images(data, tmp_path / "shards", scaling=None, say=lambda line: None)
    root = ("--root", str(tmp_path / ("shards" if words else "photos")))
    command = processes.module_command("bench.feed", "--batch", "4", "--samples", "0", "--size", "32", *root, *words)
    assert feeds(tmp_path, Program(name="feed", command=command, environ=quick(tmp_path).child_environ()))


@pytest.mark.parametrize("library", ["torchvision", "timm", *bench.LOCKED_PEERS])
def test_the_libraries_that_are_installed_make_batches(tmp_path: Path, library: str) -> None:
    photos.write_photos(tmp_path / "photos", 8)
    data, folder = DataConfig(name="folder", root=str(tmp_path / "photos"), val_fraction=0.0), tmp_path / "packed"
    options = quick(tmp_path)
    if library in bench.LOCKED_PEERS and not bench.is_usable(options, library):
        pytest.skip(f"machine: no {library} (make bench installs it)")
    if library == "litdata":
        bench._write_chunks(options, tmp_path / "photos", folder)
    else:
        packing.pack_images(data, folder, scaling=None, say=lambda line: None)
    reads_files = library in ("torchvision", "timm", "spdl")
    command = reading(options, library, tmp_path / "photos" if reads_files else folder)
    assert feeds(tmp_path, Program(name=library, command=command, environ=bench._peer_environ(options)))


def row_five(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, ours: int, peer: int) -> Row:
    """Row 5, where each step makes so many calls and each program 100 more."""

    def count_path_calls(
        program: str, words: list[str], environ: object, folder: Path, *, mark: str | None = None
    ) -> int:
        text = " ".join(words)
        steps = int(text.split("train.max_steps=")[1] if mark else text.split("--steps ")[1].split()[0])
        return 100 + steps * (ours if mark else peer)

    monkeypatch.setattr(path_calls, "find_strace", lambda environ: "strace")
    monkeypatch.setattr(path_calls, "count_path_calls", count_path_calls)
    return next(bench.path_calls_per_step(quick(tmp_path)))


def test_what_a_start_asks_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = row_five(tmp_path, monkeypatch, ours=0, peer=8)
    assert row.estimate is not None
    assert (row.estimate.value, row.facts["accelerate_per_step"], row.is_reached) == (0, 8, True)


def test_a_step_that_asks_misses_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert row_five(tmp_path, monkeypatch, ours=1, peer=8).is_reached is False


def test_without_strace_nothing_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path_calls, "find_strace", lambda environ: None)
    assert next(bench.path_calls_per_step(quick(tmp_path))).missing == "needs strace (apt-get install strace)"


def test_batches_never_end() -> None:
    endless = feed.make_batches(feed.memory_settings(8), batch=4, size=8)
    batches = [batch for _, batch in islice(endless, 5)]
    assert {tuple(batch["image"].shape) for batch in batches} == {(4, 3, 8, 8)}


def test_our_feed_runs_a_block_on_request(tmp_path: Path) -> None:
    words = processes.module_command("bench.feed", "--batch", "4", "--samples", "8", "--size", "8")
    program = Program(name="feed", command=words, environ=quick(tmp_path).child_environ())
    with processes.start_programs(quick(tmp_path), program) as (running,):
        running.steps = 3
        assert running.step_seconds() > 0
        assert running.facts["batch"] == 4
