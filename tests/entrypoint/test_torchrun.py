"""torchrun's set: whole, or refused."""

from __future__ import annotations

import pytest
from machines import captured, fake_gpus, machine

from entrypoint.errors import Failure
from entrypoint.launchers import torchrun

WHOLE = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node01",
    "MASTER_PORT": "29500",
}


def test_a_whole_set_is_read_and_its_nodes_derived() -> None:
    allocation = torchrun.read_allocation(WHOLE, machine())
    assert (allocation.task, allocation.num_tasks, allocation.local_task, allocation.tasks_on_node) == (3, 4, 1, 2)
    assert (allocation.node_rank, allocation.num_nodes, allocation.master_addr, allocation.master_port) == (
        1,
        2,
        "node01",
        29500,
    )


def test_torchruns_own_store_is_recognised() -> None:
    assert torchrun.read_allocation(captured("torchrun-srun/task-2@node02"), machine()).agent_store


def test_one_rank_needs_no_address() -> None:
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    allocation = torchrun.read_allocation(alone, machine())
    assert (allocation.master_addr, allocation.master_port, allocation.warnings) == ("127.0.0.1", None, ())


def test_without_a_local_size_the_visible_gpus_count_and_it_is_said() -> None:
    environ = {name: value for name, value in WHOLE.items() if name != "LOCAL_WORLD_SIZE"}
    allocation = torchrun.read_allocation(environ, machine(gpus=fake_gpus(2)))
    assert allocation.tasks_on_node == 2
    assert "LOCAL_WORLD_SIZE" in allocation.warnings[0]


def test_no_set_at_all_is_no_torchrun() -> None:
    assert not torchrun.has_rank_variables({"MASTER_ADDR": "node01", "MASTER_PORT": "29500"})


# Two pods, as Kubeflow's training operator sets them.
POD = {"RANK": "1", "PET_NODE_RANK": "1", "PET_NNODES": "2", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}


@pytest.mark.parametrize(("procs", "size"), [("4", "8"), ("1", "2"), ("auto", "2"), ("", "2"), ("4", "2")])
def test_node_numbers_beside_a_pet_set_are_no_torchrun_set(procs: str, size: str) -> None:
    assert not torchrun.has_rank_variables(POD | {"PET_NPROC_PER_NODE": procs, "WORLD_SIZE": size})


@pytest.mark.parametrize(
    "change",
    [{"RANK": "0"}, {"WORLD_SIZE": "7"}, {"PET_NPROC_PER_NODE": "auto"}, {"PET_NNODES": ""}, {"PET_NNODES": "1:2"}],
)
def test_node_numbers_that_contradict_the_pet_set_are_half_a_torchrun_set(change: dict[str, str]) -> None:
    with pytest.raises(Failure, match="incomplete torchrun variables"):
        torchrun.has_rank_variables(POD | {"PET_NPROC_PER_NODE": "4", "WORLD_SIZE": "8"} | change)


@pytest.mark.parametrize(
    ("environ", "missing"),
    [
        ({"RANK": "0"}, "LOCAL_RANK, WORLD_SIZE"),
        ({"WORLD_SIZE": "2"}, "RANK, LOCAL_RANK"),
        ({"LOCAL_RANK": "0"}, "RANK, WORLD_SIZE"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "LOCAL_RANK"),
        ({"RANK": "0", "LOCAL_RANK": "0"}, "WORLD_SIZE"),
        ({"LOCAL_RANK": "0", "WORLD_SIZE": "2"}, "RANK"),
    ],
)
def test_half_a_set_is_refused_by_its_missing_half(environ: dict[str, str], missing: str) -> None:
    with pytest.raises(Failure, match=rf"without {missing}\n") as caught:
        torchrun.has_rank_variables(environ)
    assert caught.value.code == 76


@pytest.mark.parametrize("name", ["SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID"])
def test_the_next_start_of_the_same_launch_has_another_key(name: str) -> None:
    assert (
        torchrun.read_allocation(WHOLE, machine()).launch_id
        != torchrun.read_allocation({**WHOLE, name: "1"}, machine()).launch_id
    )
