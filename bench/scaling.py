"""This module measures scaling, and next to it DataParallel and one GPU with a simulated network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from bench.harness import our_program, peer_arguments, peer_program
from train.bench import scaling, training
from train.bench.measurements import Measurement, reported_row
from train.bench.processes import BenchOptions
from train.bench.scaling import BLOCKS, ROW, default_workload, missing_row, speed_facts
from train.bench.training import TimedTraining

DATA_PARALLEL, WIRE = "DataParallel", "wire"
WIRE_GPUS: Final = 8  # peers/wire.py waits as long as an all-reduce between so many

add_arguments = scaling.add_arguments


def run(options: BenchOptions) -> Iterator[Measurement]:
    """Row 14: what `train bench scaling` measures, then both ways to use several GPUs."""
    yield from scaling.run(options)
    yield from data_parallel(options, scaling.max_processes(options))
    yield from simulated_wire(options)


def data_parallel(options: BenchOptions, gpus: int) -> Iterator[Measurement]:
    """One process for each GPU, and one process for all of them, with the same global batch."""
    what = "DDP / DataParallel on the same GPUs, images/s"
    if options.device == "cpu" or gpus < 2:
        yield missing_row(DATA_PARALLEL, what, "needs two GPUs")
        return
    global_workload = replace(default_workload(options), augment=False)
    workload = replace(global_workload, batch=global_workload.batch // gpus)
    words = [*peer_arguments(global_workload), "--precision", workload.precision]
    ddp = our_program(options, "ddp", *workload.settings(procs=gpus), procs=gpus)
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
