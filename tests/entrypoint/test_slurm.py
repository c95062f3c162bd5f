"""Slurm: every captured situation has its answer here, and what contradicts itself is refused."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

import pytest
from captures import ENVIRONS, read_captures, read_situations, write_situations
from machines import captured, machine

from entrypoint.errors import Failure
from entrypoint.launchers import detect_allocation, slurm
from entrypoint.options import LaunchOptions
from entrypoint.plan import Plan, plan_allocation

CPU = LaunchOptions(device="cpu")
TWO_BY_TWO = "node01:0 node01:1 node02:0 node02:1"
ONE_EACH = "node01:0 node02:0"

# Situation -> launcher, then where each rank sits as host:local_rank. Written from the situations' commands.
TASKS = {
    "array": ("slurm-node", ONE_EACH),
    "cpus-inherited": ("slurm-node", "node01:0"),
    "cpus-passed-on": ("slurm-node", "node01:0"),
    "cyclic": ("slurm-task", "node01:0 node02:0 node01:1 node02:1"),
    "exclusive": ("slurm-task", "node01:0 node01:1"),
    "gpu-bind-none": ("slurm-task", TWO_BY_TWO),
    "gpus-per-task": ("slurm-task", TWO_BY_TWO),
    "het": ("slurm-task", "node01:0 node02:0 node02:1 node03:0 node03:1"),
    "node-order": ("slurm-task", "node01:0 node01:1 node03:0 node03:1"),
    "one-task": ("slurm-node", "node01:0"),
    "openmpi-slurm": ("openmpi", TWO_BY_TWO),
    "overlap": ("slurm-task", "node01:0 node01:1"),
    "per-gpu": ("slurm-task", TWO_BY_TWO),
    "per-node": ("slurm-node", ONE_EACH),
    "pmi2": ("slurm-task", TWO_BY_TWO),
    "requeued": ("slurm-node", ONE_EACH),
    "salloc": ("slurm-task", TWO_BY_TWO),
    "salloc-interactive": ("slurm-task", "node01:0 node01:1 node01:2 node02:0"),
    "srun-direct": ("slurm-task", "node01:0 node01:1 node01:2 node02:0"),
    "srun-pty": ("slurm-node", "node01:0"),
    "sub-step": ("slurm-node", ONE_EACH),
    "sub-step-inherited": ("slurm-node", ONE_EACH),
    "tasks-only": ("slurm-task", "node01:0 node01:1 node01:2 node02:0 node02:1 node02:2"),
    "torchrun-srun": ("torchrun", TWO_BY_TWO),
    "uneven": ("slurm-task", "node01:0 node01:1 node01:2 node01:3 node02:0 node02:1 node03:0"),
}
# Shells (batch script, salloc) of jobs with one node and one task: this node is the world. All others are refused.
ALONE = {"batch-one-node", "cpus-inherited", "cpus-passed-on", "one-task"}
PROCESS = re.compile(r"(?P<version>[^/]+)/(?P<situation>[^/]+)/(?P<program>[a-z]+)\d*-(?P<rank>\d+|x)@(?P<node>.+)")
CAPTURES = {name: PROCESS.fullmatch(name) for name in read_captures()}


def plan_captured(name: str) -> Plan:
    environ, node = read_captures()[name], machine(hostname=name.partition("@")[2])
    return plan_allocation(detect_allocation(environ, CPU, node), CPU, node, environ)


@pytest.mark.parametrize("name", [name for name, process in CAPTURES.items() if process["program"] == "task"])
def test_a_captured_task_gets_its_place(name: str) -> None:
    launcher, tasks = TASKS[CAPTURES[name]["situation"]]
    ranks = [task.split(":") for task in tasks.split()]
    hosts = sorted({host for host, _ in ranks})
    rank = int(CAPTURES[name]["rank"])
    host, local_rank = ranks[rank]
    plan = plan_captured(name)
    assert (plan.launcher, plan.spawn) == (launcher, 1)
    assert asdict(plan.world) | {"master_port": 0} == {
        "rank": rank,
        "local_rank": int(local_rank),
        "world_size": len(ranks),
        "local_world_size": sum(other == host for other, _ in ranks),
        "node_rank": hosts.index(host),
        "num_nodes": len(hosts),
        "master_addr": "" if launcher == "openmpi" else "node01",  # its tasks will tell each other
        "master_port": 0,
    }


@pytest.mark.parametrize("name", [name for name, process in CAPTURES.items() if process["program"] != "task"])
def test_a_captured_shell_is_alone_or_refused(name: str) -> None:
    if CAPTURES[name]["situation"] in ALONE:
        assert (plan_captured(name).launcher, plan_captured(name).world.world_size) == ("local", 1)
        return
    with pytest.raises(Failure, match="not started by srun") as caught:
        plan_captured(name)
    assert caught.value.code == 76
    assert "srun" in caught.value.fix


@pytest.mark.parametrize("path", sorted(ENVIRONS.glob("*.txt")), ids=lambda path: path.stem)
def test_a_file_of_captures_is_as_its_writer_leaves_it(path: Path, tmp_path: Path) -> None:
    write_situations(tmp_path / path.name, read_situations(path))
    assert (tmp_path / path.name).read_text() == path.read_text()


def test_all_tasks_of_a_step_derive_the_same_port_and_launch_id() -> None:
    plans = [plan_captured(name) for name in CAPTURES if name.startswith("slurm-26.05/uneven/task-")]
    assert len(plans) == 7
    assert len({(plan.launch_id, plan.ports) for plan in plans}) == 1


def test_a_requeued_start_has_another_launch_id() -> None:
    environ = captured("requeued/task-0@node01")
    assert environ["SLURM_RESTART_COUNT"] == "1"
    assert slurm.job_key(environ) != slurm.job_key(environ | {"SLURM_RESTART_COUNT": "2"})


@pytest.mark.parametrize("step", ["4294967291", "4294967290", "-5", "-6", "", "\u00b2"])
def test_slurms_own_steps_are_not_taken_for_a_job_step(step: str) -> None:
    assert not slurm.in_step(captured("per-gpu/task-0@node01") | {"SLURM_STEP_ID": step, "SLURM_STEPID": step})


@pytest.mark.parametrize("variable", ["SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS"])
def test_a_task_without_one_of_sruns_variables_is_told_which(variable: str) -> None:
    environ = captured("per-gpu/task-0@node01")
    del environ[variable]
    with pytest.raises(Failure) as caught:
        slurm.check_job_shell(environ, machine(hostname="node01"))
    assert (caught.value.code, caught.value.expected) == (76, f"a task that srun started, with {variable}")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"SLURM_PROCID": "4"}, "SLURM_PROCID and SLURM_STEP_NUM_TASKS"),
        ({"SLURM_NODEID": "2"}, "SLURM_NODEID and SLURM_STEP_NUM_NODES"),
        ({"SLURM_LOCALID": "2"}, "SLURM_LOCALID and SLURM_STEP_TASKS_PER_NODE"),
        ({"SLURM_STEP_NODELIST": "node01"}, "SLURM_STEP_NODELIST and SLURM_STEP_NUM_NODES"),
        ({"SLURM_STEP_TASKS_PER_NODE": "3,2"}, "SLURM_STEP_TASKS_PER_NODE and SLURM_STEP_NUM_TASKS"),
        ({"SLURM_STEP_TASKS_PER_NODE": "4"}, "SLURM_STEP_TASKS_PER_NODE and SLURM_STEP_NUM_NODES"),
        ({"SLURM_STEP_NODELIST": "n[1,1]"}, "SLURM_STEP_NODELIST and SLURM_STEP_NUM_NODES"),
        ({"SLURM_STEP_TASKS_PER_NODE": "4,0"}, "SLURM_STEP_TASKS_PER_NODE and SLURM_STEP_NUM_TASKS"),
        ({"SLURM_PROCID": "x"}, "SLURM_PROCID is not a whole number"),
        ({"SLURM_STEP_NODELIST": "node[01"}, "SLURM_STEP_NODELIST cannot be read"),
    ],
)
def test_numbers_that_contradict_each_other_are_refused_by_name(change: dict[str, str], named: str) -> None:
    with pytest.raises(Failure, match=named) as caught:
        slurm.read_step_allocation(captured("per-gpu/task-0@node01") | change)
    assert caught.value.code == 76
    assert caught.value.fix


def test_a_login_nodes_shell_with_a_one_node_job_is_refused_by_its_host() -> None:
    environ = {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "node01"}
    with pytest.raises(Failure, match="not one of the job's"):
        slurm.check_job_shell(environ, machine(hostname="login1"))


def test_a_shell_on_the_jobs_only_node_is_accepted() -> None:
    environ = {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "node01"}
    slurm.check_job_shell(environ, machine(hostname="node01"))


@pytest.mark.parametrize("version", ["slurm-22.05", "slurm-24.11"])
def test_a_batch_script_that_inherited_a_step_from_its_shell_is_no_task(version: str) -> None:
    shell = captured("srun-pty/task-0@node01", version)
    environ = shell | captured("no-srun-two-nodes/batch-0@node01", version)
    assert environ["SLURM_STEP_ID"] == "0"
    with pytest.raises(Failure, match="not started by srun, and the job has several nodes or tasks") as caught:
        detect_allocation(environ, CPU, machine())
    assert caught.value.code == 76
    without_tasks = {name: value for name, value in environ.items() if name not in ("SLURM_NTASKS", "SLURM_NPROCS")}
    assert not slurm.in_step(without_tasks)
