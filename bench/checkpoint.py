"""This module measures what a checkpoint adds to training, next to `accelerator.save_state`: row 11."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from typing import Any, Final

from bench import harness, processes, targets
from bench.estimates import estimate_median, ratio_of_medians
from bench.measurements import Measurement, Row, Target
from bench.processes import BenchOptions, Program, RunningProgram
from bench.training import LEARNING_RATE, MANY_EPOCHS
from entrypoint import num_usable_cores

BLOCK_FACTOR: Final = 2.0  # a block lasts so many times as long as a save
MAX_STEPS: Final = 2000  # of a block
# Whether the block with the checkpoint goes first in a round. Sides and blocks take turns, so that drifts affect all
# alike.
SAVE_FIRST: Final = (True, True, False, False)
Blocks = Sequence[dict[str, float]]


def run(options: BenchOptions) -> Iterator[Measurement]:
    """Rows 11a and 11b: pairs of blocks of steps, each with a checkpoint and without.

    A CPU is measured twice: beside a GPU the host has cores for what is written behind, so training leaves one free
    for row 11a. Training's own threads take the snapshot, and they have all cores for row 11b.
    """
    cores = num_usable_cores()
    if options.device == "cuda" or cores == 1:
        yield from compute_rows(*_measure_blocks(options, {}, 20)).values()
        return
    one_free = compute_rows(
        *_measure_blocks(options, {"OMP_NUM_THREADS": str(cores - 1)}, 20), cores=cores, training_on=cores - 1
    )
    all_busy = compute_rows(
        *_measure_blocks(options, {"OMP_NUM_THREADS": str(cores)}, 10), cores=cores, training_on=cores
    )
    yield from (one_free["11a"], all_busy["11b"])
    yield _without_target(all_busy["11a"], "all cores at work")
    yield _without_target(one_free["11b"], "one core free")


def compute_rows(ours: Blocks, peer: Blocks, **facts: Any) -> dict[str, Row]:
    """The rows by their numbers, from pairs of blocks: `extra_s` and `save_s` of both sides, `copy_s` of ours."""
    our_extra, peer_extra = ([block["extra_s"] for block in blocks] for blocks in (ours, peer))
    facts |= {"ours_extra_s": median(our_extra), "save_state_extra_s": median(peer_extra)}
    facts |= {"snapshot_s": median(block["save_s"] for block in ours)}
    facts |= {"copy_s": median(block["copy_s"] for block in ours)}
    facts |= {"save_state_s": median(block["save_s"] for block in peer)}
    extra_ratio = ratio_of_medians(our_extra, peer_extra)
    stall_ratios = [block["save_s"] / other["save_s"] for block, other in zip(ours, peer, strict=True)]
    noise = "a checkpoint of the peer's did not surely take time: too much noise"
    return {
        "11a": targets.measured("11a", extra_ratio, **facts)
        if extra_ratio
        else targets.unmeasured("11a", noise, **facts),
        "11b": targets.measured("11b", estimate_median(stall_ratios), **facts),
    }


def _without_target(row: Row, circumstances: str) -> Row:
    """The same value in other circumstances, which have no target."""
    return replace(row, number=f"{row.number}, {circumstances}", target=Target(what=row.target.what))


def _measure_blocks(options: BenchOptions, variables: Mapping[str, str], num_pairs: int) -> tuple[Blocks, Blocks]:
    """Pairs of blocks: ours and the peer's. Each call has its own folder, since save_state overwrites nothing."""
    options = replace(options, scratch=Path(mkdtemp(dir=options.scratch)))
    both = (our_program(options), peer_program(options))
    programs = (replace(program, environ={**program.environ, **variables}) for program in both)
    with processes.start_programs(options, *programs) as (ours, peer):
        for program in (ours, peer):
            program.steps = 2 if options.quick else steps_for_a_save(program)
        sides = [partial(_measure_extra, program, cycle(SAVE_FIRST)) for program in (ours, peer)]
        our_blocks, peer_blocks = processes.run_in_turns(sides, rounds=options.num_pairs(num_pairs))
    return our_blocks, peer_blocks


def _measure_extra(program: RunningProgram, order: Iterator[bool]) -> dict[str, float]:
    """A block with a checkpoint and one without: the difference, and how long training stood still."""
    save_first = next(order)
    blocks = {save: program.request(steps=program.steps, save=save) for save in (save_first, not save_first)}
    saved, plain = blocks[True], blocks[False]
    extra = {"extra_s": saved["seconds"] - plain["seconds"], "save_s": saved["save_s"]}
    return extra | ({"copy_s": saved["copy_s"]} if "copy_s" in saved else {})


def steps_for_a_save(program: RunningProgram) -> int:
    """Steps in which a checkpoint is surely written, if it is written behind."""
    plain, saved = program.request(steps=5, save=False), program.request(steps=5, save=True)
    step_s, save_s = plain["seconds"] / 5, max(saved["seconds"] - plain["seconds"], saved["save_s"])
    return min(MAX_STEPS, max(3, int(BLOCK_FACTOR * save_s / step_s)))


def our_program(options: BenchOptions) -> Program:
    """Ours with the reference network. On a CPU the batch is smallest, so that the network's size counts."""
    width, batch, samples = _sizes(options)
    settings = ["data.name=synthetic", f"data.samples={samples}", "data.image_size=32", "data.classes=100"]
    settings += ["data.val_fraction=0", "data.loader=memory", "data.augment=none", "model.name=wide_resnet"]
    settings += [f"model.args={{depth: 2, width: {width}}}", f"optim.lr={LEARNING_RATE}"]
    settings += [f"train.epochs={MANY_EPOCHS}", f"train.global_batch_size={batch}"]
    settings += [f"train.micro_batch_size={batch}", "train.precision=fp32", "checkpoint.every_minutes=null"]
    settings += [f"run.output_dir={options.scratch}", "run.name=saves"]
    words = ["--device", options.device, "--folder", str(options.scratch / "saves"), *settings]
    command = processes.module_command("bench.checkpoint_blocks", *words)
    return Program(name="saves", command=command, environ=options.child_environ())


def peer_program(options: BenchOptions) -> Program:
    """Accelerate's, with the same network and batches."""
    width, batch, samples = _sizes(options)
    words = ["--width", str(width), "--batch", str(batch), "--samples", str(samples), "--warm-up", "2"]
    return harness.peer_program(options, "saving", *words, "--folder", str(options.scratch / "states"))


def _sizes(options: BenchOptions) -> tuple[int, int, int]:
    """Width of the network, images of a batch, and of all."""
    return (1, 2, 64) if options.quick else (10, 1, 512) if options.device == "cpu" else (10, 256, 4096)
