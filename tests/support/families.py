"""The table of docs/evidence/detection.md: for every family of launchers, on what each shape of a job is tested.

`python tests/support/families.py` writes it; tests/entrypoint/test_platforms.py compares, and tests every cell.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from machines import REPOSITORY, captured
from synthetic import FLUX_SCRIPT, ONE_NODE_SCRIPTS, ONE_NODE_TASKS, PER_NODE, PER_RANK, PET, SCRIPTS, torchrun_rank

from entrypoint.launchers.per_rank import LAUNCHERS

PAGE = REPOSITORY / "docs" / "evidence" / "detection.md"
BEGIN, END = "<!-- begin of tested: written by tests/support/families.py -->", "<!-- end of tested -->"
Shape = tuple[int, bool]  # nodes, and whether a node has several ranks
SHAPES: tuple[Shape, ...] = ((1, False), (1, True), (2, False), (2, True))
SEVERAL = 2  # ranks on a node that has several
# Where the trainings on real engines are told: launcher, ranks, nodes.
ENGINES = [REPOSITORY / "tests" / "cluster" / name for name in ("test_training.py", "test_other_schedulers.py")]
REAL = {
    (name, int(nodes), ranks != nodes)
    for path in ENGINES
    for name, ranks, nodes in re.findall(r'\("([\w-]+)", (\d+), (\d+)\)', path.read_text())
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The environments of one family.

    Attributes:
        launcher: its name in `entrypoint show`, by the shape where that differs.
        shapes: a shape -> the environment of the last task; one rank per task, or one task per node.
        is_captured: whether Slurm's own environments are used; otherwise they are made from manuals and sources.
        past: a process of a larger job that the launcher did not start: environment and host files.
        answer: what it does.
    """

    launcher: str
    shapes: Mapping[Shape, dict[str, str]] = field(default_factory=dict)
    is_captured: bool = False
    past: tuple[dict[str, str], dict[str, str]]
    answer: str = "refused"

    def evidence(self, shape: Shape) -> str:
        """On what the shape is tested."""
        if (self.launcher, *shape) in REAL:
            return "**real engine**"
        if shape not in self.shapes:
            return "-"
        return "captured" if self.is_captured else "made up"


def _per_rank(*names: str) -> Family:
    """The last rank of each shape. names: the launcher, and another whose variables it sets too."""
    shapes = {}
    for nodes, many in SHAPES:
        ranks = SEVERAL if many else 1
        facts = {"rank": nodes * ranks - 1, "world_size": nodes * ranks, "num_nodes": nodes}
        facts |= {"local_rank": ranks - 1, "local_world_size": ranks}
        variables = [pair for each in names for pair in LAUNCHERS[each].variables.items()]
        shapes[nodes, many] = PER_RANK[names[0]] | {variable: str(facts[fact]) for fact, variable in variables}
    return Family(launcher=names[0], shapes=shapes, past=(PER_RANK[names[0]] | torchrun_rank(0, 1), {}))


def _per_node(name: str, alone: dict[str, str], one_of_two: dict[str, str]) -> Family:
    shapes = {(nodes, many): alone if nodes == 1 else one_of_two for nodes, many in SHAPES}
    past = one_of_two | (torchrun_rank(0, 1) if "RANK" not in one_of_two else {"RANK": ""})
    return Family(launcher=name, shapes=shapes, past=(past, {}))


def _script(name: str, answer: str = "refused") -> Family:
    environ, files, _ = SCRIPTS[name]
    alone, _ = ONE_NODE_SCRIPTS[name]
    return Family(launcher="local", shapes={(1, False): alone, (1, True): alone}, past=(environ, files), answer=answer)


FAMILIES: dict[str, Family] = {
    "torchrun": Family(
        launcher="torchrun",
        shapes={
            (nodes, many): torchrun_rank(nodes * ranks - 1, nodes * ranks, ranks)
            for nodes, many in SHAPES
            for ranks in (SEVERAL if many else 1,)
        },
        past=({"RANK": "1", "WORLD_SIZE": "2"}, {}),
    ),
    "Slurm, a task per rank": Family(
        launcher="slurm-task",
        shapes={(1, True): captured("exclusive/task-1@node01"), (2, True): captured("per-gpu/task-3@node02")},
        is_captured=True,
        past=(captured("no-srun-two-nodes/batch-0@node01"), {}),
    ),
    "Slurm, a task per node": Family(
        launcher="slurm-node",
        shapes={
            (nodes, many): captured("one-task/task-0@node01" if nodes == 1 else "per-node/task-1@node02")
            for nodes, many in SHAPES
        },
        is_captured=True,
        past=(captured("no-srun-two-nodes/batch-0@node01"), {}),
    ),
    "Open MPI": _per_rank("openmpi"),
    "Flux": _per_rank("flux", "pmi"),
    "jsrun": _per_rank("jsrun"),
    "MVAPICH": _per_rank("mvapich"),
    "PALS": _per_rank("pals"),
    "MPICH (Intel MPI: the same)": _per_rank("hydra"),
    "other PMI": _per_rank("pmi"),
    "Kubeflow": _per_node("pet", PET | {"PET_NNODES": "1", "PET_NODE_RANK": "0"}, PET),
    **{
        title: _per_node(name, ONE_NODE_TASKS[name], PER_NODE[name])
        for title, name in {
            "SkyPilot": "skypilot",
            "dstack": "dstack",
            "SageMaker": "sagemaker",
            "HTCondor": "htcondor",
            "Kubernetes with `RANK`": "kubernetes",
            "Vertex AI": "vertex",
            "AWS Batch": "aws-batch",
            "LeaderWorkerSet": "leaderworkerset",
            "Beaker": "beaker",
        }.items()
    },
    "scripts of PBS": _script("pbs"),
    "Grid Engine": _script("grid-engine"),
    "LSF": _script("lsf"),
    "OAR": _script("oar"),
    "Fujitsu PJM": _script("pjm"),
    "Azure Batch": _script("azure-batch"),
    "a script of Flux": Family(launcher="local", past=(FLUX_SCRIPT, {}), answer="a warning"),
}


def table() -> str:
    """The table, as the page has it."""
    head = ["family", "1 node, 1 rank", "1 node, several", "2 nodes, 1 each", "2 nodes, several", "started past it"]
    names: dict[tuple[str, ...], list[str]] = {}  # the families with the same cells share a row
    for name, family in FAMILIES.items():
        names.setdefault((*(family.evidence(shape) for shape in SHAPES), family.answer), []).append(name)
    rows = [[", ".join(group), *cells] for cells, group in names.items()]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def main() -> None:
    """Write the table into the page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
