"""Jobs of several nodes under schedulers that start no ranks known here: refused, never a world of one."""

from __future__ import annotations

from pathlib import Path

import pytest
from machines import machine

from entrypoint.errors import Failure
from entrypoint.launchers import detect_allocation
from entrypoint.launchers.allocation import Allocation
from entrypoint.launchers.unsupported import THIS_NODE_ONLY_FIX, UNSUPPORTED_SCHEDULERS
from entrypoint.machine import read_machine
from entrypoint.options import LaunchOptions

# The second node of two where the command runs on each, else the first: what each sets there.
SKYPILOT = {
    "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NUM_GPUS_PER_NODE": "8",
}
DSTACK = {
    "DSTACK_NODES_NUM": "2",
    "DSTACK_NODE_RANK": "1",
    "DSTACK_NODES_IPS": "10.0.0.1\n10.0.0.2",
    "DSTACK_MASTER_NODE_IP": "10.0.0.1",
    "DSTACK_GPUS_PER_NODE": "8",
    "DSTACK_GPUS_NUM": "16",
}
SAGEMAKER = {
    "SM_HOSTS": '["algo-1","algo-2"]',
    "SM_CURRENT_HOST": "algo-2",
    "SM_NUM_GPUS": "8",
    "SM_NETWORK_INTERFACE_NAME": "eth0",
}
HTCONDOR = {"_CONDOR_PROCNO": "1", "_CONDOR_NPROCS": "2", "_CONDOR_SLOT": "slot1"}
KUBERNETES = {"JOB_COMPLETION_INDEX": "1", "KUBERNETES_SERVICE_HOST": "10.96.0.1", "HOSTNAME": "training-1"}
# The names of all but the first are a manifest's own choice; the controller sets labels.
JOBSET = KUBERNETES | {"JOBSET_NAME": "training", "REPLICATED_JOB_NAME": "workers", "REPLICATED_JOB_REPLICAS": "1"}
PBS = {"PBS_JOBID": "7.pbs", "PBS_ENVIRONMENT": "PBS_BATCH", "PBS_NODEFILE": "/var/spool/pbs/aux/7.pbs"}
TORQUE = {"PBS_JOBID": "7.pbs", "PBS_NUM_NODES": "2", "PBS_NUM_PPN": "8", "PBS_NODENUM": "0"}
GRID_ENGINE = {"JOB_ID": "7", "NHOSTS": "2", "NSLOTS": "16", "PE_HOSTFILE": "/opt/sge/spool/node01/7.1/pe_hostfile"}
LSF = {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "node01 8 node02 8", "LSB_HOSTS": "node01 " * 8 + "node02 " * 8}
LSF_FILE = {"LSB_JOBID": "7", "LSB_DJOB_HOSTFILE": "/home/me/.lsbatch/7.hostfile"}

NODEFILE = "node01\nnode01\nnode02\nnode02\n"
PE_LINES = "node01 8 all.q@node01 UNDEFINED\nnode02 8 all.q@node02 UNDEFINED\n"
ONE = "--nodes 2 --node-rank 1 --master-addr 10.0.0.1"
BATCH = "mpirun -x MASTER_ADDR=node01"

# environment, host files, words of the fix
SEVERAL = {
    "skypilot": (SKYPILOT, {}, ONE),
    "dstack": (DSTACK, {}, ONE),
    "sagemaker": (SAGEMAKER, {}, "--nodes 2 --node-rank 1 --master-addr algo-1"),
    "htcondor": (HTCONDOR, {}, "--nodes 2 --node-rank 1 --master-addr HOST"),
    "kubernetes": (KUBERNETES, {}, "--nodes N --node-rank 1 --master-addr HOST"),
    "jobset": (JOBSET, {}, "--nodes N --node-rank 1 --master-addr HOST"),
    "pbs": (PBS, {"PBS_NODEFILE": NODEFILE}, BATCH),
    "torque": (TORQUE, {}, "(pbsdsh) with --nodes 2 --node-rank K --master-addr HOST"),
    "pbs-of-a-site": ({"PBS_JOBID": "7", "PBS_NNODES": "2"}, {}, "(pbsdsh) with --nodes 2"),
    "grid-engine": (GRID_ENGINE, {"PE_HOSTFILE": PE_LINES}, BATCH),
    "grid-engine-in-a-container": (GRID_ENGINE, {}, "(qrsh -inherit HOST) with --nodes 2"),
    "lsf": (LSF, {}, BATCH),
    "lsf-file": (LSF_FILE, {"LSB_DJOB_HOSTFILE": NODEFILE}, "(blaunch) with --nodes 2 --node-rank K"),
}
SINGLE = {
    "skypilot": (SKYPILOT | {"SKYPILOT_NODE_IPS": "10.0.0.1", "SKYPILOT_NUM_NODES": "1"}, {}),
    "dstack": (DSTACK | {"DSTACK_NODES_NUM": "1", "DSTACK_NODE_RANK": "0", "DSTACK_NODES_IPS": "10.0.0.1"}, {}),
    "sagemaker": (SAGEMAKER | {"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"}, {}),
    "htcondor": (HTCONDOR | {"_CONDOR_PROCNO": "0", "_CONDOR_NPROCS": "1"}, {}),
    "pbs": (PBS, {"PBS_NODEFILE": "node01\nnode01\n"}),
    "torque": (TORQUE | {"PBS_NUM_NODES": "1"}, {}),
    "grid-engine": (GRID_ENGINE | {"NHOSTS": "1"}, {"PE_HOSTFILE": "node01 8 all.q@node01 UNDEFINED\n"}),
    "lsf": (LSF | {"LSB_MCPU_HOSTS": "node01 8", "LSB_HOSTS": "node01 " * 8}, {}),
    "nothing": ({}, {}),
}
RANKS = {
    "torchrun": {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"},
    "openmpi": {
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_COMM_WORLD_SIZE": "1",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    },
    "pet": {"PET_NNODES": "1"},
}


def detected(environ: dict[str, str], files: dict[str, str], options: LaunchOptions | None = None) -> Allocation:
    return detect_allocation(environ, options or LaunchOptions(), machine(host_files=files))


@pytest.mark.parametrize(("environ", "files", "way_out"), SEVERAL.values(), ids=SEVERAL)
def test_a_job_of_several_nodes_is_refused_with_the_way_out(
    environ: dict[str, str], files: dict[str, str], way_out: str
) -> None:
    with pytest.raises(Failure, match="this node would train alone") as caught:
        detected(environ, files)
    assert caught.value.code == 76
    assert way_out in caught.value.fix


@pytest.mark.parametrize(("environ", "files"), SINGLE.values(), ids=SINGLE)
def test_a_job_of_one_node_is_a_world_of_its_own(environ: dict[str, str], files: dict[str, str]) -> None:
    found = detected(environ, files)
    assert (found.launcher, found.num_nodes, found.warnings) == ("local", 1, ())


@pytest.mark.parametrize(("environ", "files", "_"), SEVERAL.values(), ids=SEVERAL)
def test_machines_named_by_hand_win(environ: dict[str, str], files: dict[str, str], _: str) -> None:
    found = detected(environ, files, LaunchOptions(nodes=2, node_rank=1, master_addr="a"))
    assert (found.node_rank, found.num_nodes) == (1, 2)


@pytest.mark.parametrize(("environ", "files", "_"), SEVERAL.values(), ids=SEVERAL)
@pytest.mark.parametrize("launcher", RANKS)
def test_a_launcher_inside_the_job_wins(environ: dict[str, str], files: dict[str, str], _: str, launcher: str) -> None:
    assert detected(environ | RANKS[launcher], files).launcher == launcher


def test_the_first_pod_of_an_indexed_job_is_refused_like_the_others_since_none_knows_how_many_there_are() -> None:
    with pytest.raises(Failure, match="nothing tells how many nodes") as caught:
        detected(KUBERNETES | {"JOB_COMPLETION_INDEX": "0"}, {})
    assert THIS_NODE_ONLY_FIX in caught.value.fix


def test_a_job_script_that_cannot_read_its_list_of_hosts_runs_and_is_warned() -> None:
    found = detected(PBS, {})
    assert found.num_nodes == 1
    assert "PBS_NODEFILE=/var/spool/pbs/aux/7.pbs cannot be read here" in found.warnings[0]
    assert "--bind /var/spool/pbs/aux" in found.warnings[0]


def test_the_hosts_are_read_from_the_file_that_the_variable_names(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text(NODEFILE)
    found = read_machine(PBS | {"PBS_NODEFILE": str(file), "PE_HOSTFILE": str(tmp_path)}, gpus=False)
    assert found.host_files == {"PBS_NODEFILE": NODEFILE}


def test_a_number_of_nodes_that_is_none_is_refused_by_its_variable() -> None:
    with pytest.raises(Failure, match="NHOSTS is not a whole number"):
        detected({"NHOSTS": "two"}, {})


def test_every_variable_that_tells_of_a_family_has_a_case_here() -> None:
    told = {name for environ, _, _ in SEVERAL.values() for name in environ}
    assert {name for family in UNSUPPORTED_SCHEDULERS for name in family.detection_variables} <= told
