"""This module times combinations of micro batch, loader, precision and CPUs, and recommends one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from bench import training
from bench.measurements import Measurement, Row, Series, Target, reported_row
from bench.processes import BenchOptions, parse_counts
from bench.training import ENDLESS_SETTINGS, Speed, TimedTraining
from entrypoint import make_plan, num_usable_cores
from train.config import load
from train.config.batches import largest_divisor
from train.config.load import keep_last_overrides
from train.config.precisions import PRECISIONS

NAME: Final = "sweep"
BLOCKS: Final = 5
CLOSE: Final = 0.97  # of the fastest: of settings that are closer, the one that needs less is recommended
AUTO, MEMORY = "auto", "memory"
SIZES: Final = (16, 64, 256, 1024)
LARGEST_ON_CPU: Final = 256
DEFAULT_PRECISIONS: Final = ("fp32", "bf16")
WORKERS: Final = re.compile(r"(\d+) workers?")  # in the loader's description


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One combination. workers: auto, memory, or how many processes read. cpus: of each rank."""

    micro: int
    workers: str
    precision: str
    cpus: int

    def words(self) -> list[str]:
        """As a user writes them on the command line."""
        loader = {AUTO: [], MEMORY: ["data.loader=memory"]}
        reader = loader.get(self.workers, ["data.loader=workers", f"data.workers={self.workers}"])
        return [f"train.micro_batch_size={self.micro}", *reader, f"train.precision={self.precision}"]

    def __str__(self) -> str:
        return f"{' '.join(self.words())}, {self.cpus} {'CPU' if self.cpus == 1 else 'CPUs'} a process"


def add_arguments(group: Any) -> None:
    """Add the arguments of this benchmark."""
    group.add_argument("--micro", metavar="N,N", type=parse_counts, help="micro batches (default: 16, 64, 256, ...)")
    group.add_argument("--workers", metavar="N,N", type=_parse_workers, help="auto, memory, or processes that read")
    group.add_argument(
        "--precisions",
        metavar="P,P",
        type=_parse_precisions,
        help=f"{', '.join(PRECISIONS)} (default: {','.join(DEFAULT_PRECISIONS)})",
    )
    group.add_argument("--cpus", metavar="N,N", type=parse_counts, help="CPUs of each process (default: all, and half)")


def run(options: BenchOptions) -> Iterator[Measurement]:
    """Yield a row for each setting as soon as it is measured, then the recommended one and the plots."""
    procs, speeds = num_processes(options), []
    settings = grid(options, procs)
    options.log(f"  {len(settings)} settings, one after the other")
    for number, setting in enumerate(settings):
        timed = _training(options, setting, procs, f"{NAME}-{number}")
        (speed,) = training.time_trainings(options, [timed], rounds=options.num_pairs(BLOCKS), in_turns=False)
        speeds.append((setting, speed))
        yield setting_row(setting, speed)
    measured = [(setting, speed) for setting, speed in speeds if speed.missing is None]
    if measured:
        yield recommend(measured, procs)
        yield from build_series(measured)


def num_processes(options: BenchOptions) -> int:
    """One for each GPU; on the CPU one, or as many as requested."""
    return options.launch.procs_per_node or make_plan(options.environ, options.launch).spawn


def grid(options: BenchOptions, procs: int) -> list[Setting]:
    """All combinations of the requested values, or of those that make sense on this machine."""
    arguments, share = options.arguments, max(1, num_usable_cores() // procs)
    batch = load.load_config(options.config, _settings(options)).train.global_batch_size
    largest = batch // procs if options.device == "cuda" else min(batch // procs, LARGEST_ON_CPU)
    divisors = sorted({largest_divisor(batch // procs, min(size, largest)) for size in SIZES})
    micro = getattr(arguments, "micro", None) or divisors
    workers = getattr(arguments, "workers", None) or [AUTO, str(max(1, share - 1))]
    precisions = getattr(arguments, "precisions", None) or DEFAULT_PRECISIONS
    cpus = getattr(arguments, "cpus", None) or sorted({share, max(1, share // 2)}, reverse=True)
    if options.quick:
        micro, workers, precisions, cpus = micro[:2], workers[:1], precisions[:1], cpus[:1]
    combinations = product(precisions, workers, cpus, micro)
    return [Setting(micro=m, workers=w, precision=p, cpus=min(c, share)) for p, w, c, m in combinations]


def setting_row(setting: Setting, speed: Speed) -> Row:
    """The speed and memory of one setting."""
    if speed.missing is not None:
        return Row(number=NAME, target=Target(what=str(setting)), missing=speed.missing, facts=_facts(setting, speed))
    what = f"{setting}: {speed.memory / 1e9:.2f} GB"
    return reported_row(NAME, what, speed.images_per_s(), unit="images/s", **_facts(setting, speed))


def recommend(measured: Sequence[tuple[Setting, Speed]], procs: int) -> Row:
    """Of the settings that are as fast as the fastest, choose the one with the fewest CPUs, workers and bytes."""
    fastest = max(speed.images_per_s().value for _, speed in measured)
    close = [(setting, speed) for setting, speed in measured if speed.images_per_s().value >= CLOSE * fastest]
    setting, speed = min(close, key=lambda pair: (pair[0].cpus, _num_workers(*pair), pair[1].memory))
    cpus = f"{setting.cpus * procs} CPUs for the task" if procs > 1 else f"--cpus-per-task={setting.cpus}"
    what = f"recommended: {' '.join(setting.words())}, {cpus}"
    return reported_row("recommended", what, speed.images_per_s(), unit="images/s", **_facts(setting, speed))


def build_series(measured: Sequence[tuple[Setting, Speed]]) -> Iterator[Series]:
    """Speed and memory over the micro batch, a line for each of the other settings."""
    rate: dict[str, list[tuple[float, float]]] = {}
    memory: dict[str, list[tuple[float, float]]] = {}
    for setting, speed in measured:
        line = f"{setting.precision}, {setting.workers}, {setting.cpus} CPUs"
        rate.setdefault(line, []).append((setting.micro, speed.images_per_s().value))
        memory.setdefault(line, []).append((setting.micro, speed.memory / 1e9))
    titles = (("sweep", "Speed of each setting", "images/s", rate), ("sweep-memory", "Memory of rank 0", "GB", memory))
    for name, title, y, lines in titles:
        yield Series(name=name, title=title, x="micro batch", y=y, lines=lines, log_x=True)


def _training(options: BenchOptions, setting: Setting, procs: int, name: str) -> TimedTraining:
    settings = [*_settings(options), *setting.words()]
    warm_up = training.num_warm_up_steps(options)
    program = training.training_program(options, name, *settings, procs=procs, warm_up=warm_up, config=options.config)
    cpus = sorted(os.sched_getaffinity(0))[: setting.cpus * procs]
    return TimedTraining(name=name, program=training.pin_to_cpus(program, cpus), processes=procs)


def _settings(options: BenchOptions) -> list[str]:
    """The user's own training without an end, or the reference workload, or its replacement on CPUs."""
    if options.config:
        return keep_last_overrides([*options.overrides, *ENDLESS_SETTINGS])
    workload = training.REFERENCE if options.device == "cuda" else training.SMALL
    words = [word for word in workload.settings() if not word.startswith(("data.loader=", "train.micro_batch_size="))]
    batch = f"train.global_batch_size={1024 if options.device == 'cuda' else 64}"
    return keep_last_overrides([*words, batch, *options.overrides])


def _facts(setting: Setting, speed: Speed) -> dict[str, Any]:
    values = {"micro": setting.micro, "workers": setting.workers, "precision": setting.precision, "cpus": setting.cpus}
    return values | {"memory_bytes": speed.memory, "loader": (speed.facts or {}).get("loader")}


def _num_workers(setting: Setting, speed: Speed) -> int:
    """Data workers of each process; for `auto`, how many the loader chose."""
    workers = WORKERS.match(str((speed.facts or {}).get("loader")))
    return int(workers[1] if workers else setting.workers if setting.workers.isdigit() else 0)


def _parse_workers(text: str) -> list[str]:
    """Raises ValueError."""
    return [word if word in (AUTO, MEMORY) else str(int(word)) for word in text.split(",")]


def _parse_precisions(text: str) -> list[str]:
    """Raises ValueError."""
    precisions = text.split(",")
    if set(precisions) - set(PRECISIONS):
        raise ValueError
    return precisions
