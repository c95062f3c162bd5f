"""A plan says which ranks a task starts, and on which ports. GPUs are names here: this machine has none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import captured, fake_gpus, machine

from entrypoint import make_plan, plan
from entrypoint.accelerators import nvidia
from entrypoint.errors import Failure
from entrypoint.launchers import detect_allocation
from entrypoint.machine import Machine
from entrypoint.options import LaunchOptions
from entrypoint.plan import Plan, plan_allocation


def planned(environ: dict[str, str], here: Machine | None = None, **options: object) -> Plan:
    here, launch_options = here or machine(), LaunchOptions(**options)  # type: ignore[arg-type]
    return plan_allocation(detect_allocation(environ, launch_options, here), launch_options, here, environ)


def test_a_bare_machine_starts_one_rank_per_gpu() -> None:
    plan = planned({}, machine(gpus=fake_gpus(4)))
    assert (plan.device, plan.spawn, plan.world.world_size) == ("cuda", 4, 4)


def test_a_machine_without_gpus_starts_one_rank_on_the_cpu() -> None:
    assert (planned({}).device, planned({}).spawn) == ("cpu", 1)


def test_the_number_of_ranks_on_the_cpu_is_the_users() -> None:
    assert planned({}, procs_per_node=3).world.world_size == 3


def test_one_task_per_node_starts_one_rank_per_gpu_and_counts_over_nodes() -> None:
    plan = planned(captured("per-node/task-1@node02"), machine(hostname="node02", gpus=fake_gpus(2)))
    ranks = [(world.rank, world.local_rank, world.world_size) for world in plan.worlds()]
    assert ranks == [(2, 0, 4), (3, 1, 4)]


def test_one_task_per_gpu_starts_one_rank_and_keeps_its_local_rank() -> None:
    plan = planned(captured("per-gpu/task-3@node02"), machine(hostname="node02", gpus=fake_gpus(2)))
    assert (plan.spawn, plan.world.local_rank, plan.warnings) == (1, 1, ())


def test_a_gpu_bound_to_each_task_is_accepted_with_the_better_flag_named() -> None:
    plan = planned(captured("gpus-per-task/task-1@node01"), machine(gpus=fake_gpus(1)))
    assert "--gpu-bind=none" in plan.warnings[0]


def test_gpus_left_idle_are_said() -> None:
    plan = planned({}, machine(gpus=fake_gpus(4)), procs_per_node=2)
    assert "2 of 4 visible GPUs" in plan.warnings[0]


def unused(task: str, **changes: Any) -> list[str]:
    """What a task of a job with 4 CPUs and 2 GPUs on each node says that its tasks do not see."""
    warnings = planned(captured(task), machine(**changes)).warnings
    return [text.split(". fix:")[0] for text in warnings if text.startswith("this job has")]


def test_what_the_job_has_and_its_tasks_do_not_see_is_said() -> None:
    one_each = {"core_ids": frozenset({0}), "gpus": fake_gpus(1)}
    assert unused("per-node/task-0@node01", **one_each) == [
        "this job has 4 CPUs on this node, and its tasks see 1",
        "this job has 2 GPUs on this node, and its tasks see 1",
    ]


def test_tasks_that_see_a_part_of_the_job_each_and_all_of_it_together_say_nothing() -> None:
    assert unused("per-gpu/task-0@node01", core_ids=frozenset({0, 1}), gpus=fake_gpus(1)) == []
    assert unused("gpus-per-task/task-0@node01", core_ids=frozenset({0, 1}), gpus=fake_gpus(1)) == []


def test_one_thread_of_each_core_is_all_of_the_core() -> None:
    given = {"core_ids": frozenset({0, 1}), "gpus": fake_gpus(2)}
    assert len(unused("per-node/task-0@node01", **given)) == 1
    assert unused("per-node/task-0@node01", **given, threads_per_core=2) == []


def test_no_more_cores_are_missed_than_the_machine_has() -> None:
    assert unused("per-node/task-0@node01", cores=2, gpus=fake_gpus(2)) == []


@pytest.mark.parametrize("changes", [{"SLURM_JOB_CPUS_PER_NODE": "x"}, {"SLURMD_NODENAME": "other"}])
def test_variables_that_do_not_say_what_the_job_has_miss_nothing(changes: dict[str, str]) -> None:
    environ = captured("per-node/task-0@node01") | changes | {"SLURM_JOB_GPUS": "", "SLURM_GPUS_ON_NODE": "x"}
    assert planned(environ, machine(core_ids=frozenset({0}), gpus=fake_gpus(1))).warnings == ()


def instances(given: int) -> Machine:
    """A made-up machine that gives this process so many instances of MIG."""
    first, *idle = (f"MIG-made-up-{number}" for number in range(given))
    return machine(gpus=(first,), idle=tuple(idle))


def test_of_several_instances_one_is_used_and_the_others_are_named_with_what_to_do() -> None:
    plan = planned({}, instances(3))
    assert (plan.device, plan.spawn) == ("cuda", 1)
    assert "unused: MIG-made-up-1, MIG-made-up-2. fix:" in plan.warnings[0]
    assert "CUDA_VISIBLE_DEVICES=MIG-..." in plan.warnings[0]


def test_tasks_that_were_all_given_the_same_instances_are_refused() -> None:
    with pytest.raises(Failure, match="2 ranks on this node and one MIG instance") as refused:
        planned(captured("per-gpu/task-0@node01"), instances(2))
    assert refused.value.code == 78


def test_an_instance_bound_to_each_task_is_warned_of() -> None:
    plan = planned(captured("gpus-per-task/task-1@node01"), instances(1))
    assert "NCCL may not connect them. fix: ask for GPUs without MIG" in plan.warnings[0]


def test_one_instance_alone_is_a_gpu_like_any_other() -> None:
    plan = planned({}, instances(1))
    assert (plan.device, plan.spawn, plan.warnings) == ("cuda", 1, ())


def test_cores_are_shared_among_the_ranks_of_a_node() -> None:
    assert planned({}, machine(cores=8), procs_per_node=2).threads == 4


@pytest.mark.parametrize(
    ("cores", "on_node", "tasks", "threads"),
    [(64, 64, 8, 8), (32, 64, 8, 8), (8, 64, 8, 8), (8, 64, 2, 8), (16, 64, 1, 16), (2, 2, 8, 1)],
    ids=["not bound", "bound to a NUMA node", "bound", "bound on a part of the node", "alone", "more tasks than cores"],
)
def test_tasks_that_may_use_the_same_cores_share_them(cores: int, on_node: int, tasks: int, threads: int) -> None:
    environ = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": str(tasks), "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    here = machine(cores=cores, machine_cores=on_node)
    assert planned(environ | {"OMPI_COMM_WORLD_LOCAL_SIZE": str(tasks)}, here).threads == threads


FIRST, SECOND = frozenset(range(8)), frozenset(range(8, 16))


def cores(near: tuple[frozenset[int], ...], allowed: frozenset[int] = FIRST | SECOND) -> tuple[frozenset[int], ...]:
    here = machine(cores=len(allowed), core_ids=allowed, gpus=fake_gpus(len(near)), gpu_cores=near)
    return planned({}, here).cores


def test_ranks_run_on_the_cores_near_their_gpus() -> None:
    near = (FIRST, FIRST, SECOND, SECOND)
    assert cores(near) == near


@pytest.mark.parametrize(
    ("near", "allowed"),
    [
        ((FIRST, FIRST, FIRST, SECOND), FIRST | SECOND),
        ((FIRST, SECOND), FIRST),
        ((FIRST, frozenset()), FIRST | SECOND),
        ((FIRST | SECOND, FIRST | SECOND), FIRST | SECOND),
    ],
    ids=["a rank would get less than its share", "the scheduler gave one node only", "not known", "one node"],
)
def test_ranks_are_not_bound_where_that_helps_nobody(near: tuple[frozenset[int], ...], allowed: frozenset[int]) -> None:
    assert cores(near, allowed) == ()


def test_a_rank_of_its_own_task_keeps_the_cores_that_the_scheduler_gave_it() -> None:
    here = machine(hostname="node02", gpus=fake_gpus(2), gpu_cores=(frozenset(range(4)), frozenset(range(4, 8))))
    assert planned(captured("per-gpu/task-3@node02"), here).cores == ()


def test_the_device_asked_for_wins_over_gpus_that_are_there() -> None:
    assert planned({}, machine(gpus=fake_gpus(2)), device="cpu").device == "cpu"


@pytest.mark.parametrize("value", ["", "-1", "NoDevFiles", "10000"])
def test_gpus_hidden_on_purpose_leave_the_cpu(value: str) -> None:
    assert planned({"CUDA_VISIBLE_DEVICES": value}).device == "cpu"


@pytest.mark.parametrize(
    ("environ", "container", "flag"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0"}, "none", "nvidia-smi"),
        ({"CUDA_VISIBLE_DEVICES": "0"}, "apptainer", "--nv"),
        ({"CUDA_VISIBLE_DEVICES": "0"}, "docker", "--gpus all"),
    ],
)
def test_gpus_promised_and_not_there_are_refused_with_the_flag(environ, container, flag) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(Failure, match="no GPU can be used here") as caught:
        planned(environ, machine(container=container))
    assert caught.value.code == 78
    assert flag in caught.value.fix
    assert ("container" in caught.value.fix) is (container != "none")


def test_gpus_that_slurm_gave_and_that_are_not_there_are_refused() -> None:
    with pytest.raises(Failure, match="although SLURM_GPUS_ON_NODE promises some") as caught:
        planned({"SLURM_GPUS_ON_NODE": "4"}, machine())
    assert caught.value.code == 78


@pytest.mark.parametrize(
    ("environ", "amd", "seen"),
    [
        ({"ROCR_VISIBLE_DEVICES": "0,1", "SLURM_GPUS_ON_NODE": "2"}, {}, "ROCR_VISIBLE_DEVICES=0,1"),
        ({"HIP_VISIBLE_DEVICES": "0"}, {}, "HIP_VISIBLE_DEVICES=0"),
        ({"CUDA_VISIBLE_DEVICES": "0"}, {"amd": "/dev/kfd"}, "/dev/kfd, CUDA_VISIBLE_DEVICES=0"),
        ({}, {"amd": "/dev/kfd", "amd_accelerators": True}, "/dev/kfd"),
    ],
    ids=["given by Slurm", "chosen by the user", "given under the name of NVIDIA's", "there"],
)
def test_amd_gpus_are_refused_and_not_replaced_by_the_cpu(
    environ: dict[str, str], amd: dict[str, Any], seen: str
) -> None:
    with pytest.raises(Failure, match="AMD") as caught:
        planned(environ, machine(**amd))
    assert caught.value.code == 72
    assert f"{seen}" in str(caught.value.found)
    assert planned(environ, machine(**amd), device="cpu").device == "cpu"


def test_slurm_s_variable_for_amd_on_a_node_without_its_nvidia_gpus_blames_no_amd_gpu() -> None:
    with pytest.raises(Failure, match="no GPU can be used here"):
        planned({"CUDA_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "0"}, machine())


def test_gpus_hidden_on_purpose_in_a_job_leave_the_cpu() -> None:
    job = {"SLURM_GPUS_ON_NODE": "4", "ROCR_VISIBLE_DEVICES": "0,1,2,3"}
    assert planned(job | {"CUDA_VISIBLE_DEVICES": ""}).device == "cpu"


def test_an_amd_gpu_for_the_display_is_a_warning() -> None:
    plan = planned({}, machine(amd="/dev/kfd"))
    assert plan.device == "cpu"
    assert "AMD GPU (/dev/kfd)" in plan.warnings[0]


GIVEN = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}


@pytest.mark.parametrize(
    ("environ", "named"),
    [({}, True), ({"NVIDIA_VISIBLE_DEVICES": "all"}, True), (GIVEN, False)],
    ids=["nothing is set", "without libcuda", "both are set"],
)
def test_in_a_job_what_pyxis_wants_is_named_where_it_is_not_set(environ: dict[str, str], named: bool) -> None:
    job = {"SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "0"}
    with pytest.raises(Failure, match="no GPU can be used here") as caught:
        planned(job | environ, machine())
    assert all(f"{name}={value}" in caught.value.fix for name, value in GIVEN.items()) is named
    assert "see whether `nvidia-smi`" in caught.value.fix


def test_cuda_asked_for_without_gpus_is_refused() -> None:
    with pytest.raises(Failure, match="no GPU") as caught:
        planned({}, device="cuda")
    assert caught.value.code == 78


@pytest.mark.parametrize(("asked", "gpus"), [(3, 2), (2, 1)])
def test_more_ranks_than_gpus_are_refused_with_both_numbers(asked: int, gpus: int) -> None:
    one = "s" * (gpus > 1)
    with pytest.raises(Failure, match=f"{asked} ranks on this node and only {gpus} GPU{one}\n") as caught:
        planned({}, machine(gpus=fake_gpus(gpus)), procs_per_node=asked)
    assert (caught.value.code, f"start {gpus} rank{one} per node" in caught.value.fix) == (78, True)


def test_a_number_of_ranks_that_equals_the_tasks_is_accepted() -> None:
    assert planned(captured("per-gpu/task-0@node01"), device="cpu", procs_per_node=2).spawn == 1


def test_a_port_given_by_the_user_is_the_only_candidate() -> None:
    assert planned(captured("per-gpu/task-0@node01") | {"MASTER_PORT": "31000"}, device="cpu").ports == (31000,)


def test_one_mpi_rank_per_node_starts_more_only_when_asked() -> None:
    environ = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    environ |= {"OMPI_COMM_WORLD_LOCAL_SIZE": "1", "MASTER_ADDR": "node01"}
    assert planned(environ, machine(gpus=fake_gpus(2))).spawn == 1
    assert planned(environ, machine(gpus=fake_gpus(2)), procs_per_node=2).world.world_size == 4


LOCALHOST = {"MASTER_ADDR": "localhost"}
BY_HAND = {"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    "address",
    ["localhost", "localhost.localdomain", "127.0.0.1", "127.0.1.1", "::1", "LOCALHOST", "2130706433", "0.0.0.0", "::"],
)
@pytest.mark.parametrize(
    "environ",
    [
        captured("per-node/task-0@node01"),
        captured("per-gpu/task-3@node02"),
        {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "localhost"},
        BY_HAND,
    ],
    ids=["slurm-node", "slurm-task", "second-pod", "ranks-by-hand"],
)
def test_loopback_as_the_master_of_several_nodes_is_refused_at_once(environ: dict[str, str], address: str) -> None:
    with pytest.raises(Failure, match="would look for rank 0 on itself") as caught:
        planned(environ | {"MASTER_ADDR": address}, device="cpu")
    assert caught.value.code == 76
    assert "unset MASTER_ADDR" in caught.value.fix


@pytest.mark.parametrize(
    "environ",
    [
        captured("one-task/task-0@node01") | LOCALHOST,
        captured("exclusive/task-1@node01") | LOCALHOST,
        {"PET_NNODES": "2", "PET_NODE_RANK": "0", "PET_MASTER_ADDR": "localhost"},
        BY_HAND | {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"} | LOCALHOST,
        BY_HAND | {"TORCHELASTIC_RUN_ID": "none"} | LOCALHOST,
    ],
    ids=["one-node", "one-node-of-two-tasks", "first-pod", "ranks-by-hand-of-one-node", "agents-that-have-met"],
)
def test_loopback_is_the_masters_address_where_all_ranks_or_the_first_one_are_here(environ: dict[str, str]) -> None:
    assert planned(environ, device="cpu").world.master_addr == "localhost"


@pytest.mark.parametrize("unusable", ["localhost", "Localhost4", "0.0.0.0", "::"])
def test_several_nodes_on_one_machine_are_tried_by_number(unusable: str) -> None:
    nodes = {"nodes": 2, "node_rank": 1}
    assert planned({}, master_addr="127.0.0.1", **nodes).world.num_nodes == 2
    with pytest.raises(Failure, match="would look for rank 0 on itself"):
        planned({}, master_addr=unusable, **nodes)


def test_what_is_asked_for_is_planned() -> None:
    planned = make_plan({}, LaunchOptions(device="cpu", procs_per_node=3))
    assert (planned.device, planned.spawn, planned.world.world_size) == ("cpu", 3, 3)


def test_nobody_counts_gpus_that_are_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "list_gpus", lambda root: 1 / 0)
    assert make_plan({}, LaunchOptions(device="cpu")).device == "cpu"


@given(st.text(max_size=30))
def test_candidates_are_distinct_and_below_the_ephemeral_range(launch_id: str) -> None:
    ports = plan.candidate_ports(launch_id)
    assert len(set(ports)) == len(ports) == plan.NUM_CANDIDATE_PORTS
    assert all(20_000 <= port < 32_768 for port in ports)


def test_all_tasks_of_a_launch_derive_the_same_candidates() -> None:
    assert plan.candidate_ports("slurm:7.0.0") == plan.candidate_ports("slurm:7.0.0")


def test_two_jobs_on_a_node_derive_different_candidates() -> None:
    assert plan.candidate_ports("slurm:7.0.0") != plan.candidate_ports("slurm:8.0.0")


def test_ports_of_neighbouring_jobs_rarely_meet() -> None:
    firsts = [plan.candidate_ports(f"slurm:{job}.0.0")[0] for job in range(2000)]
    assert len(set(firsts)) > 1800  # of 12,768 ports: 1852 if they were drawn


def test_a_narrow_range_gives_each_of_its_ports_once() -> None:
    assert sorted(plan.candidate_ports("k", (30_000, 30_002))) == [30_000, 30_001, 30_002]
