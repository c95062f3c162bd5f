"""This module measures 1, 2, 4, ... processes: with the same global batch (strong) and with one that grows (weak).

In a checkout it also measures DataParallel, and one GPU with a simulated network.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from bench import training
from bench.harness import peer_arguments, peer_program
from bench.measurements import Measurement, Row, Series, Target, reported_row
from bench.processes import BenchOptions, parse_counts
from bench.training import ENDLESS_SETTINGS, Speed, TimedTraining, Workload
from entrypoint import ExitCode, Failure, make_plan, num_usable_cores, pluralize
from train.config import load
from train.config.batches import nearest_multiples

STRONG, WEAK = "strong", "weak"
MODES: Final = (STRONG, WEAK)
ROW: Final = "14"  # the number of the first row; the others add a name: docs/evidence/performance.md
BLOCKS: Final = 7
DATA_PARALLEL, WIRE = "DataParallel", "wire"
WIRE_GPUS: Final = 8  # peers/wire.py waits as long as an all-reduce between so many
MAX_PROCESSES_IN_TURNS: Final = 16  # that may wait at the same time on a CPU: half a GB each
# The images of a step: of one process, and of all where the global batch stays the same.
GPU_WORKLOAD: Final = replace(training.REFERENCE, batch=1024)
CPU_WORKLOAD: Final = replace(training.SMALL, batch=64)


def add_arguments(group: Any) -> None:
    """Add the arguments of this benchmark."""
    group.add_argument(
        "--processes", metavar="N,N", type=parse_counts, help="how many (default: 1, 2, 4, ... of the machine)"
    )


def run(options: BenchOptions) -> Iterator[Measurement]:
    """The speed-ups of `train bench scaling`; row 14 has both other ways to use several GPUs too."""
    yield from speed_ups(options)
    if options.compares:
        yield from data_parallel(options, max_processes(options))
        yield from simulated_wire(options)


def speed_ups(options: BenchOptions) -> Iterator[Measurement]:
    """Measure the speed-up of each number of processes over the smallest."""
    counts = getattr(options.arguments, "processes", None) or powers_of_two(max_processes(options))
    trainings = plan_trainings(options, counts)
    num_processes = sum(timed.processes for timed in trainings.values())
    in_turns = options.device == "cpu" and num_processes <= MAX_PROCESSES_IN_TURNS
    measured = training.time_trainings(
        options, list(trainings.values()), rounds=options.num_pairs(BLOCKS), in_turns=in_turns
    )
    speeds = dict(zip(trainings, measured, strict=True))
    for mode in MODES:
        of_mode = [speeds[mode, count] if (mode, count) in speeds else speeds[STRONG, count] for count in counts]
        yield from report(mode, of_mode, with_base=mode == STRONG)


def max_processes(options: BenchOptions) -> int:
    """As many processes as the machine has GPUs, or CPUs to give one to each; or as many as requested."""
    if options.device == "cuda":
        return make_plan(options.environ, options.launch).spawn
    return options.launch.procs_per_node or num_usable_cores()


def powers_of_two(last: int) -> list[int]:
    """1, 2, 4, ... and the last number itself."""
    return sorted({*(1 << level for level in range(last.bit_length())), last})


def plan_trainings(options: BenchOptions, counts: Sequence[int]) -> dict[tuple[str, int], TimedTraining]:
    """The training of each mode and number of processes. With the smallest number, both modes are the same."""
    keys = [(mode, count) for mode in MODES for count in counts if mode == STRONG or count != counts[0]]
    return {(mode, count): plan_training(options, mode, count, counts[0]) for mode, count in keys}


def plan_training(options: BenchOptions, mode: str, count: int, smallest: int) -> TimedTraining:
    """Our training on so many processes, one CPU thread for each: threads grow with the processes."""
    name = f"{mode}-{count}"
    choose_settings = _config_settings if options.config else _workload_settings
    program = training.training_program(
        options,
        name,
        *choose_settings(options, mode, count, smallest),
        procs=count,
        warm_up=training.num_warm_up_steps(options),
        config=options.config,
    )
    if options.device == "cpu":
        program = replace(program, environ={**program.environ, "OMP_NUM_THREADS": "1"})
    return TimedTraining(name=name, program=program, processes=count)


def report(mode: str, speeds: Sequence[Speed], *, with_base: bool) -> Iterator[Measurement]:
    """A row for each number of processes relative to the smallest, and the series that reports draw."""
    base, *others = speeds
    if base.missing is not None:
        yield missing_row(mode, f"{mode} scaling", base.missing, failed=True)
        return
    if with_base:
        what = pluralize(base.training.processes, "process")
        yield reported_row(ROW, what, base.images_per_s(), unit="images/s", **speed_facts(base))
    for speed in others:
        count = speed.training.processes
        name, what = f"{mode}, {count}", f"{mode} scaling, {pluralize(count, 'process')}: speed-up"
        if speed.missing is not None:
            yield missing_row(name, what, speed.missing, failed=True)
        else:
            speed_up = speed.relative_to(base)
            efficiency = speed_up.value * base.training.processes / count
            what = f"{what}, efficiency {efficiency:.0%}"
            yield reported_row(f"{ROW} {name}", what, speed_up, **speed_facts(speed))
    yield build_series(mode, [speed for speed in speeds if speed.missing is None])


def build_series(mode: str, speeds: Sequence[Speed]) -> Series:
    """Images per second with the bounds, and what follows from them."""
    base = speeds[0]
    lines: dict[str, list[tuple[float, float]]] = {}
    for speed in speeds:
        rate, count = speed.images_per_s(), speed.training.processes
        speed_up = speed.relative_to(base).value
        values = {"images_per_s": rate.value, "low": rate.low, "high": rate.high}
        values |= {"ms a step": 1e3 * speed.images / rate.value, "speed-up": speed_up}
        values |= {"efficiency": speed_up * base.training.processes / count}
        for name, value in values.items():
            lines.setdefault(name, []).append((count, value))
    batch = "the global batch grows" if mode == WEAK else "the same global batch"
    return Series(
        name=f"scaling-{mode}",
        title=f"{mode.capitalize()} scaling: {batch}",
        x="processes",
        y="images/s",
        lines=lines,
        log_x=True,
        log_y=True,
    )


def default_workload(options: BenchOptions) -> Workload:
    """The reference workload, or its replacement on CPUs; with --quick, few images."""
    workload = GPU_WORKLOAD if options.device == "cuda" else CPU_WORKLOAD
    return replace(workload, batch=8) if options.quick else workload


def data_parallel(options: BenchOptions, gpus: int) -> Iterator[Measurement]:
    """One process for each GPU, and one process for all of them, with the same global batch."""
    what = "DDP / DataParallel on the same GPUs, images/s"
    if options.device == "cpu" or gpus < 2:
        yield missing_row(DATA_PARALLEL, what, "needs two GPUs")
        return
    global_workload = replace(default_workload(options), augment=False)
    workload = replace(global_workload, batch=global_workload.batch // gpus)
    words = [*peer_arguments(global_workload), "--precision", workload.precision]
    ddp = training.training_program(options, "ddp", *workload.settings(procs=gpus), procs=gpus)
    trainings = [
        TimedTraining(name="ddp", program=ddp, processes=gpus),
        TimedTraining(name="dataparallel", program=peer_program(options, "dataparallel", *words)),
    ]
    ours, peer = training.time_trainings(options, trainings, rounds=options.num_pairs(BLOCKS), in_turns=False)
    if missing := ours.missing or peer.missing:
        yield missing_row(DATA_PARALLEL, what, missing, failed=True)
    else:
        yield reported_row(f"{ROW} {DATA_PARALLEL}", what, ours.relative_to(peer), gpus=gpus, **speed_facts(ours))


def simulated_wire(options: BenchOptions) -> Iterator[Measurement]:
    """One GPU's part of the batch of eight, with and without the wait for a network between them.

    Buckets and overlap are real, but nothing is sent.
    """
    what = f"speed kept with a simulated network of {WIRE_GPUS} GPUs on two nodes, bare DDP"
    if options.device == "cpu":
        yield missing_row(WIRE, what, "needs a GPU")
        return
    workload = default_workload(options)
    workload = replace(workload, batch=max(1, workload.batch // WIRE_GPUS), augment=False)
    words = [*peer_arguments(workload), "--precision", workload.precision]
    without = peer_program(options, "wire", *words, "--alpha-us", "0", "--us-per-mb", "0")
    trainings = [
        TimedTraining(name="wire", program=peer_program(options, "wire", *words)),
        TimedTraining(name="without", program=replace(without, name="without-wire")),
    ]
    wired, base = training.time_trainings(options, trainings, rounds=options.num_pairs(BLOCKS), in_turns=True)
    if missing := wired.missing or base.missing:
        yield missing_row(WIRE, what, missing, failed=True)
    else:
        yield reported_row(f"{ROW} {WIRE}", what, wired.relative_to(base), simulated=True, **speed_facts(wired))


def _workload_settings(options: BenchOptions, mode: str, count: int, smallest: int) -> list[str]:
    workload = default_workload(options)
    batch = workload.batch if mode == WEAK else max(1, workload.batch * smallest // count)
    return [*replace(workload, batch=batch).settings(procs=count), *options.overrides]


def _config_settings(options: BenchOptions, mode: str, count: int, smallest: int) -> list[str]:
    """Settings of the user's configuration, whose global batch belongs to the smallest number of processes.

    Raises:
        Failure: USAGE for a global batch that cannot grow with the processes.
    """
    train = load.load_config(options.config, options.overrides).train
    batch = _grown_batch(train.global_batch_size, count, smallest) if mode == WEAK else train.global_batch_size
    divides = train.micro_batch_size == "auto" or batch % (train.micro_batch_size * count) == 0
    micro = [] if divides else ["train.micro_batch_size=auto"]
    return [*options.overrides, *ENDLESS_SETTINGS, f"train.global_batch_size={batch}", *micro]


def _grown_batch(batch: int, count: int, smallest: int) -> int:
    grown, rest = divmod(batch * count, smallest)
    if not rest:
        return grown
    choices = nearest_multiples(batch, smallest)
    raise Failure(
        f"the global batch cannot grow from {pluralize(smallest, 'process')} to {count}",
        found=f"train.global_batch_size: {batch}, of which {count}/{smallest} is no whole number",
        expected="as many images for each process, whatever their number (weak scaling)",
        fix=f"train.global_batch_size={' or '.join(map(str, choices))}, or other numbers with --processes",
        code=ExitCode.USAGE,
    )


def speed_facts(speed: Speed) -> dict[str, Any]:
    """What a row keeps of one training."""
    facts = speed.facts or {}
    names = ("batch", "accumulation", "precision", "parameters", "loader")
    return {name: facts[name] for name in names if name in facts} | {
        "processes": speed.training.processes,
        "images_per_s": speed.images_per_s().value,
        "step_s": speed.images / speed.images_per_s().value,
        "first_step_s": facts.get("first_step_s"),
        "memory_bytes": speed.memory,
    }


def missing_row(name: str, what: str, reason: str, *, failed: bool = False) -> Row:
    """A row of scaling without a value."""
    return Row(number=f"{ROW} {name}", target=Target(what=what), missing=reason, failed=failed)
