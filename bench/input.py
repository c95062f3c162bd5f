"""This module measures the input pipeline next to others, and a step's system calls that name a path."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from statistics import median
from typing import Any, Final

from bench import harness, path_calls, photos, targets
from bench.harness import Pairs
from train.bench import processes
from train.bench.estimates import exact
from train.bench.measurements import Measurement, Row
from train.bench.processes import BenchOptions, Program
from train.config.schema import DataConfig
from train.data import packing

BATCH, SAMPLES, PIXELS = 256, 20_000, 32
BLOCK_S: Final = 0.5
PHOTOS: Final = 512  # 49 MB: they stay in the page cache, so that decoding is measured and not the disk
PHOTO_BATCH: Final = 32
SHARD_BYTES: Final = 12 * 2**20
MIN_BATCHES: Final = 21  # of a block: while it waits, a worker makes two, which must be less than a tenth
FEW, MANY = 20, 120  # steps: the difference of their calls is what steps cause
# No log point, evaluation, checkpoint or end of an epoch comes between the two.
TRACED_SETTINGS: Final = (
    *("data.name=synthetic", "data.samples=2048", "data.image_size=8", "data.classes=2", "data.val_fraction=0"),
    *("model.name=small_cnn", "model.args={width: 4}", "train.global_batch_size=8", "train.micro_batch_size=8"),
    *("optim.warmup_epochs=0", "log.every_steps=10000", "checkpoint.every_minutes=null"),
)
PEER_WORDS: Final = ("--model", "tiny", "--size", "8", "--classes", "2", "--samples", "2048", "--batch", "8")


def run(options: BenchOptions) -> Iterator[Measurement]:
    """Rows 7, 15, 16 and 5."""
    yield images_per_core(options)
    yield from files_per_core(options)
    yield from path_calls_per_step(options)


def images_per_core(options: BenchOptions) -> Row:
    """Row 7: the same images with the same augmentation, on one core each."""
    samples = str(2_000 if options.quick else SAMPLES)
    words = ["--batch", str(BATCH), "--samples", samples, "--size", str(PIXELS)]
    feed = [sys.executable, "-m", "bench.feed", *words]
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
    """Rows 15 and 16: the same images as JPEG files and in tar shards, cut at random, mirrored and normalized, on one
    core each; each side with its best number of workers, 0 or 1."""
    root, shards = options.scratch / "photos", options.scratch / "shards"
    mean_bytes = photos.write_photos(root, 2 * PHOTO_BATCH if options.quick else PHOTOS)
    data = DataConfig(name="folder", root=str(root), val_fraction=0.0)
    packing.pack_images(data, shards, scaling=None, say=options.log, shard_bytes=SHARD_BYTES)
    with_webdataset = find_spec("webdataset") is not None
    for number, folder, words, libraries in (
        ("15", root, [], ("torchvision", "timm")),
        ("16", shards, ["--shards"], ("torchvision", *(["webdataset"] if with_webdataset else []))),
    ):
        common = ["--batch", str(PHOTO_BATCH), "--samples", "0", "--size", "224"]
        feed = [sys.executable, "-m", "bench.feed", *common, "--root", str(folder), *words]
        other = [*harness.peer_command(options, "photos"), "--device", "cpu", "--one-core", "--warm-up", "2", *common]
        commands = {"feed": feed}
        for name in libraries:
            folder_of_peer = shards if name == "webdataset" else root
            commands[name] = [*other, "--root", str(folder_of_peer), "--library", name]
        pairs, facts = _time_feeds(options, commands)
        yield targets.measured(number, pairs.speed_ratio(), **facts, bytes_per_image=mean_bytes)


def _time_feeds(options: BenchOptions, commands: Mapping[str, list[str]]) -> tuple[Pairs, dict[str, Any]]:
    """The first command next to the fastest of the others, each with 0 and with 1 worker; and the absolute figures."""
    programs = [
        Program(
            name=f"{name}-{workers}", command=[*command, "--workers", str(workers)], environ=options.child_environ()
        )
        for name, command in commands.items()
        for workers in (0, 1)
    ]
    with processes.start_programs(options, *programs) as feeds:
        for program in feeds:
            program.steps = 1 if options.quick else max(MIN_BATCHES, program.steps_in(BLOCK_S))
        ours = min(feeds[:2], key=lambda program: program.step_seconds())
        times = {program.program.name: program.step_seconds() for program in feeds[2:]}
        peer = min(feeds[2:], key=lambda program: times[program.program.name])
        pairs = harness.time_in_turns(ours.step_seconds, peer.step_seconds, pairs=options.num_pairs(15))
    facts = {f"{side}_images_per_s": PHOTO_BATCH / median(getattr(pairs, side)) for side in ("ours", "peer")}
    facts |= {"peer": peer.facts["peer"], "workers": ours.facts["workers"], "peer_workers": peer.facts["workers"]}
    return pairs, facts | {f"{name}_images_per_s": PHOTO_BATCH / seconds for name, seconds in times.items()}


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
