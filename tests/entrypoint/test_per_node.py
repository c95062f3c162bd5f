"""Platforms that start one task on each node."""

from __future__ import annotations

from pathlib import Path

import pytest
from machines import machine
from synthetic import (
    AWS_BATCH,
    AWS_BATCH_MAIN,
    BEAKER,
    HTCONDOR,
    ONE_NODE_TASKS,
    PER_NODE,
    PET,
    RESOURCE_CONFIG,
    SAGEMAKER,
    SAGEMAKER_BARE,
    SKYPILOT,
    VERTEX,
    VOLCANO,
)

from entrypoint.errors import Failure
from entrypoint.launchers import detect_allocation, per_node
from entrypoint.launchers.allocation import THIS_NODE_ONLY_FIX, Allocation
from entrypoint.machine import read_machine
from entrypoint.options import LaunchOptions
from entrypoint.platforms import SAGEMAKER_HOST_FILE


def detected(environ: dict[str, str], options: LaunchOptions | None = None) -> Allocation:
    return detect_allocation(environ, options or LaunchOptions(), machine())


def test_every_platform_of_the_table_has_a_case_here() -> None:
    assert list(per_node.PLATFORMS) == ["pet", *PER_NODE] == ["pet", *ONE_NODE_TASKS]


@pytest.mark.parametrize("name", PER_NODE)
def test_a_task_takes_its_place_among_the_nodes(name: str) -> None:
    allocation = detected(PER_NODE[name])
    assert (allocation.launcher, allocation.node_rank, allocation.num_nodes, allocation.one_task_per_node) == (
        name,
        1,
        2,
        True,
    )


@pytest.mark.parametrize("name", PER_NODE)
def test_rank_0_is_on_the_first_node_or_the_tasks_tell_each_other(name: str) -> None:
    allocation = detected(PER_NODE[name])
    assert (allocation.master_addr, allocation.exchanges_hosts) == (
        ("", True) if name == "htcondor" else ("10.0.0.1", False)
    )


def test_the_platforms_port_is_used() -> None:
    assert detected(VOLCANO).master_port == 23456


@pytest.mark.parametrize("name", [*PER_NODE, "pet"])
def test_all_nodes_have_one_launch_id_also_if_the_master_calls_itself_localhost(name: str) -> None:
    environ = PER_NODE.get(name, PET)
    masters = {each: "localhost" for each in environ if "MASTER" in each and each.endswith("ADDR")}
    assert detected(environ | masters).launch_id == detected(environ).launch_id


def test_an_address_that_the_user_gives_replaces_the_platforms() -> None:
    allocation = detected(SKYPILOT | {"MASTER_ADDR": "10.1.1.1"})
    assert (allocation.master_addr, allocation.sources["master_addr"]) == ("10.1.1.1", "MASTER_ADDR")


def test_sagemakers_file_names_the_hosts_without_its_training_toolkit() -> None:
    allocation = detect_allocation(
        SAGEMAKER_BARE, LaunchOptions(), machine(host_files={SAGEMAKER_HOST_FILE: RESOURCE_CONFIG})
    )
    assert (allocation.launcher, allocation.node_rank, allocation.num_nodes) == ("sagemaker", 1, 2)
    assert (allocation.master_addr, allocation.sources["node_rank"]) == ("10.0.0.1", SAGEMAKER_HOST_FILE)


def test_sagemakers_file_is_read_from_its_place(tmp_path: Path) -> None:
    file = tmp_path / SAGEMAKER_HOST_FILE.lstrip("/")
    file.parent.mkdir(parents=True)
    file.write_text(RESOURCE_CONFIG)
    assert read_machine({}, gpus=False, root=tmp_path).host_files == {SAGEMAKER_HOST_FILE: RESOURCE_CONFIG}


@pytest.mark.parametrize("text", ["", "{}", "not JSON", "[]", '{"hosts": 1, "current_host": 1}'])
def test_a_sagemaker_job_whose_hosts_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(Failure, match="nodes cannot be read from SM_HOSTS or /opt/ml") as caught:
        detect_allocation(SAGEMAKER_BARE, LaunchOptions(), machine(host_files={SAGEMAKER_HOST_FILE: text}))
    assert THIS_NODE_ONLY_FIX in caught.value.fix


@pytest.mark.parametrize(
    "text",
    ['{"cluster": {"workerpool0": 7}}', "workerpool0", '{"cluster": {"workerpool0": []}, "task": {"type": "x"}}'],
)
def test_a_vertex_job_whose_machines_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(Failure, match="nodes cannot be read from CLUSTER_SPEC"):
        detected({"CLUSTER_SPEC": text})


def test_a_vertex_machine_that_is_no_trainer_is_refused() -> None:
    spec = '{"cluster": {"workerpool0": ["a:1"], "workerpool2": ["b:1"]}, "task": {"type": "workerpool2", "index": 0}}'
    with pytest.raises(Failure, match="CLUSTER_SPEC is not in pool 0 or 1"):
        detected({"CLUSTER_SPEC": spec})


def test_vertex_numbers_of_machines_are_read_where_they_are_set() -> None:
    allocation = detected(VERTEX | {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "2222"})
    assert (allocation.launcher, allocation.node_rank, allocation.master_addr, allocation.master_port) == (
        "vertex",
        1,
        "10.0.0.9",
        2222,
    )


def test_another_programs_cluster_spec_means_nothing() -> None:
    assert detected({"CLUSTER_SPEC": "/home/me/cluster.yaml"}).launcher == "local"


def test_the_main_node_of_aws_batch_has_rank_0_and_knows_its_own_address() -> None:
    main, other = detected(AWS_BATCH_MAIN), detected(AWS_BATCH)
    assert (main.node_rank, main.master_addr, main.exchanges_hosts) == (0, "node01", False)
    assert main.launch_id == other.launch_id
    second = {"AWS_BATCH_JOB_MAIN_NODE_INDEX": "1"}
    assert [detected(environ | second).node_rank for environ in (AWS_BATCH | {"AWS_BATCH_JOB_NODE_INDEX": "1"},)] == [0]
    assert detected(AWS_BATCH | second | {"AWS_BATCH_JOB_NODE_INDEX": "0"}).node_rank == 1


def test_another_node_of_aws_batch_without_the_main_nodes_address_is_refused() -> None:
    with pytest.raises(Failure, match="AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS is not set"):
        detected(AWS_BATCH_MAIN | {"AWS_BATCH_JOB_NODE_INDEX": "1"})


def test_beakers_replicas_without_a_leader_tell_each_other_their_hosts() -> None:
    assert detected(BEAKER | {"BEAKER_LEADER_REPLICA_HOSTNAME": ""}).exchanges_hosts


@pytest.mark.parametrize("name", ONE_NODE_TASKS)
def test_a_job_of_one_node_meets_on_loopback(name: str) -> None:
    allocation = detected(ONE_NODE_TASKS[name])
    assert (allocation.launcher, allocation.num_nodes, allocation.master_addr) == (name, 1, "127.0.0.1")
    assert not allocation.exchanges_hosts


@pytest.mark.parametrize("environ", PER_NODE.values(), ids=PER_NODE)
def test_machines_named_by_hand_win(environ: dict[str, str]) -> None:
    allocation = detected(environ, LaunchOptions(nodes=3, node_rank=2, master_addr="a"))
    assert (allocation.launcher, allocation.node_rank, allocation.num_nodes) == ("local", 2, 3)


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


PARTS = [
    {name: environ[name]}
    for platform in per_node.PLATFORMS.values()
    if not platform.rank_counts_nodes
    for environ in [PER_NODE[platform.name]]
    for name in (platform.variables.get("num_nodes"), platform.variables.get("node_rank"), *platform.hosts)
    if name in environ
]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: next(iter(part)))
def test_one_variable_that_tells_of_other_nodes_is_refused_if_the_rest_is_missing(part: dict[str, str]) -> None:
    """A container gets what its command passes on: docker run -e NAME."""
    with pytest.raises(Failure) as caught:
        detected(part)
    assert caught.value.code == 76
    assert "docker run -e" in caught.value.fix


@pytest.mark.parametrize(
    "part", [{"SKYPILOT_NODE_RANK": "0"}, {"BEAKER_REPLICA_COUNT": "1"}, {"DSTACK_NODES_NUM": "x"}]
)
def test_a_variable_that_tells_of_no_other_node_trains(part: dict[str, str]) -> None:
    assert detected(part).launcher == "local"


def test_a_rank_with_a_local_rank_is_a_process_also_in_a_pod() -> None:
    allocation = detected(VOLCANO | {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"})
    assert (allocation.launcher, allocation.task, allocation.num_nodes) == ("torchrun", 1, 1)


INDEXED = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "JOB_COMPLETION_INDEX": "0"}


@pytest.mark.parametrize("changes", [{"JOB_COMPLETION_INDEX": "1"}, {"MASTER_ADDR": "train-0.train"}])
def test_a_pod_of_an_indexed_job_that_has_others_is_refused(changes: dict[str, str]) -> None:
    with pytest.raises(Failure, match="nothing tells how many nodes") as caught:
        detected(INDEXED | changes)
    assert "if its pods do not train together, set PET_NNODES=1" in caught.value.fix
    assert THIS_NODE_ONLY_FIX in caught.value.fix


@pytest.mark.parametrize("changes", [{}, {"MASTER_ADDR": "localhost"}, {"SLURM_JOB_ID": ""}])
def test_the_first_pod_of_an_indexed_job_trains_and_is_told_of_others(changes: dict[str, str]) -> None:
    allocation = detected(INDEXED | changes)
    assert (allocation.launcher, allocation.num_nodes) == ("local", 1)
    assert "PET_NNODES" in allocation.warnings[0]


def test_a_pod_of_an_indexed_job_of_one_pod_trains_as_its_fix_says() -> None:
    assert detected({"JOB_COMPLETION_INDEX": "0", "PET_NNODES": "1"}).num_nodes == 1


@pytest.mark.parametrize("roles", [{"VC_WORKER_NUM": "2"}, {"VC_MASTER_NUM": "1", "VC_WORKER_NUM": "1"}])
def test_a_volcano_pod_that_only_counts_within_its_role_is_refused(roles: dict[str, str]) -> None:
    with pytest.raises(Failure, match="which of the Volcano job's pods") as caught:
        detected(roles | {"VC_TASK_INDEX": "0"})
    assert "PET_NNODES" in caught.value.fix


@pytest.mark.parametrize("environ", [{"VC_TASK_INDEX": "0"}, {"VC_TASK_INDEX": "0", "VC_WORKER_NUM": "1"}])
def test_a_volcano_job_of_one_pod_trains(environ: dict[str, str]) -> None:
    assert detected(environ).num_nodes == 1


def test_a_pet_set_is_one_task_on_each_node() -> None:
    allocation = per_node.pet_allocation(PET, machine())
    assert (allocation.node_rank, allocation.num_nodes, allocation.procs_per_node) == (1, 2, 4)
    assert (allocation.master_addr, allocation.master_port) == ("job-master-0", 23456)


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
