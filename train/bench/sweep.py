"""Micro batch, loader, precision and CPUs: each combination timed alone, its memory, and which one to take."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from entrypoint import make_plan, num_usable_cores
from train.bench import loads, paced, rows, worlds
from train.bench.options import Options, numbers
from train.bench.rows import Found, Row, Series, Target
from train.bench.worlds import ENDLESS, Speed, World
from train.config.load import keep_last_overrides

NAME: Final = "sweep"
BLOCKS: Final = 5
CLOSE: Final = 0.97  # of the fastest: settings that differ by less are told apart by what they take
AUTO, MEMORY = "auto", "memory"
SIZES: Final = (16, 64, 256, 1024)
LARGEST_ON_CPU: Final = 256
PRECISIONS: Final = ("fp32", "bf16")
WORKERS: Final = re.compile(r"(\d+) workers?")  # as the loader calls itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One combination. workers: auto, memory, or how many processes read. cpus: of each process of ours."""

    micro: int
    workers: str
    precision: str
    cpus: int

    def words(self) -> list[str]:
        """As a user writes them."""
        loader = {AUTO: [], MEMORY: ["data.loader=memory"]}
        read = loader.get(self.workers, ["data.loader=workers", f"data.workers={self.workers}"])
        return [f"train.micro_batch_size={self.micro}", *read, f"train.precision={self.precision}"]

    def __str__(self) -> str:
        return f"{' '.join(self.words())}, {self.cpus} {'CPU' if self.cpus == 1 else 'CPUs'} a process"


def arguments(group: Any) -> None:
    """Arguments of its own."""
    group.add_argument("--micro", metavar="N,N", type=numbers, help="micro batches (default: 16, 64, 256, ...)")
    group.add_argument("--workers", metavar="N,N", type=_readers, help="auto, memory, or processes that read")
    group.add_argument("--precisions", metavar="P,P", type=_precisions, help="fp32, bf16, fp16 (default: fp32,bf16)")
    group.add_argument("--cpus", metavar="N,N", type=numbers, help="CPUs of each process (default: all, and half)")


def run(options: Options) -> Iterator[Found]:
    """A row for each setting as soon as it is known, then the one to take, and the plots."""
    procs, speeds = processes(options), []
    settings = grid(options, procs)
    options.tell(f"  {len(settings)} settings, one after the other")
    for number, setting in enumerate(settings):
        world = _world(options, setting, procs, f"{NAME}-{number}")
        (speed,) = worlds.measured(options, [world], rounds=options.count(BLOCKS), together=False)
        speeds.append((setting, speed))
        yield row(setting, speed)
    done = [(setting, speed) for setting, speed in speeds if speed.missing is None]
    if done:
        yield recommended(done, procs)
        yield from series(done)


def processes(options: Options) -> int:
    """One for each GPU; on the CPU one, unless told."""
    return options.launch.procs_per_node or make_plan(options.environ, options.launch).spawn


def grid(options: Options, procs: int) -> list[Setting]:
    """All combinations of what was asked for, or of what makes sense on this machine."""
    from train.config import load as schema  # YAML
    from train.config.batches import largest_divisor

    own, share = options.own, max(1, num_usable_cores() // procs)
    batch = schema.load_config(options.config, _settings(options)).train.global_batch_size
    most = batch // procs if options.device == "cuda" else min(batch // procs, LARGEST_ON_CPU)
    micro = getattr(own, "micro", None) or sorted({largest_divisor(batch // procs, min(size, most)) for size in SIZES})
    workers = getattr(own, "workers", None) or [AUTO, str(max(1, share - 1))]
    precisions = getattr(own, "precisions", None) or PRECISIONS
    cpus = getattr(own, "cpus", None) or sorted({share, max(1, share // 2)}, reverse=True)
    if options.quick:
        micro, workers, precisions, cpus = micro[:2], workers[:1], precisions[:1], cpus[:1]
    found = product(precisions, workers, cpus, micro)
    return [Setting(micro=m, workers=w, precision=p, cpus=min(c, share)) for p, w, c, m in found]


def row(setting: Setting, speed: Speed) -> Row:
    """What one came to."""
    if speed.missing is not None:
        return Row(number=NAME, target=Target(what=str(setting)), missing=speed.missing, facts=_facts(setting, speed))
    what = f"{setting}: {speed.memory / 1e9:.2f} GB"
    return rows.figure(NAME, what, speed.images_per_s(), unit="images/s", **_facts(setting, speed))


def recommended(done: Sequence[tuple[Setting, Speed]], procs: int) -> Row:
    """Of those that are as fast as the fastest, the one that takes the fewest CPUs, workers and memory."""
    fastest = max(speed.images_per_s().value for _, speed in done)
    close = [(setting, speed) for setting, speed in done if speed.images_per_s().value >= CLOSE * fastest]
    setting, speed = min(close, key=lambda one: (one[0].cpus, _readers_of(*one), one[1].memory))
    cpus = f"{setting.cpus * procs} CPUs for the task" if procs > 1 else f"--cpus-per-task={setting.cpus}"
    what = f"recommended: {' '.join(setting.words())}, {cpus}"
    return rows.figure("recommended", what, speed.images_per_s(), unit="images/s", **_facts(setting, speed))


def series(done: Sequence[tuple[Setting, Speed]]) -> Iterator[Series]:
    """Speed and memory over the micro batch, a line for each of the other settings."""
    rate: dict[str, list[tuple[float, float]]] = {}
    memory: dict[str, list[tuple[float, float]]] = {}
    for setting, speed in done:
        line = f"{setting.precision}, {setting.workers}, {setting.cpus} CPUs"
        rate.setdefault(line, []).append((setting.micro, speed.images_per_s().value))
        memory.setdefault(line, []).append((setting.micro, speed.memory / 1e9))
    titles = (("sweep", "Speed of each setting", "images/s", rate), ("sweep-memory", "Memory of rank 0", "GB", memory))
    for name, title, y, lines in titles:
        yield Series(name=name, title=title, x="micro batch", y=y, lines=lines, log_x=True)


def _world(options: Options, setting: Setting, procs: int, name: str) -> World:
    settings = [*_settings(options), *setting.words()]
    warm_up = worlds.warm_up(options)
    side = paced.ours(options, name, *settings, procs=procs, warm_up=warm_up, config=options.config)
    cpus = sorted(os.sched_getaffinity(0))[: setting.cpus * procs]
    return World(name=name, side=worlds.pinned(side, cpus), processes=procs)


def _settings(options: Options) -> list[str]:
    """The user's own training without an end; or the reference workload, or what stands for it on CPUs."""
    if options.config:
        return keep_last_overrides([*options.overrides, *ENDLESS])
    load = loads.REFERENCE if options.device == "cuda" else loads.SMALL
    words = [word for word in load.settings() if not word.startswith(("data.loader=", "train.micro_batch_size="))]
    batch = f"train.global_batch_size={1024 if options.device == 'cuda' else 64}"
    return keep_last_overrides([*words, batch, *options.overrides])


def _facts(setting: Setting, speed: Speed) -> dict[str, Any]:
    asked = {"micro": setting.micro, "workers": setting.workers, "precision": setting.precision, "cpus": setting.cpus}
    return asked | {"memory_bytes": speed.memory, "loader": (speed.facts or {}).get("loader")}


def _readers_of(setting: Setting, speed: Speed) -> int:
    """Data workers of each process: of `auto`, what it came to there."""
    found = WORKERS.match(str((speed.facts or {}).get("loader")))
    return int(found[1] if found else setting.workers if setting.workers.isdigit() else 0)


def _readers(text: str) -> list[str]:
    """Raises ValueError."""
    return [word if word in (AUTO, MEMORY) else str(int(word)) for word in text.split(",")]


def _precisions(text: str) -> list[str]:
    """Raises ValueError."""
    found = text.split(",")
    if set(found) - {*PRECISIONS, "fp16"}:
        raise ValueError
    return found
