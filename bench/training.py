"""This module times our own trainings: each on some processes with some settings, in blocks of steps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal

from bench import processes
from bench.estimates import Estimate, estimate_median, ratio_of_medians
from bench.processes import BenchOptions, Program, RunningProgram
from entrypoint import Failure
from train.config import load

BLOCK_S: Final = 1.0
MANY_EPOCHS: Final = 1_000_000
LOG_EVERY: Final = 100  # steps
LEARNING_RATE: Final = 0.01
ERROR_LINE: Final = re.compile(r"^ERROR\[\d+\] (.+)$", re.M)
# Settings that remove everything but steps from a user's own configuration, and its end.
ENDLESS_SETTINGS: Final = (
    f"train.epochs={MANY_EPOCHS}",
    "train.max_steps=null",
    f"eval.every_epochs={MANY_EPOCHS}",
    "checkpoint.every_minutes=null",
    "checkpoint.every_steps=null",
    f"log.every_steps={LOG_EVERY}",
    "log.tensorboard=false",
)
CALL_PINNED: Final = (
    "import os, sys; os.sched_setaffinity(0, map(int, sys.argv[1].split(','))); os.execv(sys.argv[2], sys.argv[2:])"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A network and its batches. batch: of one process. size: pixels. `tiny` is a model of bench/peers."""

    model: Literal["wide_resnet", "tiny"] = "wide_resnet"
    width: int = 10
    size: int = 32
    classes: int = 100
    samples: int = 50_000
    batch: int = 256
    precision: Literal["fp32", "bf16"] = "fp32"
    augment: bool = False
    compile: Literal["default"] | None = None

    def settings(self, *, procs: int = 1) -> list[str]:
        """The workload as `section.key=value`."""
        args = {"wide_resnet": f"{{depth: 2, width: {self.width}, dropout: 0.01}}", "tiny": "{}"}[self.model]
        name = {"wide_resnet": "wide_resnet", "tiny": "workload:tiny"}[self.model]
        return [
            "data.name=synthetic",  # a step takes as long whatever the images show
            f"data.samples={self.samples}",
            f"data.image_size={self.size}",
            f"data.classes={self.classes}",
            "data.val_fraction=0",
            "data.loader=memory",
            f"data.augment={'standard' if self.augment else 'none'}",
            f"model.name={name}",
            f"model.args={args}",
            f"optim.lr={LEARNING_RATE}",
            f"train.global_batch_size={self.batch * procs}",
            f"train.micro_batch_size={self.batch}",
            f"train.precision={self.precision}",
            "train.reproducible=none",  # the peers let cuDNN choose the fastest kernels
            f"train.compile={self.compile or 'false'}",
            f"train.epochs={MANY_EPOCHS}",
            f"eval.every_epochs={MANY_EPOCHS}",
            "checkpoint.every_minutes=null",
            f"log.every_steps={LOG_EVERY}",
        ]


# The reference workload on a GPU, and its replacement on two cores: a hundredth of the work for an image.
REFERENCE: Final = Workload(precision="bf16", augment=True)
SMALL: Final = Workload(width=1, samples=4_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedTraining:
    """One training that is timed."""

    name: str
    program: Program
    processes: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """The measured speed of a training, or why it is missing.

    seconds: of a step, one for each block. memory: peak bytes of rank 0. in_turns: the blocks of the others were run
    in the same minutes, so that block by block they make pairs.
    """

    training: TimedTraining
    seconds: tuple[float, ...] = ()
    images: int = 0
    memory: int = 0
    facts: dict[str, Any] | None = None
    missing: str | None = None
    in_turns: bool = True

    def images_per_s(self) -> Estimate:
        """Images per second of all processes together."""
        return estimate_median([self.images / seconds for seconds in self.seconds])

    def relative_to(self, base: Speed) -> Estimate:
        """Images per second / those of `base`: of pairs of blocks if they took turns, otherwise of the medians."""
        rates, base_rates = ([speed.images / seconds for seconds in speed.seconds] for speed in (self, base))
        of_medians = None if self.in_turns else ratio_of_medians(rates, base_rates)
        return of_medians or estimate_median([rate / other for rate, other in zip(rates, base_rates, strict=True)])


def training_program(
    options: BenchOptions,
    name: str,
    *settings: str,
    procs: int = 1,
    warm_up: int = 10,
    config: str | None = None,
) -> Program:
    """Our training on `procs` ranks of this machine; beside the peers it may use their model `workload:tiny`."""
    folder = options.scratch / name
    words = ["--logs", str(folder / "logs"), "--device", options.device, "--procs-per-node", str(procs)]
    words += ["--", "--warm-up", str(warm_up)]
    words += ["--module-folder", str(options.peers)] if options.compares else []
    words += ["--config", config] if config else []
    words += load.keep_last_overrides([*settings, f"run.output_dir={options.scratch}", f"run.name={name}"])
    command = processes.module_command("bench.ranks", *words)
    return Program(name=name, command=command, environ=options.child_environ())


def time_trainings(
    options: BenchOptions, trainings: Sequence[TimedTraining], *, rounds: int, in_turns: bool
) -> list[Speed]:
    """Time so many blocks of each training. in_turns: all are alive at once; otherwise one follows the other.

    On GPUs, trainings that wait for their turn would keep the device busy, and its memory.
    """
    if in_turns:
        return _time_in_turns(options, trainings, rounds)
    return [
        replace(speed, in_turns=False)
        for training in trainings
        for speed in _time_in_turns(options, [training], rounds)
    ]


def num_warm_up_steps(options: BenchOptions) -> int:
    """Steps before the first timed one."""
    return 2 if options.quick else 10


def pin_to_cpus(program: Program, cpus: Iterable[int]) -> Program:
    """The same program, on these CPUs only."""
    listed = ",".join(map(str, cpus))
    return replace(program, command=[program.command[0], "-c", CALL_PINNED, listed, *program.command])


def failure_reason(failure: Failure) -> str:
    """The error that an ended training printed; without one, the first line of the failure."""
    error = ERROR_LINE.search(failure.found or "")
    return error[1] if error else (failure.found or failure.what).strip().splitlines()[0]


def _time_in_turns(options: BenchOptions, trainings: Sequence[TimedTraining], rounds: int) -> list[Speed]:
    with ExitStack() as stack:
        started = [_start(options, training, stack) for training in trainings]
        running = [program for program in started if not isinstance(program, str)]
        for program in running:
            program.steps = 1 if options.quick else program.steps_in(BLOCK_S)
        sides = [partial(program.request, steps=program.steps) for program in running]
        blocks = iter(processes.run_in_turns(sides, rounds=rounds, warm_up=0))
        return [
            Speed(training=training, missing=program)
            if isinstance(program, str)
            else _speed(training, program, next(blocks))
            for training, program in zip(trainings, started, strict=True)
        ]


def _start(options: BenchOptions, training: TimedTraining, stack: ExitStack) -> RunningProgram | str:
    """The running and warm training, or why it is not."""
    try:
        (program,) = stack.enter_context(processes.start_programs(options, training.program))
    except Failure as failure:
        return failure_reason(failure)
    return program


def _speed(training: TimedTraining, program: RunningProgram, blocks: Sequence[dict[str, Any]]) -> Speed:
    facts = program.facts
    images = int(facts["batch"]) * int(facts.get("accumulation", 1)) * int(facts.get("ranks", 1))
    return Speed(
        training=training,
        seconds=tuple(float(block["seconds"]) / program.steps for block in blocks),
        images=images,
        memory=max(int(block.get("memory", 0)) for block in blocks),
        facts=dict(facts),
    )
