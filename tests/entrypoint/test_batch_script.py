"""Job scripts that run on the first node only: refused for several nodes, never a world of one."""

from __future__ import annotations

from pathlib import Path

import pytest
from machines import machine
from synthetic import FLUX_SCRIPT, NODEFILE, ONE_NODE_SCRIPTS, PBS, SCRIPTS

from entrypoint.errors import Failure
from entrypoint.launchers import batch_script, detect_allocation
from entrypoint.launchers.allocation import THIS_NODE_ONLY_FIX, Allocation
from entrypoint.machine import read_machine
from entrypoint.options import LaunchOptions


def detected(environ: dict[str, str], files: dict[str, str], options: LaunchOptions | None = None) -> Allocation:
    return detect_allocation(environ, options or LaunchOptions(), machine(host_files=files))


@pytest.mark.parametrize(("environ", "files", "command"), SCRIPTS.values(), ids=SCRIPTS)
def test_the_script_of_a_job_of_several_nodes_is_refused_with_the_command(
    environ: dict[str, str], files: dict[str, str], command: str
) -> None:
    with pytest.raises(Failure, match="this node would train alone") as caught:
        detected(environ, files)
    assert caught.value.code == 76
    assert command in caught.value.fix
    assert THIS_NODE_ONLY_FIX in caught.value.fix


@pytest.mark.parametrize(("environ", "files"), ONE_NODE_SCRIPTS.values(), ids=ONE_NODE_SCRIPTS)
def test_a_job_of_one_node_is_a_world_of_its_own(environ: dict[str, str], files: dict[str, str]) -> None:
    allocation = detected(environ, files)
    assert (allocation.launcher, allocation.num_nodes, allocation.warnings) == ("local", 1, ())


@pytest.mark.parametrize(("environ", "files", "_"), SCRIPTS.values(), ids=SCRIPTS)
def test_machines_named_by_hand_win(environ: dict[str, str], files: dict[str, str], _: str) -> None:
    allocation = detected(environ, files, LaunchOptions(nodes=2, node_rank=1, master_addr="a"))
    assert (allocation.node_rank, allocation.num_nodes) == (1, 2)


@pytest.mark.parametrize("number", [{"PBS_NODENUM": "1"}, {"PBS_TASKNUM": "3"}])
def test_a_task_of_pbsdsh_is_refused_also_without_the_list_of_hosts(number: dict[str, str]) -> None:
    with pytest.raises(Failure, match="has other tasks, and no launcher connects them") as caught:
        detected({"PBS_JOBID": "7.pbs"} | number, {})
    assert "mpiexec -n RANKS" in caught.value.fix


def test_the_script_of_a_pbs_job_of_one_node_trains() -> None:
    environ = {"PBS_JOBID": "7.pbs", "PBS_NODENUM": "0", "PBS_TASKNUM": "1", "PBS_NODEFILE": "/7"}
    assert detected(environ, {"PBS_NODEFILE": "node01\n"}).launcher == "local"


def test_a_job_script_that_cannot_read_its_list_of_hosts_runs_and_is_warned() -> None:
    allocation = detected(PBS, {})
    assert allocation.num_nodes == 1
    assert "PBS_NODEFILE=/var/spool/pbs/aux/7.pbs cannot be read" in allocation.warnings[0]
    assert "APPTAINER_BIND=/var/spool/pbs/aux" in allocation.warnings[0]


def test_a_script_in_a_flux_instance_runs_and_is_told_of_flux_run() -> None:
    allocation = detected(FLUX_SCRIPT, {})
    assert allocation.num_nodes == 1
    assert "flux run -N NODES" in allocation.warnings[0]


def test_the_hosts_are_read_from_the_file_that_the_variable_names(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text(NODEFILE)
    node = read_machine(PBS | {"PBS_NODEFILE": str(file), "PE_HOSTFILE": str(tmp_path)}, gpus=False)
    assert node.host_files == {"PBS_NODEFILE": NODEFILE}


def test_a_number_of_nodes_that_is_none_is_refused_by_its_variable() -> None:
    with pytest.raises(Failure, match="NHOSTS is not a whole number"):
        detected({"NHOSTS": "two"}, {})


def test_every_variable_that_tells_of_a_scheduler_has_a_case_here() -> None:
    names = {name for environ, _, _ in SCRIPTS.values() for name in environ} | set(FLUX_SCRIPT)
    schedulers = batch_script.SCHEDULERS.values()
    assert {name for each in schedulers for name in batch_script.detection_variables(each)} <= names
