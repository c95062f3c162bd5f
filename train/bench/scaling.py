"""1, 2, 4, ... processes: the same global batch (strong) and one that grows with them (weak); DataParallel beside.

A GPU alone is also shown what a network between eight would cost it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from entrypoint import ExitCode, Failure, make_plan, num_usable_cores
from train.bench import loads, paced, rows, worlds
from train.bench.options import Options, numbers
from train.bench.rows import Found, Row, Series, Target
from train.bench.worlds import ENDLESS, Speed, World, warm_up
from train.config.batches import nearest_multiples

STRONG, WEAK = "strong", "weak"
KINDS: Final = (STRONG, WEAK)
ROW: Final = "14"  # of the first; each of the others adds a name of its own, by which pages keep it
BESIDE, WIRE = "DataParallel", "wire"
NO_PEERS: Final = "needs the scripts to be compared with: --peers DIR (bench/peers of the project)"
BLOCKS: Final = 7
WIRED: Final = 8  # the times of an all-reduce that peers/wire.py waits for are those of so many
ALIVE: Final = 16  # processes that may wait beside each other on a CPU: half a GB each
# The images of a step of one process, and of a step of all where the batch stays the same.
ON_GPU: Final = replace(loads.REFERENCE, batch=1024)
ON_CPU: Final = replace(loads.SMALL, batch=64)


def arguments(group: Any) -> None:
    """Arguments of its own."""
    group.add_argument(
        "--processes", metavar="N,N", type=numbers, help="how many (default: 1, 2, 4, ... of the machine)"
    )


def run(options: Options) -> Iterator[Found]:
    """Speed-up of each number of processes over the fewest, then both ways of one process for several GPUs."""
    counts = getattr(options.own, "processes", None) or powers(most(options))
    planned = plan(options, counts)
    together = options.device == "cpu" and sum(world.processes for world in planned.values()) <= ALIVE
    speeds = worlds.measured(options, list(planned.values()), rounds=options.count(BLOCKS), together=together)
    found = dict(zip(planned, speeds, strict=True))
    for kind in KINDS:
        of_kind = [found[kind, count] if (kind, count) in found else found[STRONG, count] for count in counts]
        yield from told(kind, of_kind, began=kind == STRONG)
    yield from dataparallel(options, most(options))
    yield from simulated(options)


def most(options: Options) -> int:
    """As many processes as this machine has GPUs, or CPUs to give one to each; or as was asked for."""
    if options.device == "cuda":
        return make_plan(options.environ, options.launch).spawn
    return options.launch.procs_per_node or num_usable_cores()


def powers(last: int) -> list[int]:
    """1, 2, 4, ... and the last number itself."""
    return sorted({*(1 << level for level in range(last.bit_length())), last})


def plan(options: Options, counts: Sequence[int]) -> dict[tuple[str, int], World]:
    """By kind and processes. With the fewest, both kinds are the same."""
    pairs = [(kind, count) for kind in KINDS for count in counts if kind == STRONG or count != counts[0]]
    return {(kind, count): world(options, kind, count, counts[0]) for kind, count in pairs}


def world(options: Options, kind: str, count: int, fewest: int) -> World:
    """Our training on so many processes, one CPU thread for each: that is what grows with them."""
    name = f"{kind}-{count}"
    settings = _own(options, kind, count, fewest) if options.config else _load(options, kind, count, fewest)
    side = paced.ours(options, name, *settings, procs=count, warm_up=warm_up(options), config=options.config)
    if options.device == "cpu":
        side = replace(side, environ={**side.environ, "OMP_NUM_THREADS": "1"})
    return World(name=name, side=side, processes=count)


def told(kind: str, speeds: Sequence[Speed], *, began: bool) -> Iterator[Found]:
    """A row for each number of processes against the fewest, and the series that reports draw."""
    base, *others = speeds
    if base.missing is not None:
        yield _absent(kind, f"{kind} scaling", base.missing, failed=True)
        return
    if began:
        few = _many(base.world.processes)
        yield rows.figure(ROW, few, base.images_per_s(), unit="images/s", **_facts(base))
    for one in others:
        which = f"{kind}, {one.world.processes}"
        what = f"{kind} scaling, {_many(one.world.processes)}: speed-up"
        if one.missing is not None:
            yield _absent(which, what, one.missing, failed=True)
        else:
            efficiency = one.against(base).value * base.world.processes / one.world.processes
            says = f"{what}, efficiency {efficiency:.0%}"
            yield rows.figure(f"{ROW} {which}", says, one.against(base), **_facts(one))
    yield series(kind, [one for one in speeds if one.missing is None])


def series(kind: str, speeds: Sequence[Speed]) -> Series:
    """images_per_s with its bounds, and what follows from it."""
    base = speeds[0]
    lines: dict[str, list[tuple[float, float]]] = {}
    for one in speeds:
        rate, count = one.images_per_s(), one.world.processes
        up = one.against(base).value
        values = {"images_per_s": rate.value, "low": rate.low, "high": rate.high}
        values |= {"ms a step": 1e3 * one.images / rate.value, "speed-up": up}
        values |= {"efficiency": up * base.world.processes / count}
        for name, value in values.items():
            lines.setdefault(name, []).append((count, value))
    grows = "the global batch grows" if kind == WEAK else "the same global batch"
    return Series(
        name=f"scaling-{kind}",
        title=f"{kind.capitalize()} scaling: {grows}",
        x="processes",
        y="images/s",
        lines=lines,
        log_x=True,
        log_y=True,
    )


def dataparallel(options: Options, gpus: int) -> Iterator[Found]:
    """One process for each GPU beside one process for all of them, the same global batch."""
    what = "DDP / DataParallel on the same GPUs, images/s"
    missing = "needs two GPUs" if options.device == "cpu" or gpus < 2 else NO_PEERS if options.peers is None else None
    if missing:
        yield _absent(BESIDE, what, missing)
        return
    batch = _batch(options)
    load = replace(ON_GPU, batch=batch // gpus, augment=False)
    one = replace(load, batch=batch)
    words = [*one.plain(), "--precision", one.precision]
    sides = [
        World(name="ddp", side=paced.ours(options, "ddp", *load.settings(procs=gpus), procs=gpus), processes=gpus),
        World(name="dataparallel", side=paced.peer(options, "dataparallel", *words)),
    ]
    ours, theirs = worlds.measured(options, sides, rounds=options.count(BLOCKS), together=False)
    if missing := ours.missing or theirs.missing:
        yield _absent(BESIDE, what, missing, failed=True)
    else:
        yield rows.figure(f"{ROW} {BESIDE}", what, ours.against(theirs), gpus=gpus, **_facts(ours))


def simulated(options: Options) -> Iterator[Found]:
    """One GPU's part of the batch of eight, with and without the wait for a wire between them: real buckets, real
    overlap, and nothing is sent."""
    what = f"share of a step kept beside a simulated wire of {WIRED} GPUs on two nodes, plain DDP"
    missing = "needs a GPU" if options.device == "cpu" else NO_PEERS if options.peers is None else None
    if missing:
        yield _absent(WIRE, what, missing)
        return
    load = replace(ON_GPU, batch=max(1, _batch(options) // WIRED), augment=False)
    words = [*load.plain(), "--precision", load.precision]
    without = paced.peer(options, "wire", *words, "--alpha-us", "0", "--us-per-mb", "0")
    sides = [
        World(name="wire", side=paced.peer(options, "wire", *words)),
        World(name="without", side=replace(without, name="without-wire")),
    ]
    wired, base = worlds.measured(options, sides, rounds=options.count(BLOCKS), together=True)
    if missing := wired.missing or base.missing:
        yield _absent(WIRE, what, missing, failed=True)
    else:
        yield rows.figure(f"{ROW} {WIRE}", what, wired.against(base), simulated=True, **_facts(wired))


def _load(options: Options, kind: str, count: int, fewest: int) -> list[str]:
    """Of the reference workload, or what stands for it on CPUs."""
    load = ON_GPU if options.device == "cuda" else ON_CPU
    batch = _batch(options)
    part = replace(load, batch=batch if kind == WEAK else max(1, batch * fewest // count))
    return [*part.settings(procs=count), *options.overrides]


def _batch(options: Options) -> int:
    return (ON_GPU if options.device == "cuda" else ON_CPU).batch if not options.quick else 8


def _own(options: Options, kind: str, count: int, fewest: int) -> list[str]:
    """Of the user's configuration: its global batch is that of the fewest processes.

    Raises:
        Failure: USAGE for one that cannot grow as the processes do.
    """
    from train.config import load as schema  # YAML

    train = schema.load_config(options.config, options.overrides).train
    batch = _grown(train.global_batch_size, count, fewest) if kind == WEAK else train.global_batch_size
    rest = train.micro_batch_size != "auto" and batch % (train.micro_batch_size * count)
    micro = ["train.micro_batch_size=auto"] if rest else []
    return [*options.overrides, *ENDLESS, f"train.global_batch_size={batch}", *micro]


def _grown(batch: int, count: int, fewest: int) -> int:
    grown, rest = divmod(batch * count, fewest)
    if not rest:
        return grown
    choices = nearest_multiples(batch, fewest)
    raise Failure(
        f"the global batch cannot grow from {_many(fewest)} to {count}",
        found=f"train.global_batch_size: {batch}, of which {count}/{fewest} is no whole number",
        expected="as many images for each process, whatever their number (weak scaling)",
        fix=f"train.global_batch_size={' or '.join(map(str, choices))}, or other numbers with --processes",
        code=ExitCode.USAGE,
    )


def _facts(speed: Speed) -> dict[str, Any]:
    facts = speed.facts or {}
    kept = {
        name: facts[name] for name in ("batch", "accumulation", "precision", "parameters", "loader") if name in facts
    }
    return kept | {
        "processes": speed.world.processes,
        "images_per_s": speed.images_per_s().value,
        "step_s": speed.images / speed.images_per_s().value,
        "first_step_s": facts.get("first_step_s"),
        "memory_bytes": speed.memory,
    }


def _absent(which: str, what: str, why: str, *, failed: bool = False) -> Row:
    return Row(number=f"{ROW} {which}", target=Target(what=what), missing=why, failed=failed)


def _many(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"
