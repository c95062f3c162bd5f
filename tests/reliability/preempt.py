"""Stop, preempt, requeue and cut off jobs of a real Slurm cluster that runs the real image: the steps that it loses."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import trials  # noqa: E402
from bed import Cluster, running  # noqa: E402
from interruptions import Bench, Scenario, bench, folder_of, interrupted  # noqa: E402
from strikes import GENTLE, HARSH  # noqa: E402

AT_ONCE = 4  # trainings of two ranks
BUILD_S = 1500


def main(wanted: list[str]) -> int:
    image = subprocess.run([ROOT / "tests" / "build-image", "sif"], stdout=subprocess.PIPE, text=True, timeout=BUILD_S)
    if image.returncode:
        return image.returncode
    sif = Path(image.stdout.strip().splitlines()[-1])
    return trials.run("preempt", every_scenario(sif, wanted), image=sif.stem)


def every_scenario(sif: Path, wanted: list[str]) -> Iterator[trials.Trial]:
    """All of them, or those whose names were given."""
    with ThreadPoolExecutor(AT_ONCE + 1) as pool, furnished(sif, NODES="3", CPUS="4", GPUS="4") as cluster:
        stage = bench(cluster, folder_of(cluster), pool)
        running_now = [pool.submit(tried, stage, scenario) for scenario in chosen(GENTLE, wanted)]
        yield from (done.result() for done in as_completed(running_now))
        for scenario in chosen(HARSH, wanted):
            yield tried(stage, scenario)
            if scenario.heals:
                cluster.heal("node01", "node02", "node03")


def chosen(scenarios: tuple[Scenario, ...], wanted: list[str]) -> list[Scenario]:
    return [scenario for scenario in scenarios if not wanted or scenario.name in wanted]


def tried(stage: Bench, scenario: Scenario) -> trials.Trial:
    """The scenario's trial; one that did not come to its end says why."""
    try:
        return interrupted(stage, scenario)
    except (Exception, AssertionError) as error:
        return trials.Trial(
            row=scenario.row, injector=scenario.name, process=scenario.process, expected="an end",
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
