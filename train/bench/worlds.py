"""Trainings of ours on some number of processes or with some settings, each timed in blocks of steps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Final

from entrypoint import Failure
from train.bench import paced, pairs
from train.bench.loads import FOREVER, LOG_EVERY
from train.bench.options import Options
from train.bench.paced import Paced, Side
from train.bench.pairs import Estimate

BLOCK_S: Final = 1.0
ERROR: Final = re.compile(r"^ERROR\[\d+\] (.+)$", re.M)
# What a user's own configuration gets so that nothing but steps is in the time, and no end comes.
ENDLESS: Final = (
    f"train.epochs={FOREVER}",
    "train.max_steps=null",
    f"eval.every_epochs={FOREVER}",
    "checkpoint.every_minutes=null",
    "checkpoint.every_steps=null",
    f"log.every_steps={LOG_EVERY}",
    "log.tensorboard=false",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One training that is timed."""

    name: str
    side: Side
    processes: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """What it came to, or why to nothing. seconds: of a step, one for each block. memory: bytes of rank 0, at most.

    in_turns: the blocks of the others were run in the same minutes, so that block by block they make pairs.
    """

    world: World
    seconds: tuple[float, ...] = ()
    images: int = 0
    memory: int = 0
    facts: dict[str, Any] | None = None
    missing: str | None = None
    in_turns: bool = True

    def images_per_s(self) -> Estimate:
        """Of all processes together."""
        return pairs.estimate([self.images / seconds for seconds in self.seconds])

    def against(self, base: Speed) -> Estimate:
        """Times as many images per second as `base`: block by block where they took turns, else by the medians."""
        rates, others = ([one.images / seconds for seconds in one.seconds] for one in (self, base))
        by_medians = None if self.in_turns else pairs.quotient(rates, others)
        return by_medians or pairs.estimate([mine / theirs for mine, theirs in zip(rates, others, strict=True)])


def measured(options: Options, worlds: Sequence[World], *, rounds: int, together: bool) -> list[Speed]:
    """Each in so many blocks. together: all are alive at once and take turns, else one follows the other.

    On GPUs those that wait for their turn would keep the device busy, and its memory.
    """
    if together:
        return _timed(options, worlds, rounds)
    return [replace(speed, in_turns=False) for world in worlds for speed in _timed(options, [world], rounds)]


def warm_up(options: Options) -> int:
    """Steps before the first that is timed."""
    return 2 if options.quick else 10


def pinned(side: Side, cpus: Iterable[int]) -> Side:
    """The same, on these CPUs alone."""
    listed = ",".join(map(str, cpus))
    return replace(side, command=[side.command[0], "-c", PIN, listed, *side.command])


PIN: Final = (
    "import os, sys; os.sched_setaffinity(0, map(int, sys.argv[1].split(','))); os.execv(sys.argv[2], sys.argv[2:])"
)


def reason(failure: Failure) -> str:
    """Of a training that ended: its own error, else what the bench saw of it."""
    said = ERROR.search(failure.found or "")
    return said[1] if said else (failure.found or failure.what).strip().splitlines()[0]


def _timed(options: Options, worlds: Sequence[World], rounds: int) -> list[Speed]:
    with ExitStack() as stack:
        alive = [_started(options, world, stack) for world in worlds]
        ready = [one for one in alive if not isinstance(one, str)]
        for one in ready:
            one.steps = 1 if options.quick else one.fit_to(BLOCK_S)
        told: dict[int, list[dict[str, Any]]] = {id(one): [] for one in ready}
        for number in range(rounds):
            for one in ready if number % 2 == 0 else ready[::-1]:
                told[id(one)].append(one.ask(steps=one.steps))
        return [
            Speed(world=world, missing=one) if isinstance(one, str) else _speed(world, one, told[id(one)])
            for world, one in zip(worlds, alive, strict=True)
        ]


def _started(options: Options, world: World, stack: ExitStack) -> Paced | str:
    """Alive and warm; or why not."""
    try:
        (one,) = stack.enter_context(paced.started(options, world.side))
    except Failure as failure:
        return reason(failure)
    return one


def _speed(world: World, one: Paced, told: Sequence[dict[str, Any]]) -> Speed:
    facts = one.facts
    images = int(facts["batch"]) * int(facts.get("accumulation", 1)) * int(facts.get("ranks", 1))
    return Speed(
        world=world,
        seconds=tuple(float(block["seconds"]) / one.steps for block in told),
        images=images,
        memory=max(int(block.get("memory", 0)) for block in told),
        facts=dict(facts),
    )
