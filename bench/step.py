"""This module compares the time of a step with scripts that do the same by hand: rows 1, 2, 3, 4, 6, 10 and 13."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from typing import Any, Final

from bench import harness, processes, targets
from bench.estimates import Estimate, estimate_median, exact, ratio_of_medians
from bench.harness import Pairs, bare_arguments, peer_arguments, peer_program
from bench.measurements import Measurement, Row
from bench.processes import BenchOptions, Program, RunningProgram
from bench.training import REFERENCE, SMALL, Workload, training_program
from entrypoint import ExitCode, Failure

GFLOP: Final = 14.47  # of the reference workload: an image forward and backward
PRODUCT: Final = 8192  # rows and columns of the matrices whose product measures the device
BLOCK_S: Final = 0.5
WARM_STEPS: Final = 10
STARTS: Final = 5  # of all programs of rows 4 and 13
NO_GPU: Final = "needs a GPU"
ON_CPU: Final = "measured on the CPU: --device cpu"
# A step of less than a millisecond, so that the loop's own time shows.
LOOP: Final = Workload(model="tiny", size=8, classes=2, samples=4_096, batch=8)
# An epoch of the usual length with short steps, so that its end shows.
EPOCHS: Final = Workload(model="tiny", classes=10, samples=50_000, batch=256)
# Two processes share two cores, and a step takes 20 ms or more.
TWO_PROCESSES: Final = Workload(width=1, classes=10, samples=4_000, batch=8)


def add_arguments(group: Any) -> None:
    """Add the arguments of this benchmark."""
    group.add_argument("--rows", metavar="N,N", type=_parse_rows, help=f"only these of {', '.join(ROWS)}")


def run(options: BenchOptions) -> Iterator[Measurement]:
    """The rows that this machine can measure, and why it cannot measure the others."""
    if options.config or options.overrides:
        options.log("note: step trains what its peers train too: --config and settings do not count here")
    for name in getattr(options.arguments, "rows", None) or ROWS:
        numbers, measure = ROWS[name]
        missing = set(numbers)
        try:
            for row in measure(options):
                missing.discard(row.number)
                yield row
        except Failure as failure:  # the other rows may work, and GPU time is rare
            if failure.code != ExitCode.PEER:
                raise
            yield from (targets.failed(number, failure) for number in numbers if number in missing)


def published_recipe(options: BenchOptions) -> Iterator[Row]:
    """Rows 1 and 2: the reference workload at our best, next to the published recipe and to matrix products."""
    if options.device == "cpu":
        yield targets.unmeasured("1", NO_GPU)
        yield targets.unmeasured("2", NO_GPU)
        return
    workload = replace(REFERENCE, compile="default")
    programs = (
        _our_program(options, workload),
        peer_program(options, "published", *peer_arguments(workload)),
        peer_program(options, "products", "--side", str(PRODUCT)),
    )
    with processes.start_programs(options, *programs) as (ours, recipe, products):
        # The recipe's workers go on while it waits, and make 16 batches: little of an epoch.
        steps = workload.samples // workload.batch
        recipe_pairs, facts = _time_pairs(options, ours, recipe, 5, min_steps=steps)
        yield targets.measured("1", recipe_pairs.speed_ratio(), **facts)
        product_pairs, _ = _time_pairs(options, ours, products, 5)
        yield targets.measured("2", utilisation(product_pairs, workload.batch), **facts)


def utilisation(pairs: Pairs, batch: int) -> Estimate:
    """The rate of the workload's own products / the rate of plain matrix products."""
    shares = []
    for step_s, product_s in zip(pairs.ours, pairs.peer, strict=True):
        shares.append(batch * GFLOP * 1e9 / step_s / (2 * PRODUCT**3 / product_s))
    return estimate_median(shares)


def bare_loop(options: BenchOptions) -> Iterator[Row]:
    """Rows 3a and 3b: the same mathematics by hand, with many images in a step and with few."""
    for number, batch in (("3a", 256), ("3b", 64)):
        workload = replace(SMALL if options.device == "cpu" else REFERENCE, batch=_batch(options, batch))
        programs = (_our_program(options, workload), _bare_program(options, workload))
        with processes.start_programs(options, *programs) as (ours, peer):
            pairs, facts = _time_pairs(options, ours, peer, 7)
            model = f"wide_resnet, width {workload.width}"
            yield targets.measured(number, pairs.speed_ratio(), model=model, **facts)


def loop_overhead(options: BenchOptions) -> Iterator[Row]:
    """Rows 4a and 4b: three loops around the same tiny step."""
    if options.device != "cpu":
        yield targets.unmeasured("4a", ON_CPU)
        yield targets.unmeasured("4b", ON_CPU)
        return
    rounds = list[list[tuple[float, float]]]()
    for start in _starts(options):
        three = (
            _our_program(start, LOOP),
            _bare_program(start, LOOP),
            peer_program(start, "accelerated", *peer_arguments(LOOP)),
        )
        with processes.start_programs(start, *(_with_one_thread(program) for program in three)) as running:
            _set_steps(start, running[0], running, seconds=0.05)
            rounds += [_time_round(running, number) for number in range(start.num_pairs(40) + 1)][1:]
    overhead, share, facts = compare_loops(rounds, 0, "")
    facts |= compare_loops(rounds, 1, "processor_")[2]
    yield targets.measured("4a", overhead, **facts)
    if share is None:
        noise = "stock Accelerate is not surely slower than the bare loop: too much noise"
        yield targets.unmeasured("4b", noise, **facts)
    else:
        yield targets.measured("4b", share, **facts)


def compare_loops(
    rounds: Sequence[Sequence[tuple[float, float]]], clock: int, prefix: str
) -> tuple[Estimate, Estimate | None, dict[str, Any]]:
    """What our loop adds to the bare one in microseconds, its share of what stock Accelerate adds, and the facts.

    rounds: (clock, processor) seconds of ours, the bare loop and stock Accelerate. clock: which of the two times.
    """
    ours, bare, stock = (tuple(block[side][clock] for block in rounds) for side in range(3))
    our_overhead, stock_overhead = (Pairs(ours=times, peer=bare).difference(1e6) for times in (ours, stock))
    share = ratio_of_medians(
        *([time - bare_time for time, bare_time in zip(times, bare, strict=True)] for times in (ours, stock))
    )
    medians = {"bare": bare, "ours": ours, "accelerate": stock}
    facts = {f"{prefix}{name}_us": median(times) * 1e6 for name, times in medians.items()}
    overheads = {f"{prefix}over_us": our_overhead.value, f"{prefix}accelerate_over_us": stock_overhead.value}
    return our_overhead, share, facts | overheads


def epoch_boundary(options: BenchOptions) -> Iterator[Row]:
    """Row 6: by how many steps the first step of an epoch takes longer than the others."""
    workload = EPOCHS if options.device == "cpu" else REFERENCE
    workload = replace(workload, samples=8 * workload.batch) if options.quick else workload
    with processes.start_programs(options, _our_program(options, workload)) as (ours,):
        per_epoch = int(ours.facts["steps_per_epoch"])
        block = ours.request(steps=per_epoch * options.num_pairs(5), stamps=True)
    first = int(block["last"]) - len(block["stamps"]) + 1
    pauses, step_s = boundary_pauses(block["stamps"], first, per_epoch)
    yield targets.measured(
        "6", estimate_median(pauses), step_s=step_s, steps_per_epoch=per_epoch, samples=workload.samples
    )


def boundary_pauses(stamps: list[float], first: int, per_epoch: int) -> tuple[list[float], float]:
    """How much longer than the median the first steps of epochs took, in steps; and the median's seconds.

    stamps: seconds of steps number `first`, `first` + 1, ..., counted from 1.
    """
    step_s = median(stamps)
    firsts = [seconds for number, seconds in enumerate(stamps, first) if number > 1 and (number - 1) % per_epoch == 0]
    return [(seconds - step_s) / step_s for seconds in firsts], step_s


def compiled_first_step(options: BenchOptions) -> Iterator[Row]:
    """Rows 10a and 10b: the first step with an empty cache, and with the cache that this has left."""
    workload = replace(REFERENCE if options.device == "cuda" else SMALL, compile="default")
    workload = replace(workload, batch=_batch(options, 64))
    ratios, times, recompiled, compile_times = [], [], 0, dict[str, float]()
    repeats = 1 if options.quick or options.device == "cuda" else min(2, options.num_pairs(2))  # a minute each
    for number in range(repeats):
        cache = {"TORCHINDUCTOR_CACHE_DIR": str(options.scratch / f"inductor-{number}")}
        seconds = []
        for state in ("cold", "warm"):
            program = _our_program(options, workload)
            program = replace(program, environ={**program.environ, **cache})
            with processes.start_programs(options, program) as (ours,):
                facts = ours.facts
                seconds.append(float(facts["first_step_s"]) + float(facts["compile_s"]))
                compile_times |= {f"{state}_{name}": facts[name] for name in facts if name.startswith("compile_")}
                recompiled += int(ours.request(steps=2)["graphs"]) - int(facts["graphs"])
        ratios.append(seconds[1] / seconds[0])
        times.append(seconds)
    cold, warm = (median(column) for column in zip(*times, strict=True))
    yield targets.measured("10a", estimate_median(ratios), cold_s=cold, warm_s=warm, **compile_times)
    yield targets.measured("10b", exact(recompiled), starts=2 * len(times))


def two_processes(options: BenchOptions) -> Iterator[Row]:
    """Row 13: two processes that exchange gradients over gloo, ours and by hand."""
    if options.device != "cpu":
        yield targets.unmeasured("13", ON_CPU)
        return
    pairs, facts = Pairs(ours=(), peer=()), dict[str, Any]()
    for start in _starts(options):
        bare = peer_program(start, "bare", *bare_arguments(TWO_PROCESSES), ranks=2)
        programs = (_our_program(start, TWO_PROCESSES, procs=2), bare)
        with processes.start_programs(start, *programs) as (ours, peer):
            more, _ = _time_pairs(start, ours, peer, 40)
            pairs += more
            facts = absolute_figures(pairs, ours, peer)
    yield targets.measured("13", pairs.speed_ratio(), **facts)


# The choices of --rows -> the rows of the table, and what measures them.
ROWS: Final[Mapping[str, tuple[tuple[str, ...], Callable[[BenchOptions], Iterator[Row]]]]] = {
    "1": (("1", "2"), published_recipe),
    "3": (("3a", "3b"), bare_loop),
    "4": (("4a", "4b"), loop_overhead),
    "6": (("6",), epoch_boundary),
    "10": (("10a", "10b"), compiled_first_step),
    "13": (("13",), two_processes),
}


def _our_program(options: BenchOptions, workload: Workload, *, procs: int = 1) -> Program:
    name = f"ours-{workload.model}-{workload.batch}"
    return training_program(options, name, *workload.settings(procs=procs), procs=procs)


def _bare_program(options: BenchOptions, workload: Workload) -> Program:
    return peer_program(options, "bare", *bare_arguments(workload))


def _starts(options: BenchOptions) -> Iterator[BenchOptions]:
    """The options for each start of all programs, with a folder for each.

    How the processes of one start lie in memory changes a step by a hundredth, and a short one by 30 µs. More pairs
    of the same start do not even that out.
    """
    for _ in range(1 if options.quick else STARTS):
        yield replace(options, scratch=Path(mkdtemp(dir=options.scratch)))


def _with_one_thread(program: Program) -> Program:
    """A second thread would wait for work that is too small to share."""
    return replace(program, environ={**program.environ, "OMP_NUM_THREADS": "1"})


def _batch(options: BenchOptions, batch: int) -> int:
    """With --quick, few images."""
    return 8 if options.quick else batch


def _time_pairs(
    options: BenchOptions, ours: RunningProgram, peer: RunningProgram, num_pairs: int, min_steps: int = 1
) -> tuple[Pairs, dict[str, Any]]:
    """Pairs of blocks, each of `min_steps` steps or more, and the absolute figures of both sides."""
    for program in (ours, peer):
        _set_steps(options, program, [program])
        program.steps = program.steps if options.quick else max(min_steps, program.steps)
    pairs = harness.time_in_turns(ours.step_seconds, peer.step_seconds, pairs=options.num_pairs(num_pairs))
    return pairs, absolute_figures(pairs, ours, peer)


def absolute_figures(pairs: Pairs, ours: RunningProgram, peer: RunningProgram) -> dict[str, Any]:
    """What a row keeps of both sides. The first step, in which much is set up or compiled, is apart."""
    facts: dict[str, Any] = {}
    for name, program, seconds in (("ours", ours, pairs.ours), ("peer", peer, pairs.peer)):
        facts |= {f"{name}_step_s": median(seconds), f"{name}_first_step_s": program.facts["first_step_s"]}
        if compile_s := program.facts.get("compile_s"):
            facts[f"{name}_compile_s"] = compile_s
        if images := int(program.facts.get("batch", 0)) * int(program.facts.get("ranks", 1)):
            facts[f"{name}_images_per_s"] = images / median(seconds)
    return facts | {"peer": peer.program.name, "steps_of_a_block": ours.steps}


def _set_steps(
    options: BenchOptions, timed: RunningProgram, programs: list[RunningProgram], seconds: float = BLOCK_S
) -> None:
    """Set the steps of each program's blocks to about so many seconds of the timed program."""
    steps = 1 if options.quick else timed.steps_in(seconds)
    for program in programs:
        program.steps = steps


def _time_round(programs: list[RunningProgram], number: int) -> list[tuple[float, float]]:
    """A block of each program, which another one begins each time: no program is always between the other two."""
    indices = [index % len(programs) for index in range(number, number + len(programs))]
    times = {index: _time_warm(programs[index]) for index in indices}
    return [times[index] for index in range(len(programs))]


def _time_warm(program: RunningProgram) -> tuple[float, float]:
    """A block, after a few steps that bring the program's data back into the processor's caches."""
    program.request(steps=WARM_STEPS)
    return program.step_and_cpu_seconds()


def _parse_rows(text: str) -> list[str]:
    """Which rows. Raises ArgumentTypeError."""
    rows = text.split(",")
    if unknown := [row for row in rows if row not in ROWS]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: rows are {', '.join(ROWS)}")
    return rows
