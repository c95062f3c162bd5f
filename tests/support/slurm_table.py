"""The tables of docs/evidence/slurm.md: every situation on every Slurm version, as a cluster of each has just shown.

`python tests/support/slurm_table.py` (as root on Debian) writes them anew; tests/cluster/test_versions.py compares.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import matrix
from bed import Cluster, running
from machines import REPOSITORY
from matrix import Seen

from entrypoint.hostlist import expand_hosts

PAGE = REPOSITORY / "docs" / "evidence" / "slurm.md"
# Debian suite -> its Slurm.
SUITES = {"sid": "26.05", "trixie": "24.11", "bookworm": "22.05"}
MARK = "<!-- {} of {}: written by tests/support/slurm_table.py -->"
Situation = Callable[[str, str], list[Seen]]


@contextmanager
def three_nodes(suite: str) -> Iterator[Cluster]:
    """A cluster as the situations expect it."""
    with running(SUITE=suite, NODES="3", CPUS="4", GPUS="4") as cluster:
        yield cluster


class Column:
    """What one Slurm version has shown."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def seen(self, situation: str, kind: str) -> list[Seen]:
        """The processes of one kind in one situation."""
        return [one for one in matrix.seen(self.folder / situation) if one.kind == kind]

    def cell(self, situation: str) -> str:
        """What the table says of one situation."""
        if not (self.folder / situation).exists():
            return "needs the image"
        return "; ".join(matrix.results(self.folder / situation)) or "nothing was seen"

    def fact(self, name: str) -> str:
        """What this version does."""
        return LAUNCH_CONFLICT[name](self.seen)

    def refusals(self) -> dict[tuple[str, str], list[str]]:
        """What is said and the fix -> the situations where it is."""
        found: dict[tuple[str, str], list[str]] = {}
        for name in matrix.situations():
            errors = (one.refused for one in matrix.seen(self.folder / name) if one.refused)
            for text in {(f"{error['code']}: {_any_job(error['what'])}", error["fix"]) for error in errors}:
                found.setdefault(text, []).append(name)
        return found


def _any_job(text: str) -> str:
    return re.sub(r"job \d+", "job N", text)


def _variable(situation: str, kind: str, name: str) -> Callable[[Situation], str]:
    def fact(seen: Situation) -> str:
        return " or ".join(sorted({one.environ.get(name, "not set") for one in seen(situation, kind)}))

    return fact


def _gpus(situation: str) -> Callable[[Situation], str]:
    def fact(seen: Situation) -> str:
        lists = [one.environ.get("CUDA_VISIBLE_DEVICES") for one in seen(situation, "task")]
        return " or ".join(sorted({"not set" if each is None else str(len(each.split(","))) for each in lists}))

    return fact


def _deadline(seen: Situation) -> str:
    return " or ".join(
        {("set" if "SLURM_JOB_END_TIME" in one.environ else "not set") for one in seen("per-gpu", "task")}
    )


def _whose_list(seen: Situation) -> str:
    names = {one.environ["SLURM_NODELIST"] for one in seen("sub-step", "task")}
    return " or ".join({("the job's" if len(expand_hosts(each, "")) == 3 else "the step's") for each in names})


def _of_mpirun(seen: Situation) -> str:
    return " ".join(one.environ.get("SLURM_PROCID", "-") for one in seen("openmpi-slurm", "task"))


LAUNCH_CONFLICT: Mapping[str, Callable[[Situation], str]] = {
    "`SLURM_STEP_ID` in a batch script": _variable("per-gpu", "batch", "SLURM_STEP_ID"),
    "`SLURM_PROCID` in a batch script": _variable("per-gpu", "batch", "SLURM_PROCID"),
    "`SLURM_STEP_ID` in the shell of `salloc`": _variable("salloc-interactive", "shell", "SLURM_STEP_ID"),
    "`SLURM_JOB_END_TIME` in a task": _deadline,
    "CPUs that `sbatch -c3` and `srun --exact` give a task": _variable("cpus-inherited", "task", "SLURM_CPUS_ON_NODE"),
    "`SLURM_CPUS_PER_TASK` there": _variable("cpus-inherited", "task", "SLURM_CPUS_PER_TASK"),
    "its CPUs with `SRUN_CPUS_PER_TASK=3`": _variable("cpus-passed-on", "task", "SLURM_CPUS_ON_NODE"),
    "GPUs in `CUDA_VISIBLE_DEVICES` with `--gpus-per-node=2`": _gpus("per-gpu"),
    "GPUs in `CUDA_VISIBLE_DEVICES` with `--gpus-per-task=1`": _gpus("gpus-per-task"),
    "the same with `--gpu-bind=none`": _gpus("gpu-bind-none"),
    "`SLURM_NODELIST` in a step on fewer nodes is": _whose_list,
    "`SLURM_RESTART_COUNT` after one requeue": _variable("requeued", "task", "SLURM_RESTART_COUNT"),
    "`SLURM_PROCID` of ranks 0 to 3 under `mpirun`": _of_mpirun,
}


def rows(columns: Mapping[str, Column]) -> dict[str, list[list[str]]]:
    """The tables, as lists of cells."""
    commands = matrix.situations()
    refusals = columns["sid"].refusals()
    return {
        "situations": [
            [n, _shown(commands[n]), join_versions([c.cell(n) for c in columns.values()])] for n in commands
        ],
        "facts": [[name, *(c.fact(name) for c in columns.values())] for name in LAUNCH_CONFLICT],
        "refusals": [[what, fix, ", ".join(names)] for (what, fix), names in refusals.items()],
    }


def join_versions(cells: list[str]) -> str:
    """One cell for all versions; where they differ, a line for each group of versions that agree."""
    groups: dict[str, list[str]] = {}
    for version, cell in zip(SUITES.values(), cells, strict=True):
        groups.setdefault(cell, []).append(version)
    if len(groups) == 1:
        return cells[0]
    return "<br>".join(f"{', '.join(versions)}: {cell}" for cell, versions in groups.items())


def split_versions(joined: str) -> list[str]:
    """The cells of each version, from what `join_versions` wrote."""
    versions = "|".join(map(re.escape, SUITES.values()))
    cells: dict[str, str] = {}
    for line in joined.split("<br>"):
        found = re.fullmatch(rf"((?:{versions})(?:, (?:{versions}))*): (.+)", line)
        cells |= dict.fromkeys(found[1].split(", ") if found else SUITES.values(), found[2] if found else line)
    return [cells[version] for version in SUITES.values()]


def _shown(command: str) -> str:
    return f"`{command}`".replace("./probe batch; ", "").replace("|", "\\|")


def committed(table: str) -> dict[str, list[str]]:
    """First cell -> the other cells of a table in the page; for a situation: its command, a cell per version."""
    body = _between(PAGE.read_text(), table)
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in body.splitlines()[2:] if line.startswith("|")]
    found = {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines}
    if table == "situations":
        return {name: [command, *split_versions(seen)] for name, (command, seen) in found.items()}
    return found


def _between(text: str, table: str) -> str:
    return text.split(MARK.format("begin", table))[1].split(MARK.format("end", table))[0].strip()


def write(columns: Mapping[str, Column]) -> None:
    """Put the tables into the page."""
    heads = {
        "situations": ["situation", "command", "result"],
        "facts": ["fact", *SUITES.values()],
        "refusals": ["exit code: message", "fix", "situations"],
    }
    text = PAGE.read_text()
    for table, cells in rows(columns).items():
        lines = [heads[table], ["---"] * len(heads[table]), *cells]
        body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        before, rest = text.split(MARK.format("begin", table))
        after = rest.split(MARK.format("end", table))[1]
        text = f"{before}{MARK.format('begin', table)}\n{body}\n{MARK.format('end', table)}{after}"
    PAGE.write_text(text)


def main() -> None:
    """Start a cluster of each version and write what it shows."""
    build = [REPOSITORY / "tools" / "build-image", "sif"]
    built = subprocess.run(build, stdout=subprocess.PIPE, text=True, check=True, timeout=1800)
    with ExitStack() as stack:
        columns = {}
        for suite in SUITES:
            cluster = stack.enter_context(three_nodes(suite))
            if suite == "sid":
                os.link(built.stdout.strip(), cluster.shared / "train.sif")
            columns[suite] = Column(matrix.run_all(cluster, image=suite == "sid"))
        write(columns)


if __name__ == "__main__":
    main()
