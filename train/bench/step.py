"""Time of a step, against scripts that do the same by hand: rows 1, 2, 3, 4, 6, 10 and 13."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from typing import Any, Final

from entrypoint import ExitCode, Failure
from train.bench import loads, paced, pairs, rows
from train.bench.loads import Load
from train.bench.options import Json, Options
from train.bench.paced import Paced, Side
from train.bench.pairs import Estimate, Pairs, estimate
from train.bench.rows import Found, Row

GFLOP: Final = 14.47  # of the reference workload, an image forward and backward
PRODUCT: Final = 8192  # rows and columns of the matrices whose product is the device's measure
BLOCK_S: Final = 0.5
WARM: Final = 10  # steps
STARTS: Final = 5  # of all sides of rows 4 and 13
NO_GPU: Final = "needs a GPU"
ON_CPU: Final = "measured on the CPU: --device cpu"


def arguments(group: Any) -> None:
    """Arguments of its own."""
    group.add_argument("--rows", metavar="N,N", type=_numbers, help=f"only these of {', '.join(ROWS)}")


def run(options: Options) -> Iterator[Found]:
    """The rows that this machine can measure, and why it cannot measure the others."""
    if options.config or options.overrides:
        options.tell("note: step trains what its peers train too: --config and settings do not count here")
    for name in getattr(options.own, "rows", None) or ROWS:
        numbers, measure = ROWS[name]
        left = set(numbers)
        try:
            for row in measure(options):
                left.discard(row.number)
                yield row
        except Failure as failure:  # the other rows may do; a GPU is not had every day
            if failure.code != ExitCode.PEER:
                raise
            yield from (rows.spoiled(number, failure) for number in numbers if number in left)


def published(options: Options) -> Iterator[Row]:
    """Rows 1 and 2: the reference workload at our best, beside the published recipe and plain matrix products."""
    if options.device == "cpu":
        yield rows.unmeasured("1", NO_GPU)
        yield rows.unmeasured("2", NO_GPU)
        return
    load = replace(loads.REFERENCE, compile="default")
    recipe = paced.peer(options, "published", *load.plain())
    product = paced.peer(options, "products", "--side", str(PRODUCT))
    with paced.started(options, _ours(options, load), recipe, product) as (ours, peer, products):
        # The recipe's workers go on while it waits, and fill 16 batches: of a whole epoch that is little.
        beside_recipe, facts = _in_turns(options, ours, peer, 5, least=load.samples // load.batch)
        yield rows.measured("1", beside_recipe.faster(), **facts)
        beside_product, _ = _in_turns(options, ours, products, 5)
        yield rows.measured("2", utilisation(beside_product, load.batch), **facts)


def utilisation(found: Pairs, batch: int) -> Estimate:
    """Of the rate of matrix products, the share that the workload's own products come to."""
    shares = []
    for step_s, product_s in zip(found.ours, found.peer, strict=True):
        shares.append(batch * GFLOP * 1e9 / step_s / (2 * PRODUCT**3 / product_s))
    return estimate(shares)


def bare(options: Options) -> Iterator[Row]:
    """Rows 3a and 3b: the same mathematics by hand, with many images in a step and with few."""
    for number, batch in (("3a", 256), ("3b", 64)):
        load = replace(loads.SMALL if options.device == "cpu" else loads.REFERENCE, batch=_least(options, batch))
        with paced.started(options, _ours(options, load), _bare(options, load)) as (ours, peer):
            found, facts = _in_turns(options, ours, peer, 7)
            yield rows.measured(number, found.faster(), model=f"wide_resnet, width {load.width}", **facts)


def overhead(options: Options) -> Iterator[Row]:
    """Rows 4a and 4b: three loops around the same tiny step."""
    if options.device != "cpu":
        yield rows.unmeasured("4a", ON_CPU)
        yield rows.unmeasured("4b", ON_CPU)
        return
    load, told = loads.LOOP, list[list[tuple[float, float]]]()
    for place in _places(options):
        three = (_ours(place, load), _bare(place, load), paced.peer(place, "accelerated", *load.plain()))
        with paced.started(place, *(_on_one_thread(side) for side in three)) as sides:
            _sized(place, sides[0], sides, seconds=0.05)
            told += [_round(sides, number) for number in range(place.count(40) + 1)][1:]
    over, share, facts = around(told, 0, "")
    facts |= around(told, 1, "processor_")[2]
    yield rows.measured("4a", over, **facts)
    if share is None:
        yield rows.unmeasured("4b", "stock Accelerate is not surely slower than the bare loop: too much noise", **facts)
    else:
        yield rows.measured("4b", share, **facts)


def around(
    told: Sequence[Sequence[tuple[float, float]]], which: int, name: str
) -> tuple[Estimate, Estimate | None, Json]:
    """What our loop adds to the bare one, in microseconds, its share of what Accelerate's does, and the facts, whose
    names begin so.

    told: of each round what ours, the bare loop and Accelerate's took. which: by the clock, or of processors.
    """
    ours, plain, accelerated = (tuple(block[side][which] for block in told) for side in range(3))
    over, stocks = (Pairs(ours=each, peer=plain).over(1e6) for each in (ours, accelerated))
    share = pairs.quotient(
        *([one - bare for one, bare in zip(each, plain, strict=True)] for each in (ours, accelerated))
    )
    medians = {"bare": plain, "ours": ours, "accelerate": accelerated}
    facts = {f"{name}{side}_us": median(each) * 1e6 for side, each in medians.items()}
    return over, share, facts | {f"{name}over_us": over.value, f"{name}accelerate_over_us": stocks.value}


def boundary(options: Options) -> Iterator[Row]:
    """Row 6: the step in which an epoch begins takes longer than the others by so many steps."""
    load = loads.EPOCHS if options.device == "cpu" else loads.REFERENCE
    load = replace(load, samples=8 * load.batch) if options.quick else load
    with paced.started(options, _ours(options, load)) as (ours,):
        every = int(ours.facts["steps_per_epoch"])
        told = ours.ask(steps=every * options.count(5), stamps=True)
    first = int(told["last"]) - len(told["stamps"]) + 1
    pauses, usual = paused(told["stamps"], first, every)
    yield rows.measured("6", estimate(pauses), step_s=usual, steps_per_epoch=every, samples=load.samples)


def paused(stamps: list[float], first: int, every: int) -> tuple[list[float], float]:
    """How much longer than usual the first steps of epochs took, in steps; and the usual seconds.

    stamps: seconds of steps number `first`, `first` + 1, ...; epochs have `every` steps, counted from 1.
    """
    usual = median(stamps)
    begin = [taken for number, taken in enumerate(stamps, first) if number > 1 and (number - 1) % every == 0]
    return [(taken - usual) / usual for taken in begin], usual


def compiled(options: Options) -> Iterator[Row]:
    """Rows 10a and 10b: the first step, compiled for the first time and with the cache that this has left."""
    load = replace(loads.REFERENCE if options.device == "cuda" else loads.SMALL, compile="default")
    load = replace(load, batch=_least(options, 64))
    ratios, told, again, parts = [], [], 0, dict[str, float]()
    once = options.quick or options.device == "cuda"  # a minute each
    for number in range(1 if once else min(2, options.count(2))):
        cache = str(options.scratch / f"inductor-{number}")
        first = []
        for when in ("cold", "warm"):
            side = _ours(options, load)
            side = replace(side, environ={**side.environ, "TORCHINDUCTOR_CACHE_DIR": cache})
            with paced.started(options, side) as (ours,):
                first.append(float(ours.facts["first_step_s"]) + float(ours.facts["compile_s"]))
                parts |= {f"{when}_{name}": ours.facts[name] for name in ours.facts if name.startswith("compile_")}
                again += int(ours.ask(steps=2)["graphs"]) - int(ours.facts["graphs"])
        ratios.append(first[1] / first[0])
        told.append(first)
    cold, warm = (median(each) for each in zip(*told, strict=True))
    yield rows.measured("10a", estimate(ratios), cold_s=cold, warm_s=warm, **parts)
    yield rows.measured("10b", pairs.exactly(again), starts=2 * len(told))


def together(options: Options) -> Iterator[Row]:
    """Row 13: two processes that exchange gradients over gloo, ours and by hand."""
    if options.device != "cpu":
        yield rows.unmeasured("13", ON_CPU)
        return
    load, found, facts = loads.TOGETHER, Pairs(ours=(), peer=()), dict[str, Any]()
    for place in _places(options):
        by_hand = paced.peer(place, "bare", *load.words(), ranks=2)
        with paced.started(place, _ours(place, load, procs=2), by_hand) as (ours, peer):
            more, _ = _in_turns(place, ours, peer, 40)
            found = found.and_(more)
            facts = figures(found, ours, peer)
    yield rows.measured("13", found.faster(), **facts)


# What may be asked for -> the rows of the table, and what measures them.
ROWS: Final[Mapping[str, tuple[tuple[str, ...], Callable[[Options], Iterator[Row]]]]] = {
    "1": (("1", "2"), published),
    "3": (("3a", "3b"), bare),
    "4": (("4a", "4b"), overhead),
    "6": (("6",), boundary),
    "10": (("10a", "10b"), compiled),
    "13": (("13",), together),
}


def _ours(options: Options, load: Load, *, procs: int = 1) -> Side:
    return paced.ours(options, f"ours-{load.model}-{load.batch}", *load.settings(procs=procs), procs=procs)


def _places(options: Options) -> Iterator[Options]:
    """For each start of all sides, with a folder of its own.

    How the processes of one start lie in memory makes a hundredth of a step, and 30 µs of a short one, which more pairs
    of that start do not even out.
    """
    for _ in range(1 if options.quick else STARTS):
        yield replace(options, scratch=Path(mkdtemp(dir=options.scratch)))


def _on_one_thread(side: Side) -> Side:
    """A second one would wait for work that is too small to share."""
    return replace(side, environ={**side.environ, "OMP_NUM_THREADS": "1"})


def _bare(options: Options, load: Load) -> Side:
    return paced.peer(options, "bare", *load.words())


def _least(options: Options, batch: int) -> int:
    """A bench that is only to be seen working need not compute much."""
    return 8 if options.quick else batch


def _in_turns(options: Options, ours: Paced, peer: Paced, asked: int, least: int = 1) -> tuple[Pairs, dict[str, Any]]:
    """Pairs of blocks, each of `least` steps or more, and the absolute figures of both sides."""
    for side in (ours, peer):
        _sized(options, side, [side])
        side.steps = side.steps if options.quick else max(least, side.steps)
    found = pairs.interleaved(ours.block, peer.block, pairs=options.count(asked))
    return found, figures(found, ours, peer)


def figures(found: Pairs, ours: Paced, peer: Paced) -> dict[str, Any]:
    """What a row keeps of both sides; the first step, in which much is set up or compiled, apart."""
    told: dict[str, Any] = {}
    for name, side, seconds in (("ours", ours, found.ours), ("peer", peer, found.peer)):
        told |= {f"{name}_step_s": median(seconds), f"{name}_first_step_s": side.facts["first_step_s"]}
        if compile_s := side.facts.get("compile_s"):
            told[f"{name}_compile_s"] = compile_s
        if images := int(side.facts.get("batch", 0)) * int(side.facts.get("ranks", 1)):
            told[f"{name}_images_per_s"] = images / median(seconds)
    return told | {"peer": peer.side.name, "steps_of_a_block": ours.steps}


def _sized(options: Options, by: Paced, sides: list[Paced], seconds: float = BLOCK_S) -> None:
    """Blocks of about so long."""
    steps = 1 if options.quick else by.fit_to(seconds)
    for side in sides:
        side.steps = steps


def _round(sides: list[Paced], number: int) -> list[tuple[float, float]]:
    """A block of each, beginning with another one each time."""
    took = {place % len(sides): _warm(sides[place % len(sides)]) for place in range(number, number + len(sides))}
    return [took[place] for place in range(len(sides))]


def _warm(side: Paced) -> tuple[float, float]:
    """A block, after a few steps in which the processor's caches become its own again."""
    side.ask(steps=WARM)
    return side.both()


def _numbers(text: str) -> list[str]:
    """Which rows. Raises ArgumentTypeError."""
    asked = text.split(",")
    if unknown := [number for number in asked if number not in ROWS]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: rows are {', '.join(ROWS)}")
    return asked
