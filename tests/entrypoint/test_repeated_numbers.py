"""RANK, WORLD_SIZE and LOCAL_RANK that repeat the launcher's numbers: the launcher says which ranks share a node."""

from __future__ import annotations

import random

import pytest
from machines import captured, fake_gpus, machine
from synthetic import PER_NODE, PER_RANK

from entrypoint.errors import Failure
from entrypoint.launchers import detect_allocation, slurm
from entrypoint.launchers.allocation import Allocation
from entrypoint.launchers.per_rank import LAUNCHERS
from entrypoint.options import LaunchOptions
from entrypoint.plan import Plan, plan_allocation

MASTER = {"MASTER_ADDR": "node01", "MASTER_PORT": "29500"}


def repeated(environ: dict[str, str], rank: str, size: str, local_rank: str = "", **changes: str) -> dict[str, str]:
    """The environment, and what NVIDIA's enroot hook 50-slurm-pytorch.sh or a script adds to it."""
    local = environ[local_rank] if local_rank else "0"
    return environ | {"RANK": environ[rank], "WORLD_SIZE": environ[size], "LOCAL_RANK": local} | MASTER | changes


def in_step(task: str, version: str = "slurm-26.05", **changes: str) -> dict[str, str]:
    names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
    return repeated(captured(task, version), *names, **changes)


def planned(environ: dict[str, str], gpus: int) -> Plan:
    node = machine(gpus=fake_gpus(gpus))
    return plan_allocation(detect_allocation(environ, LaunchOptions(), node), LaunchOptions(), node, environ)


def layout(plan: Plan) -> tuple[int, int, int, int, int, int]:
    """Rank, local rank, world size, ranks on this node, node, nodes."""
    world = plan.world
    numbers = (world.rank, world.local_rank, world.world_size, world.local_world_size)
    return (*numbers, world.node_rank, world.num_nodes)


@pytest.mark.parametrize("version", ["slurm-22.05", "slurm-24.11", "slurm-26.05"])
def test_one_task_on_each_of_two_nodes_starts_a_rank_on_each_gpu(version: str) -> None:
    plan = planned(in_step("per-node/task-1@node02", version), gpus=8)
    assert (layout(plan), plan.spawn) == ((8, 0, 16, 8, 1, 2), 8)
    assert (plan.world.master_addr, plan.ports) == ("node01", (29500,))


def test_one_task_on_one_node_starts_a_rank_on_each_gpu() -> None:
    assert layout(planned(in_step("one-task/task-0@node01"), gpus=8)) == (0, 0, 8, 8, 0, 1)


@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_a_task_for_each_gpu_of_two_nodes_is_one_of_two_on_its_node(gpus: int) -> None:
    assert layout(planned(in_step("per-gpu/task-3@node02"), gpus)) == (3, 1, 4, 2, 1, 2)


@pytest.mark.parametrize("local_size", [{}, {"LOCAL_WORLD_SIZE": "2"}])
def test_a_task_is_on_its_node_also_if_the_next_one_is_on_another(local_size: dict[str, str]) -> None:
    assert layout(planned(in_step("cyclic/task-1@node02", **local_size), gpus=2)) == (1, 0, 4, 2, 1, 2)


@pytest.mark.parametrize("local_size", [{}, {"LOCAL_WORLD_SIZE": "2"}])
def test_a_task_on_the_second_of_three_uneven_nodes_is_there(local_size: dict[str, str]) -> None:
    assert layout(planned(in_step("uneven/task-5@node02", **local_size), gpus=4)) == (5, 1, 7, 2, 1, 3)


def test_an_address_that_is_not_set_is_the_steps() -> None:
    environ = in_step("per-node/task-1@node02", MASTER_ADDR="", MASTER_PORT="")
    assert planned(environ, gpus=8).world.master_addr == "node01"


def test_a_step_on_fewer_nodes_than_its_job_counts_its_own() -> None:
    assert layout(planned(in_step("sub-step/task-1@node02"), gpus=4))[-2:] == (1, 2)


@pytest.mark.parametrize("name", [name for name in PER_RANK if name != "pmi"])  # which says nothing of nodes
def test_the_ranks_of_an_mpirun_share_nodes_as_it_says(name: str) -> None:
    names, environ = LAUNCHERS[name].variables, PER_RANK[name]
    alone = planned(environ, gpus=8)
    plan = planned(repeated(environ, names["rank"], names["world_size"], names["local_rank"]), gpus=8)
    assert (layout(plan), plan.exchanges_hosts) == (layout(alone), alone.exchanges_hosts) == ((3, 1, 4, 2, 1, 2), True)


@pytest.mark.parametrize("task", ["1@node01", "3@node02"])
def test_the_ranks_of_an_mpirun_in_a_slurm_job_are_not_compared_with_the_step_of_its_daemons(task: str) -> None:
    names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")
    environ = repeated(captured(f"openmpi-slurm/task-{task}"), *names)
    assert (planned(environ, gpus=2).launcher, planned(environ, gpus=2).world.rank) == ("openmpi", int(task[0]))


@pytest.mark.parametrize(
    ("name", "rank", "size"),
    [
        ("skypilot", "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES"),
        ("dstack", "DSTACK_NODE_RANK", "DSTACK_NODES_NUM"),
        ("aws-batch", "AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_NUM_NODES"),
    ],
)
def test_a_platforms_nodes_that_are_called_ranks_start_a_rank_on_each_gpu(name: str, rank: str, size: str) -> None:
    environ = PER_NODE[name]
    assert layout(planned(repeated(environ, rank, size), gpus=8))[2:4] == (8 * int(environ[size]), 8)


def test_ranks_per_node_that_contradict_the_step_are_refused() -> None:
    with pytest.raises(Failure, match="expected: slurm-task: 2 tasks on this node") as caught:
        planned(in_step("per-gpu/task-3@node02", LOCAL_WORLD_SIZE="4"), gpus=4)
    assert caught.value.code == 76


def test_one_rank_per_node_that_was_asked_for_stays_one() -> None:
    assert layout(planned(in_step("per-node/task-1@node02", LOCAL_WORLD_SIZE="1"), gpus=8)) == (1, 0, 2, 1, 1, 2)


BY_HAND = {"RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "16", **MASTER}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (9, 1, 16, 8, 1, 2)),
        ({"NODE_RANK": "1"}, (9, 1, 16, 8, 1, 2)),
        ({"NNODES": "2", "NODE_RANK": "1"}, (9, 1, 16, 8, 1, 2)),
        ({"GROUP_WORLD_SIZE": "4", "RANK": "9", "GROUP_RANK": "2"}, (9, 1, 16, 4, 2, 4)),
    ],
)
def test_by_hand_the_number_of_nodes_counts_or_the_gpus(changes: dict[str, str], expected: tuple[int, ...]) -> None:
    assert layout(planned(BY_HAND | changes, gpus=8)) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"LOCAL_RANK": "0", "RANK": "1", "WORLD_SIZE": "2"},  # one rank on each of two nodes with 8 GPUs
        {"NODE_RANK": "0"},
        {"NNODES": "4", "NODE_RANK": "1"},
        {"LOCAL_RANK": "3"},
    ],
)
def test_numbers_that_do_not_show_who_shares_a_node_are_refused(changes: dict[str, str]) -> None:
    with pytest.raises(Failure, match="LOCAL_WORLD_SIZE is missing or wrong") as caught:
        planned(BY_HAND | changes, gpus=8)
    assert caught.value.code == 76
    assert "set LOCAL_WORLD_SIZE" in caught.value.fix


HOOK = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"]
SITUATIONS = ["per-node/task-1@node02", "per-gpu/task-3@node02", "cyclic/task-1@node02", "uneven/task-5@node02"]
SITUATIONS += ["one-task/task-0@node01", "sub-step/task-1@node02", "gpu-bind-none/task-1@node01"]


@pytest.mark.parametrize("seed", range(30))
def test_a_variable_that_is_missing_in_a_step_that_knows_it_changes_no_world(seed: int) -> None:
    """One of torchrun's set, or one more than NVIDIA's enroot hook leaves out."""
    draw = random.Random(seed)
    step, gpus = captured(draw.choice(SITUATIONS), "slurm-22.05"), draw.choice([1, 2, 4, 8])
    one_rank_per_task = in_torchruns_words(slurm.read_step_allocation(step))
    names = draw.choice([sorted(one_rank_per_task), HOOK])
    missing = draw.choice([*names, "LOCAL_WORLD_SIZE"])
    present = {name: one_rank_per_task[name] for name in names if name != missing}
    # Without LOCAL_WORLD_SIZE nothing says that a task alone on its node is one rank: it starts one for each GPU.
    repeats_step = "LOCAL_WORLD_SIZE" not in present
    expected = layout(planned(step if repeats_step else step | one_rank_per_task, gpus))
    assert layout_or_code(step | present, gpus) in (expected, 76)


def layout_or_code(environ: dict[str, str], gpus: int) -> tuple[int, ...] | int:
    try:
        return layout(planned(environ, gpus))
    except Failure as failure:
        return failure.code


def in_torchruns_words(tasks: Allocation) -> dict[str, str]:
    """The numbers of a step's task as scripts export them: each task is a rank."""
    numbers = {"RANK": tasks.task, "WORLD_SIZE": tasks.num_tasks, "LOCAL_RANK": tasks.local_task}
    numbers |= {"LOCAL_WORLD_SIZE": tasks.tasks_on_node, "GROUP_RANK": tasks.node_rank}
    texts = {name: str(number) for name, number in (numbers | {"GROUP_WORLD_SIZE": tasks.num_nodes}).items()}
    return texts | {"MASTER_ADDR": tasks.master_addr, "MASTER_PORT": "29500"}
