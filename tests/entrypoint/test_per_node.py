"""Platforms that start one task on each node."""

from __future__ import annotations

import pytest
from machines import machine
from synthetic import HTCONDOR, ONE_NODE_TASKS, PER_NODE, PET, SAGEMAKER, SKYPILOT, VOLCANO

from entrypoint.errors import Failure
from entrypoint.launchers import detect_allocation, per_node
from entrypoint.launchers.allocation import THIS_NODE_ONLY_FIX, Allocation
from entrypoint.options import LaunchOptions


def detected(environ: dict[str, str], options: LaunchOptions | None = None) -> Allocation:
    return detect_allocation(environ, options or LaunchOptions(), machine())


def test_every_platform_of_the_table_has_a_case_here() -> None:
    assert [launcher.name for launcher in per_node.NODE_LAUNCHERS] == list(PER_NODE) == list(ONE_NODE_TASKS)


@pytest.mark.parametrize("name", PER_NODE)
def test_a_task_takes_its_place_among_the_nodes(name: str) -> None:
    found = detected(PER_NODE[name])
    assert (found.launcher, found.node_rank, found.num_nodes, found.one_task_per_node) == (name, 1, 2, True)


@pytest.mark.parametrize("name", PER_NODE)
def test_rank_0_is_on_the_first_node_or_the_tasks_tell_each_other(name: str) -> None:
    found = detected(PER_NODE[name])
    assert (found.master_addr, found.exchanges_hosts) == (("", True) if name == "htcondor" else ("10.0.0.1", False))


@pytest.mark.parametrize("name", ["kubernetes", "vertex"])
def test_the_platforms_port_is_used(name: str) -> None:
    assert detected(PER_NODE[name]).master_port == int(PER_NODE[name]["MASTER_PORT"])


@pytest.mark.parametrize("name", ONE_NODE_TASKS)
def test_a_job_of_one_node_meets_on_loopback(name: str) -> None:
    found = detected(ONE_NODE_TASKS[name])
    assert (found.launcher, found.num_nodes, found.master_addr) == (name, 1, "127.0.0.1")
    assert not found.exchanges_hosts


@pytest.mark.parametrize("environ", PER_NODE.values(), ids=PER_NODE)
def test_machines_named_by_hand_win(environ: dict[str, str]) -> None:
    found = detected(environ, LaunchOptions(nodes=3, node_rank=2, master_addr="a"))
    assert (found.launcher, found.node_rank, found.num_nodes) == ("local", 2, 3)


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        (SKYPILOT | {"SKYPILOT_NUM_NODES": "3"}, "SKYPILOT_NUM_NODES is not the number of nodes"),
        (SKYPILOT | {"SKYPILOT_NODE_RANK": "2"}, "SKYPILOT_NODE_RANK must be below 2"),
        (SAGEMAKER | {"SM_CURRENT_HOST": "algo-3"}, "SM_CURRENT_HOST is not in SM_HOSTS"),
        (HTCONDOR | {"_CONDOR_PROCNO": ""}, "_CONDOR_PROCNO is not set"),
        (HTCONDOR | {"_CONDOR_NPROCS": "two"}, "_CONDOR_NPROCS is not a whole number"),
    ],
)
def test_numbers_that_contradict_each_other_are_refused_with_the_way_out(environ: dict[str, str], named: str) -> None:
    with pytest.raises(Failure, match=named) as caught:
        detected(environ)
    assert caught.value.code == 76


def test_a_rank_with_a_local_rank_is_a_process_also_in_a_pod() -> None:
    found = detected(VOLCANO | {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"})
    assert (found.launcher, found.task, found.num_nodes) == ("torchrun", 1, 1)


@pytest.mark.parametrize("index", ["0", "1"])
def test_a_pod_of_an_indexed_job_is_refused_since_nothing_tells_how_many_there_are(index: str) -> None:
    with pytest.raises(Failure, match="nothing tells how many nodes") as caught:
        detected({"JOB_COMPLETION_INDEX": index, "KUBERNETES_SERVICE_HOST": "10.96.0.1"})
    assert "for a Job of one pod PET_NNODES=1 is enough" in caught.value.fix
    assert THIS_NODE_ONLY_FIX in caught.value.fix


def test_a_pod_of_an_indexed_job_with_one_completion_trains_alone_once_it_is_told_so() -> None:
    environ = {"JOB_COMPLETION_INDEX": "0", "KUBERNETES_SERVICE_HOST": "10.96.0.1", "PET_NNODES": "1"}
    assert detected(environ).num_nodes == 1


def test_a_pet_set_is_one_task_on_each_node() -> None:
    found = per_node.pet_allocation(PET, machine())
    assert (found.node_rank, found.num_nodes, found.procs_per_node) == (1, 2, 4)
    assert (found.master_addr, found.master_port) == ("job-master-0", 23456)


def test_a_pet_set_for_one_node_needs_no_address() -> None:
    environ = {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "gpu"}
    assert per_node.pet_allocation(environ, machine()).procs_per_node is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"PET_NNODES": "1:4"}, "PET_NNODES=1:4"),
        ({"PET_NNODES": "two"}, "PET_NNODES"),
        ({"PET_NNODES": "0"}, "PET_NNODES=0"),
        ({"PET_NPROC_PER_NODE": "0"}, "PET_NPROC_PER_NODE=0"),
        ({"PET_MASTER_PORT": "70000"}, "PET_MASTER_PORT is not a port"),
        ({"PET_NODE_RANK": ""}, "PET_NODE_RANK"),
        ({"PET_NODE_RANK": "2"}, "PET_NODE_RANK=2"),
        ({"PET_MASTER_ADDR": ""}, "PET_MASTER_ADDR"),
        ({"PET_MASTER_PORT": "x"}, "PET_MASTER_PORT"),
        ({"PET_NPROC_PER_NODE": "many"}, "PET_NPROC_PER_NODE"),
    ],
)
def test_a_pet_set_that_cannot_be_is_refused_by_name(change: dict[str, str], named: str) -> None:
    with pytest.raises(Failure, match=named) as caught:
        per_node.pet_allocation(PET | change, machine())
    assert caught.value.code == 76


def test_the_interface_of_a_link_local_address_is_no_part_of_a_pet_sets_key() -> None:
    pets = [PET | {"PET_MASTER_ADDR": f"fe80::1%{name}"} for name in ("eth0", "ib0")]
    assert len({per_node.pet_allocation(pet, machine()).launch_id for pet in pets}) == 1
