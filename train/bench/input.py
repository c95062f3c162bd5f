"""What feeds a step: images/s of a core beside Pillow in workers, and what a step asks of the file system."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from statistics import median
from typing import Final

from train.bench import paced, pairs, rows, sides, traced
from train.bench.options import Options
from train.bench.paced import Side
from train.bench.rows import Found, Row

BATCH, SAMPLES, PIXELS = 256, 20_000, 32
BLOCK_S: Final = 0.5
LEAST: Final = 21  # batches of a block: while it waits, a worker fills two, which shall be less than a tenth
FEW, MANY = 20, 120  # steps: what they differ in is what a step does
# No log point, evaluation, checkpoint or end of an epoch between the two.
TRACED: Final = (
    *("data.name=synthetic", "data.samples=2048", "data.image_size=8", "data.classes=2", "data.val_fraction=0"),
    *("model.name=small_cnn", "model.args={width: 4}", "train.global_batch_size=8", "train.micro_batch_size=8"),
    *("optim.warmup_epochs=0", "log.every_steps=10000", "checkpoint.every_minutes=null"),
)
PLAIN: Final = ("--model", "tiny", "--size", "8", "--classes", "2", "--samples", "2048", "--batch", "8")


def run(options: Options) -> Iterator[Found]:
    """Rows 7 and 5, and Accelerate's own for the second."""
    yield pipeline(options)
    yield from paths(options)


def pipeline(options: Options) -> Row:
    """Row 7: the same images, augmented alike, on one core each."""
    samples = str(2_000 if options.quick else SAMPLES)
    words = ["--batch", str(BATCH), "--samples", samples, "--size", str(PIXELS)]
    ours = Side(name="feed", command=sides.command("feed", *words), environ=options.variables())
    # On one core a worker only adds a process to feed: the better of the two is compared with.
    rivals = [pillow(options, *words, "--workers", str(number)) for number in (0, 1)]
    with paced.started(options, ours, *rivals) as (mine, *others):
        for side in (mine, *others):
            side.steps = 1 if options.quick else max(LEAST, side.fit_to(BLOCK_S))
        peer = min(others, key=lambda side: side.block())
        found = pairs.interleaved(mine.block, peer.block, pairs=options.count(7))
    facts = {"ours_images_per_s": BATCH / median(found.ours), "peer_images_per_s": BATCH / median(found.peer)}
    return rows.measured("7", found.faster(), **facts, peer_workers=int(peer.facts["workers"]), batch=BATCH)


def pillow(options: Options, *words: str) -> Side:
    """The peer, on one core."""
    command = [*options.peer("pillow"), "--device", "cpu", "--one-core", *words, "--warm-up", "2"]
    return Side(name="pillow", command=command, environ=options.variables())


def paths(options: Options) -> Iterator[Row]:
    """Row 5: of a step between log points. The same by stock Accelerate stands beside it."""
    program = traced.strace(options.environ)
    if program is None:
        yield rows.unmeasured("5", "needs strace (apt-get install strace)")
        return
    few, many = (FEW, FEW + 10) if options.quick else (FEW, MANY)
    ours, theirs = ([one(options, program, steps) for steps in (few, many)] for one in (_ours_asks, _accelerate_asks))
    per_step, peers = ((after - before) / (many - few) for before, after in (ours, theirs))
    yield rows.measured("5", pairs.exactly(per_step), accelerate_per_step=peers, start_and_end=ours[0])


def _ours_asks(options: Options, program: str, steps: int) -> int:
    place = [f"run.output_dir={options.scratch}", f"run.name=traced-{steps}"]
    words = [sys.executable, "-m", "train", "--device", options.device, "--procs-per-node", "1", *TRACED, *place]
    environ = options.variables(PYTHONSAFEPATH="1")
    return traced.calls(program, [*words, f"train.max_steps={steps}"], environ, options.scratch, mark="train.worker")


def _accelerate_asks(options: Options, program: str, steps: int) -> int:
    words = [*options.peer("accelerated"), "--device", options.device, *PLAIN, "--steps", str(steps), "--blocks", "1"]
    return traced.calls(program, words, options.variables(), options.scratch)
