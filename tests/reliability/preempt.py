"""Stop, preempt, requeue and cut off jobs of a real Slurm cluster that runs the real image: the steps that it loses."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import trials  # noqa: E402
from bed import Cluster, running  # noqa: E402
from dead_ends import DEAD_ENDS, DeadEnd, image_lost, images_lost, trial  # noqa: E402
from interruptions import Bench, Scenario, bench, folder_of, interrupted  # noqa: E402
from strikes import GENTLE, HARSH  # noqa: E402
from trials import Trial  # noqa: E402

AT_ONCE = 3  # trainings of two ranks
SIGNALS = 5  # of each kind, where Slurm signals every process
HARSHER = "proctrack/linuxproc"
BUILD_S = 1500


def main(wanted: list[str]) -> int:
    image = subprocess.run([ROOT / "tools" / "build-image", "sif"], stdout=subprocess.PIPE, text=True, timeout=BUILD_S)
    if image.returncode:
        return image.returncode
    sif = Path(image.stdout.strip().splitlines()[-1])
    seen: list[Trial] = []
    return trials.run("preempt", kept(every_trial(sif, wanted), seen), at_the_end=lambda: figures(seen))


def kept(found: Iterator[Trial], seen: list[Trial]) -> Iterator[Trial]:
    for one in found:
        seen.append(one)
        yield one


def figures(seen: list[Trial]) -> dict[str, Any]:
    """The steps that each interruption has cost."""
    costs = [one for one in seen if isinstance(one.observed, dict) and "steps_lost" in one.observed]
    told = [one.observed["steps_lost"] for one in costs if one.expected["steps_lost"] == "<= 0"]
    killed = [one.observed["steps_lost"] for one in costs if one.expected["steps_lost"] != "<= 0"]
    saved = [one.figures["last_save_succeeded"] for one in seen if "last_save_succeeded" in one.figures]
    return {"steps_lost_when_told_to_stop": told, "steps_lost_when_killed": killed, "saves_under_linuxproc": saved}


def every_trial(sif: Path, wanted: list[str]) -> Iterator[Trial]:
    """All of them, or those whose names were given. Those that take a node away come last, one after the other."""
    tasks = [(entry, partial(interrupted, scenario=entry)) for entry in GENTLE]
    tasks += [(entry, partial(trial, end=entry)) for entry in DEAD_ENDS]
    with ThreadPoolExecutor(AT_ONCE + 1) as pool, furnished(sif, NODES="3", CPUS="4", GPUS="4") as cluster:
        stage = bench(cluster, folder_of(cluster), pool)
        begun = [pool.submit(tried, stage, *task) for task in tasks if chosen(task[0].name, wanted)]
        yield from (done.result() for done in as_completed(begun))
        for scenario in HARSH:
            if chosen(scenario.name, wanted):
                yield tried(stage, scenario, partial(interrupted, scenario=scenario))
                if scenario.heals:
                    cluster.heal("node01", "node02", "node03")
    if chosen(HARSHER, wanted):
        yield linuxproc(sif)


def linuxproc(sif: Path) -> Trial:
    """The setting of ProctrackType with which Slurm signals every process of a step."""
    with (
        ThreadPoolExecutor(AT_ONCE) as pool,
        furnished(sif, NODES="1", CPUS="4", GPUS="4", PROCTRACK=HARSHER) as cluster,
    ):
        stage = Bench(cluster=cluster, place=folder_of(cluster), weights=Future())
        found = {
            signal: [pool.submit(image_lost, stage, signal, f"{signal}-{number}") for number in range(SIGNALS)]
            for signal in ("TERM", "USR1")
        }
        return images_lost({signal: [start.result() for start in starts] for signal, starts in found.items()})


def chosen(name: str, wanted: list[str]) -> bool:
    return not wanted or name in wanted


def tried(stage: Bench, entry: Scenario | DeadEnd, run: Callable[[Bench], Trial]) -> Trial:
    """What `run` finds; a scenario that did not come to its end says why."""
    try:
        return run(stage)
    except (Exception, AssertionError) as error:
        return Trial(
            row=entry.row, injector=entry.name, process=entry.process, expected="an end",
            observed=type(error).__name__, ok=False, lines=trials.last_lines(str(error)),
        )  # fmt: skip


@contextmanager
def furnished(sif: Path, **settings: str) -> Iterator[Cluster]:
    """Nodes with the image and the launch scripts in the folder that a user submits from."""
    with running(**settings) as cluster:
        shutil.copytree(ROOT / "launch", cluster.shared / "launch")
        os.link(sif, cluster.shared / "train.sif")
        yield cluster


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
