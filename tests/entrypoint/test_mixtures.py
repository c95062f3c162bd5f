"""Variables of two launchers at once: never a world of one where one of them says that there are more."""

from __future__ import annotations

import random
from typing import Any

import pytest
from machines import captured, machine
from synthetic import ONE_NODE_TASKS, PER_NODE, PER_RANK, PET, SAGEMAKER_BARE, SCRIPTS, torchrun_rank

from entrypoint.errors import Failure
from entrypoint.launchers import detect_allocation
from entrypoint.options import LaunchOptions

TORCHRUN = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node01"}
TORCHRUN |= {"MASTER_PORT": "29500"}
STEP = captured("per-gpu/task-3@node02")
BATCH = captured("per-gpu/batch-0@node01")
# Name -> variables and host files, each of a job with several tasks or nodes.
SOURCES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "torchrun": (TORCHRUN, {}),
    "step": (STEP, {}),
    "batch": (BATCH, {}),
    "pet": (PET, {}),
    **{name: (environ, {}) for name, environ in (PER_RANK | PER_NODE).items()},
    **{f"script-{name}": (environ, files) for name, (environ, files, _) in SCRIPTS.items()},
}
SINGLE: dict[str, dict[str, str]] = {
    "torchrun": TORCHRUN | {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"},
    "openmpi": {name: "1" if name.endswith("SIZE") else "0" for name in PER_RANK["openmpi"]},
    "hydra": {"PMI_RANK": "0", "PMI_SIZE": "1", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"},
    "pet": {"PET_NNODES": "1"},
    "nothing": {},
}


def num_tasks(environ: dict[str, str], files: dict[str, str]) -> int | None:
    """The number of tasks of the detected world; None if it is refused."""
    try:
        return detect_allocation(environ, LaunchOptions(), machine(host_files=files)).num_tasks
    except Failure:
        return None


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("inner", SINGLE)
def test_a_single_task_inside_a_job_of_several_is_refused(name: str, inner: str) -> None:
    environ, files = SOURCES[name]
    if not set(environ) & set(SINGLE[inner]):
        assert num_tasks(environ | SINGLE[inner], files) != 1


@pytest.mark.parametrize("seed", range(200))
def test_a_mixture_of_two_launchers_is_never_a_world_of_one(seed: int) -> None:
    draw = random.Random(seed)
    names = draw.sample(sorted(SOURCES), 2)
    environ: dict[str, Any] = {}
    for name in names:
        variables = list(SOURCES[name][0].items())
        environ |= dict(draw.sample(variables, draw.randint(1, len(variables))) if seed % 2 else variables)
    files = SOURCES[names[0]][1] | SOURCES[names[1]][1]
    files = {name: text for name, text in files.items() if name in environ}  # which says where the file is
    ranks = num_tasks(environ, files)
    assert ranks != 1 or not says_more_than_one(environ, files), names


ONE_PER_NODE = {
    "skypilot": PER_NODE["skypilot"],
    "pet": {"PET_NNODES": "2"},
    "step": captured("per-node/task-1@node02"),
    "openmpi": PER_RANK["openmpi"]
    | {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_RANK": "1"},
}


@pytest.mark.parametrize("outer", ONE_PER_NODE.values(), ids=ONE_PER_NODE)
@pytest.mark.parametrize("per_node", [1, 4])
def test_a_torchrun_on_each_of_two_nodes_is_refused_if_it_knows_one(outer: dict[str, str], per_node: int) -> None:
    assert num_tasks(outer | torchrun_rank(0, 2 * per_node, per_node), {}) == 2 * per_node
    assert num_tasks(outer | torchrun_rank(0, 1 * per_node, per_node), {}) is None


@pytest.mark.parametrize(("nodes", "ranks"), [(2, 2), (2, 8), (8, 8)])
def test_ranks_are_not_compared_with_nodes(nodes: int, ranks: int) -> None:
    size = str(ranks // nodes)
    rank = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": size}
    rank["OMPI_COMM_WORLD_SIZE"] = str(ranks)
    assert num_tasks(rank | {"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NUM_NODES": str(nodes)}, {}) == ranks


def test_an_uneven_launch_may_be_on_all_nodes_of_its_platform() -> None:
    """Six ranks on three nodes: four, one and one."""
    rank = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "6"}
    rank |= {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
    assert num_tasks(rank | {"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NUM_NODES": "3"}, {}) == 6
    assert num_tasks(rank | {"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NUM_NODES": "4"}, {}) is None


def test_a_torchrun_set_by_hand_without_its_ranks_per_node_may_be_on_all_nodes() -> None:
    by_hand = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "node01", "MASTER_PORT": "29500"}
    assert num_tasks(by_hand | PER_NODE["skypilot"], {}) == 4


def test_a_torchrun_with_more_agents_than_the_step_has_tasks_is_another_jobs() -> None:
    assert num_tasks(captured("per-node/task-0@node01") | torchrun_rank(0, 8, 2), {}) is None


def test_a_torchrun_may_have_an_srun_of_its_own_on_each_node() -> None:
    assert num_tasks(captured("one-task/task-0@node01") | torchrun_rank(0, 8, 2), {}) == 8


def test_a_torchrun_in_an_interactive_shell_of_several_tasks_is_one_world() -> None:
    shell = captured("exclusive/task-0@node01") | {"SLURM_PTY_PORT": "39433"}
    assert num_tasks(shell | torchrun_rank(1, 2, 2), {}) == 2
    assert num_tasks(captured("exclusive/task-0@node01") | torchrun_rank(1, 2, 2), {}) is None


def test_a_platform_whose_nodes_cannot_be_read_stops_only_a_task_alone() -> None:
    assert num_tasks(torchrun_rank(0, 8, 4) | SAGEMAKER_BARE, {}) == 8
    assert num_tasks(torchrun_rank(0, 1, 1) | SAGEMAKER_BARE, {}) is None


@pytest.mark.parametrize(
    ("inner", "outer"), [("skypilot", "dstack"), ("aws-batch", "beaker"), ("sagemaker", "htcondor")]
)
def test_a_second_platform_that_tells_of_more_nodes_is_compared_too(inner: str, outer: str) -> None:
    assert num_tasks(ONE_NODE_TASKS[inner] | ONE_NODE_TASKS[outer], {}) == 1
    assert num_tasks(ONE_NODE_TASKS[inner] | PER_NODE[outer], {}) is None


FLUX_ALONE = {"FLUX_JOB_ID": "f1", "FLUX_JOB_SIZE": "1", "FLUX_JOB_NNODES": "1", "FLUX_TASK_RANK": "0"}
FLUX_ALONE |= {"FLUX_TASK_LOCAL_ID": "0", "PMI_RANK": "0", "PMI_SIZE": "1", "FLUX_URI": "local:///run/flux/local"}


@pytest.mark.parametrize("outer", ["step", "script-pbs", "script-lsf"])
def test_one_task_of_a_flux_inside_a_larger_job_is_a_world_of_its_own(outer: str) -> None:
    environ, files = SOURCES[outer]
    assert num_tasks(environ | FLUX_ALONE, files) == 1


RANK_OF_AN_OUTER_MPIRUN = {name: PER_RANK[name] for name in ("openmpi", "mvapich", "hydra", "pals", "pmi")}


@pytest.mark.parametrize("environ", RANK_OF_AN_OUTER_MPIRUN.values(), ids=RANK_OF_AN_OUTER_MPIRUN)
@pytest.mark.parametrize("task", ["0@node01", "2@node02"])
def test_a_rank_that_sbatch_passed_on_is_refused_with_what_to_unset(environ: dict[str, str], task: str) -> None:
    with pytest.raises(Failure, match="sbatch passed on") as caught:
        detect_allocation(captured(f"per-gpu/task-{task}") | environ, LaunchOptions(), machine())
    assert f"unset {next(iter(environ))}" in caught.value.fix


@pytest.mark.parametrize("version", ["slurm-22.05", "slurm-24.11", "slurm-26.05"])
@pytest.mark.parametrize("task", ["0@node01", "1@node01", "2@node02", "3@node02"])
def test_an_mpirun_inside_a_job_keeps_its_ranks(version: str, task: str) -> None:
    assert num_tasks(captured(f"openmpi-slurm/task-{task}", version), {}) == 4


def test_an_mpirun_in_an_interactive_shell_of_several_tasks_keeps_its_ranks() -> None:
    shell = captured("exclusive/task-0@node01") | {"SLURM_PTY_PORT": "39433"}
    ranks = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
    assert num_tasks(shell | ranks | {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, {}) == 2


def says_more_than_one(environ: dict[str, str], files: dict[str, str]) -> bool:
    """Whether a size or a list of hosts names more than one: written here again, without the tables."""
    sizes = [value for name, value in environ.items() if name.endswith(("SIZE", "NNODES", "NUM_TASKS", "NPROCS"))]
    several = any(value.isdigit() and int(value) > 1 for value in sizes)
    return several or any(len(set(text.split())) > 1 for text in files.values())
