"""This module measures the input pipeline next to others, and a step's system calls that name a path."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench import harness, measurements, path_calls, photos, processes, targets
from bench.estimates import Estimate, estimate_median, exact
from bench.harness import Pairs
from bench.measurements import Measurement, Row
from bench.processes import LIMIT_S, BenchOptions, Program, RunningProgram
from train.config.schema import DataConfig
from train.data.shards import packing

BATCH, SAMPLES, PIXELS = 256, 20_000, 32
BLOCK_S: Final = 0.5
PHOTOS: Final = 512  # 49 MB: they stay in the page cache, so that decoding is measured and not the disk
PHOTO_BATCH: Final = 32
SHARD_BYTES: Final = 12 * 2**20
TITLES: Final = {
    "ours": "ours",
    "torchvision": "ImageFolder",
    "timm": "timm",
    "webdataset": "WebDataset",
    "litdata": "LitData",
    "spdl": "SPDL",
}
IMAGES: Final = {"cut": "cut photographs", "drawn": "drawn images"}
READ_FROM: Final = {"ours": "tar shards", "webdataset": "the same tar shards", "litdata": "its chunks"}
# `make bench` installs them here, where only their own processes look: what they need must not change ours.
PEER_PACKAGES: Final = processes.ROOT / ".venv-bench"
# What loads each of them, with the libraries of the system that it needs: SPDL would wait for ever without FFmpeg's.
LOCKED_PEERS: Final = {
    "webdataset": "import webdataset",
    "litdata": "import litdata",
    "spdl": "import spdl.io; spdl.io.demux_config()",
}
MIN_BATCHES: Final = 21  # of a block: what a worker has made ready, two, must be less than a tenth
FEW, MANY = 20, 120  # steps: the difference of their calls is what steps cause
# No log point, evaluation, checkpoint or end of an epoch comes between the two.
TRACED_SETTINGS: Final = (
    *("data.name=synthetic", "data.samples=2048", "data.image_size=8", "data.classes=2", "data.val_fraction=0"),
    *("model.name=small_cnn", "model.args={width: 4}", "train.global_batch_size=8", "train.micro_batch_size=8"),
    *("optim.warmup_epochs=0", "log.every_steps=10000", "checkpoint.every_minutes=null"),
)
PEER_WORDS: Final = ("--model", "tiny", "--size", "8", "--classes", "2", "--samples", "2048", "--batch", "8")


def add_arguments(group: argparse._ArgumentGroup) -> None:
    """Add --photos."""
    group.add_argument(
        "--photos",
        metavar="DIR",
        type=Path,
        help="cut the images of rows 15 and 16 from the JPEG files of this folder (default: they are drawn)",
    )


def run(options: BenchOptions) -> Iterator[Measurement]:
    """Rows 7, 15, 16, 16b and 5."""
    yield images_per_core(options)
    yield from files_per_core(options)
    yield from path_calls_per_step(options)


def images_per_core(options: BenchOptions) -> Row:
    """Row 7: the same images with the same augmentation, on one core each."""
    samples = str(2_000 if options.quick else SAMPLES)
    words = ["--batch", str(BATCH), "--samples", samples, "--size", str(PIXELS)]
    feed = processes.module_command("bench.feed", *words)
    ours = Program(name="feed", command=feed, environ=options.child_environ())
    # On one core a worker only adds a process that copies: the faster of the two is compared with.
    peers = [pillow_program(options, *words, "--workers", str(number)) for number in (0, 1)]
    with processes.start_programs(options, ours, *peers) as (our_feed, *peer_feeds):
        for program in (our_feed, *peer_feeds):
            program.steps = 1 if options.quick else max(MIN_BATCHES, program.steps_in(BLOCK_S))
        peer = min(peer_feeds, key=lambda program: program.step_seconds())
        pairs = harness.time_in_turns(our_feed.step_seconds, peer.step_seconds, pairs=options.num_pairs(7))
    facts = {"ours_images_per_s": BATCH / median(pairs.ours), "peer_images_per_s": BATCH / median(pairs.peer)}
    return targets.measured("7", pairs.speed_ratio(), **facts, peer_workers=int(peer.facts["workers"]), batch=BATCH)


def files_per_core(options: BenchOptions) -> Iterator[Row]:
    """Rows 15, 16 and 16b: the same images as JPEG files and in tar shards, cut at random, mirrored and normalized; on
    one core each side with its best number of workers, 0 or 1, and on two cores with two."""
    root, shards, chunks = (options.scratch / name for name in ("photos", "shards", "chunks"))
    source = getattr(options.arguments, "photos", None)
    mean_bytes = photos.write_photos(root, 2 * PHOTO_BATCH if options.quick else PHOTOS, source)
    data = DataConfig(name="folder", root=str(root), val_fraction=0.0)
    packing.pack_images(data, shards, scaling=None, say=options.log, shard_bytes=SHARD_BYTES)
    missing = [name for name in LOCKED_PEERS if not is_usable(options, name)]
    if "litdata" not in missing:
        _write_chunks(options, root, chunks)
    folders = {"ours": shards, "torchvision": root, "webdataset": shards, "litdata": chunks, "spdl": root}
    folders = {name: folder for name, folder in folders.items() if name not in missing}
    images = "cut" if source else "drawn"
    facts = {"bytes_per_image": mean_bytes, "photos": images}
    feeds = _feed_commands(options, {"ours": root, "torchvision": root, "timm": root})
    times = _time_feeds(options, feeds, workers=(0, 1))
    yield _compare_feeds("15", times, facts)
    if missing:
        options.log(
            f"rows 16 and 16b have no target without {', '.join(missing)}. fix: make bench installs them; SPDL needs "
            "FFmpeg's libraries (apt-get install ffmpeg)"
        )
    for number, cores, workers in (("16", 1, (0, 1)), ("16b", 2, (2,))):
        if len(os.sched_getaffinity(0)) < cores:
            yield targets.unmeasured(number, f"needs {cores} cores")
            continue
        feeds = _feed_commands(options, folders, cores=cores, shards=True)
        times = _time_feeds(options, feeds, workers=workers)
        yield _compare_feeds(number, times, facts, missing)
        yield from _images_per_s(number, times, mean_bytes, images)


def is_usable(options: BenchOptions, library: str) -> bool:
    """Whether a peer's process can load this library."""
    command = [sys.executable, "-c", LOCKED_PEERS[library]]
    return not subprocess.run(command, env=_peer_environ(options), capture_output=True, timeout=LIMIT_S).returncode


def _write_chunks(options: BenchOptions, root: Path, chunks: Path) -> None:
    words = [*harness.peer_command(options, "litdata_chunks"), "--root", str(root), "--output", str(chunks)]
    words += ["--chunk-bytes", f"{SHARD_BYTES // 10**6}MB"]
    # LitData's own folders would otherwise be /tmp/chunks and /tmp/data.
    own = {f"DATA_OPTIMIZER_{name}CACHE_FOLDER": str(options.scratch / "litdata") for name in ("", "DATA_")}
    processes.run_to_end(words, _peer_environ(options) | own, options.scratch, LIMIT_S)


def _peer_environ(options: BenchOptions) -> dict[str, str]:
    environ = options.child_environ()
    return environ | {"PYTHONPATH": f"{environ['PYTHONPATH']}{os.pathsep}{PEER_PACKAGES}"}


def _feed_commands(
    options: BenchOptions, folders: Mapping[str, Path], *, cores: int = 1, shards: bool = False
) -> dict[str, list[str]]:
    """The command lines without a number of workers. folders: what ours and each library reads."""
    common = ["--batch", str(PHOTO_BATCH), "--samples", "0", "--size", "224", "--cores", str(cores)]
    peer = [*harness.peer_command(options, "photos"), "--device", "cpu", "--warm-up", "2"]
    starts = {name: [*peer, "--library", name] for name in folders}
    starts["ours"] = processes.module_command("bench.feed", *(["--shards"] if shards else []))
    return {name: [*starts[name], *common, "--root", str(folder)] for name, folder in folders.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedTimes:
    """The seconds of a batch in each round, with the better number of workers."""

    workers: int
    seconds: tuple[float, ...]

    def images_per_s(self) -> Estimate:
        """With the spread of the rounds."""
        return estimate_median([PHOTO_BATCH / seconds for seconds in self.seconds])


def _time_feeds(
    options: BenchOptions, commands: Mapping[str, list[str]], *, workers: Sequence[int]
) -> dict[str, FeedTimes]:
    """The times of all commands, in turns. Which number of workers is better, a block decides before."""
    programs = [
        Program(
            name=name,
            command=[*command, "--workers", str(number)],
            environ=options.child_environ() if name == "ours" else _peer_environ(options),
        )
        for name, command in commands.items()
        for number in workers
    ]
    with processes.start_programs(options, *programs) as feeds:
        for feed in feeds:
            feed.steps = 1 if options.quick else MIN_BATCHES * max(1, feed.facts["workers"])
            _pause(feed)
        by_name = [[feed for feed in feeds if feed.program.name == name] for name in commands]
        best = [min(group, key=_time_alone) if len(group) > 1 else group[0] for group in by_name]
        sides = [partial(_time_alone, feed) for feed in best]
        rounds = processes.run_in_turns(sides, rounds=options.num_pairs(15))
    return {
        name: FeedTimes(workers=feed.facts["workers"], seconds=seconds)
        for name, feed, seconds in zip(commands, best, rounds, strict=True)
    }


def _time_alone(feed: RunningProgram) -> float:
    """The seconds of a batch. The other programs are stopped, so that their workers prepare no batch meanwhile."""
    os.killpg(feed.facts["pid"], signal.SIGCONT)
    seconds = feed.step_seconds()
    _pause(feed)
    return seconds


def _pause(feed: RunningProgram) -> None:
    os.killpg(feed.facts["pid"], signal.SIGSTOP)


def _compare_feeds(
    number: str, times: Mapping[str, FeedTimes], facts: Mapping[str, Any], missing: Sequence[str] = ()
) -> Row:
    """The row: ours next to the fastest of the others, and the images/s of all. If one is missing it has no target."""
    ours, others = times["ours"], [name for name in times if name != "ours"]
    name = min(others, key=lambda side: median(times[side].seconds))
    peer = times[name]
    estimate = Pairs(ours=ours.seconds, peer=peer.seconds).speed_ratio()
    speeds = {f"{side}_images_per_s": times[side].images_per_s().value for side in times}
    of_peer = {"peer": name, "peer_images_per_s": speeds[f"{name}_images_per_s"], "peer_workers": peer.workers}
    target = targets.TARGETS[number]
    what = (
        f"{target.what}, {IMAGES[facts['photos']]}: ours / the best of {', '.join(TITLES[other] for other in others)}"
    )
    if missing:
        what += f" ({', '.join(TITLES[other] for other in missing)} could not be loaded)"
    target = replace(target, what=what, limit=None if missing else target.limit)
    facts = {**speeds, **of_peer, "workers": ours.workers, **facts, "not_installed": ", ".join(missing)}
    return Row(number=number, target=target, estimate=estimate, facts=facts)


def _images_per_s(number: str, times: Mapping[str, FeedTimes], mean_bytes: int, images: str) -> Iterator[Row]:
    """A row for each side, fastest first, with its MB/s of JPEG files."""
    for name, side in sorted(times.items(), key=lambda item: median(item[1].seconds)):
        speed = side.images_per_s()
        mb_per_s = speed.value * mean_bytes / 1e6
        source = f"{TITLES[name]} from {READ_FROM.get(name, 'JPEG files')}, {IMAGES[images]}"
        what = f"{source}, workers: {side.workers}; {mb_per_s:.1f} MB/s"
        facts = {"workers": side.workers, "mb_per_s": mb_per_s, "photos": images}
        yield measurements.reported_row(f"{number} {name}", what, speed, unit="images/s", **facts)


def pillow_program(options: BenchOptions, *words: str) -> Program:
    """The peer, on one core."""
    command = [*harness.peer_command(options, "pillow"), "--device", "cpu", "--one-core", *words, "--warm-up", "2"]
    return Program(name="pillow", command=command, environ=options.child_environ())


def path_calls_per_step(options: BenchOptions) -> Iterator[Row]:
    """Row 5: the calls of a step between log points, with those of stock Accelerate as a fact."""
    strace = path_calls.find_strace(options.environ)
    if strace is None:
        yield targets.unmeasured("5", "needs strace (apt-get install strace)")
        return
    few, many = (FEW, FEW + 10) if options.quick else (FEW, MANY)
    ours, stock = ([count(options, strace, steps) for steps in (few, many)] for count in (_our_calls, _stock_calls))
    per_step, stock_per_step = ((after - before) / (many - few) for before, after in (ours, stock))
    yield targets.measured("5", exact(per_step), accelerate_per_step=stock_per_step, start_and_end=ours[0])


def _our_calls(options: BenchOptions, strace: str, steps: int) -> int:
    folder = [f"run.output_dir={options.scratch}", f"run.name=traced-{steps}"]
    words = [sys.executable, "-m", "train", "--device", options.device, "--procs-per-node", "1"]
    words += [*TRACED_SETTINGS, *folder, f"train.max_steps={steps}"]
    environ = options.child_environ(PYTHONSAFEPATH="1")
    return path_calls.count_path_calls(strace, words, environ, options.scratch, mark="train.worker")


def _stock_calls(options: BenchOptions, strace: str, steps: int) -> int:
    words = [*harness.peer_command(options, "accelerated"), "--device", options.device, *PEER_WORDS]
    words += ["--steps", str(steps), "--blocks", "1"]
    return path_calls.count_path_calls(strace, words, options.child_environ(), options.scratch)
