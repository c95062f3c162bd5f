"""What a checkpoint adds to training, written behind, beside `accelerator.save_state`: row 11."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from typing import Any, Final

from entrypoint import num_usable_cores
from train.bench import paced, pairs, rows, sides
from train.bench.loads import FOREVER, LR
from train.bench.noise import NAME
from train.bench.options import Options
from train.bench.paced import Paced, Side
from train.bench.rows import Found, Row, Target

LONGER: Final = 2.0  # a block lasts so many times what a checkpoint takes to be committed
MOST: Final = 2000  # steps of a block


def run(options: Options) -> Iterator[Found]:
    """Rows 11a and 11b: pairs of blocks of steps, each with a checkpoint and without.

    On a CPU twice: beside a GPU the host has cores for what is written behind, so that training leaves one free for
    row 11a. The snapshot is taken by training's own threads, which have all cores for row 11b.
    """
    cores = num_usable_cores()
    if options.device == "cuda" or cores == 1:
        yield from judged(*_blocks(options, {}, 20)).values()
        return
    spare = judged(*_blocks(options, {"OMP_NUM_THREADS": str(cores - 1)}, 20), cores=cores, training_on=cores - 1)
    busy = judged(*_blocks(options, {"OMP_NUM_THREADS": str(cores)}, 10), cores=cores, training_on=cores)
    yield from (spare["11a"], busy["11b"])
    yield from (_beside(busy["11a"], "all cores at work"), _beside(spare["11b"], "one core free"))


Told = list[dict[str, float]]


def judged(mine: Told, stock: Told, **facts: Any) -> dict[str, Row]:
    """The rows by their numbers, from what pairs of blocks told: `extra_s` and `save_s` of both, `copy_s` of ours."""
    extra = [[told["extra_s"] for told in side] for side in (mine, stock)]
    facts |= {"ours_extra_s": median(extra[0]), "save_state_extra_s": median(extra[1])}
    facts |= {"snapshot_s": median(told["save_s"] for told in mine)}
    facts |= {"copy_s": median(told["copy_s"] for told in mine)}
    facts |= {"save_state_s": median(told["save_s"] for told in stock)}
    share = pairs.quotient(*extra)
    stood = [one["save_s"] / other["save_s"] for one, other in zip(mine, stock, strict=True)]
    noise = rows.unmeasured("11a", "a checkpoint of the peer's did not surely take time: too much noise", **facts)
    return {
        "11a": rows.measured("11a", share, **facts) if share else noise,
        "11b": rows.measured("11b", pairs.estimate(stood), **facts),
    }


def _beside(row: Row, when: str) -> Row:
    """The same value in other circumstances, of which nothing is asked."""
    return replace(row, number=f"{row.number}, {when}", target=Target(what=row.target.what))


def _blocks(options: Options, variables: Mapping[str, str], asked: int) -> tuple[Told, Told]:
    """What pairs of blocks told: of ours, and of the peer's. In folders of their own: save_state overwrites nothing."""
    options = replace(options, scratch=Path(mkdtemp(dir=options.scratch)))
    both = (replace(side, environ={**side.environ, **variables}) for side in (ours(options), peer(options)))
    with paced.started(options, *both) as (mine, stock):
        for side in (mine, stock):
            side.steps = 2 if options.quick else enough(side)
        found = [_pair(mine, stock, number) for number in range(options.count(asked) + 1)][1:]
    return [pair[0] for pair in found], [pair[1] for pair in found]


def _pair(mine: Paced, stock: Paced, number: int) -> tuple[dict[str, float], dict[str, float]]:
    """Of both. In turns one side goes first, and the block with the checkpoint: what drifts hits all alike."""
    saved_first = number // 2 % 2 == 0
    if number % 2:
        theirs = _extra(stock, saved_first)
        return _extra(mine, saved_first), theirs
    ours = _extra(mine, saved_first)
    return ours, _extra(stock, saved_first)


def enough(side: Paced) -> int:
    """Steps in which a checkpoint is surely written, if it is written behind."""
    plain, saved = side.ask(steps=5, save=False), side.ask(steps=5, save=True)
    step_s, save_s = plain["seconds"] / 5, max(saved["seconds"] - plain["seconds"], saved["save_s"])
    return min(MOST, max(3, int(LONGER * save_s / step_s)))


def ours(options: Options) -> Side:
    """Ours, with the reference network; the fewest images on a CPU, so that the network's size is what counts."""
    width, batch, samples = _sizes(options)
    settings = [f"data.name={NAME}", f"data.samples={samples}", "data.image_size=32", "data.classes=100"]
    settings += ["data.val_fraction=0", "data.loader=memory", "data.augment=none", "model.name=wide_resnet"]
    settings += [f"model.args={{depth: 2, width: {width}}}", f"optim.lr={LR}", f"train.epochs={FOREVER}"]
    settings += [f"train.global_batch_size={batch}", f"train.micro_batch_size={batch}", "train.precision=fp32"]
    settings += ["checkpoint.every_minutes=null", f"run.output_dir={options.scratch}", "run.name=saves"]
    words = ["--device", options.device, "--folder", str(options.scratch / "saves"), *settings]
    return Side(name="saves", command=sides.command("saves", *words), environ=options.variables())


def peer(options: Options) -> Side:
    """Accelerate's, with the same network and batches."""
    width, batch, samples = _sizes(options)
    words = ["--width", str(width), "--batch", str(batch), "--samples", str(samples), "--warm-up", "2"]
    return paced.peer(options, "saving", *words, "--folder", str(options.scratch / "states"))


def _sizes(options: Options) -> tuple[int, int, int]:
    """Width of the network, images of a batch, and of all."""
    return (1, 2, 64) if options.quick else (10, 1, 512) if options.device == "cpu" else (10, 256, 4096)


def _extra(side: Paced, saved_first: bool) -> dict[str, float]:
    """A block with a checkpoint and one without: the difference, and how long training stood."""
    told = {save: side.ask(steps=side.steps, save=save) for save in (saved_first, not saved_first)}
    saved, plain = told[True], told[False]
    extra = {"extra_s": saved["seconds"] - plain["seconds"], "save_s": saved["save_s"]}
    return extra | ({"copy_s": saved["copy_s"]} if "copy_s" in saved else {})
