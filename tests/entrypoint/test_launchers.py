"""The innermost launcher counts, and variables of two launchers are never a world of one."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from machines import captured, machine
from synthetic import GRID_ENGINE, ONE_NODE_TASKS, PER_NODE, PER_RANK, SAGEMAKER_BARE, SCRIPTS, torchrun_rank
from synthetic import PET as PET_OF_TWO

from entrypoint.errors import Failure
from entrypoint.handover import HANDOVER_VARIABLE, Handover
from entrypoint.launchers import current_job_key, detect_allocation
from entrypoint.options import LaunchOptions

TORCHRUN = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node01"}
TORCHRUN |= {"MASTER_PORT": "29500"}
STEP = captured("per-gpu/task-0@node01")
BATCH = captured("no-srun-two-nodes/batch-0@node01")
ONE_NODE_BATCH = captured("batch-one-node/batch-0@node01")
PET = {"PET_NNODES": "1"}
# What a script that `entrypoint run` started as its only rank, in step 6.0, hands on to the job that it submits.
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "node07"}
OURS = ALONE | {"ENTRYPOINT_DEVICE": "cuda", "NCCL_SOCKET_IFNAME": "=lo"}


def handed_over(job: str) -> dict[str, str]:
    return Handover(launch_id=job, job=job, added=("OMP_NUM_THREADS", "NCCL_SOCKET_IFNAME")).to_environ()


OURS |= handed_over("slurm:6.0.0")
TORCHRUNS = ALONE | {"TORCHELASTIC_RUN_ID": "none", "MASTER_PORT": "29500"}
ONE_TASK = captured("one-task/task-0@node01")


def launcher(environ: dict[str, str], options: LaunchOptions | None = None) -> str:
    return detect_allocation(environ, options or LaunchOptions(), machine()).launcher


@pytest.mark.parametrize(
    ("environ", "options", "expected"),
    [
        (TORCHRUN, LaunchOptions(nodes=1, node_rank=0, master_addr="a"), "local"),
        (TORCHRUN | BATCH, None, "torchrun"),
        (TORCHRUN | {"PMI_RANK": "1", "PMI_SIZE": "2"}, None, "torchrun"),
        (captured("openmpi-slurm/task-2@node02"), None, "openmpi"),
        (STEP | PET, None, "slurm-task"),
        (ONE_NODE_BATCH | PET, None, "pet"),
        ({}, None, "local"),
    ],
    ids=["by-hand", "torchrun-in-batch", "torchrun-in-mpi", "mpi-in-slurm", "step-over-pet", "pet-in-batch", "bare"],
)
def test_the_innermost_launcher_wins(environ: dict[str, str], options: LaunchOptions | None, expected: str) -> None:
    assert launcher(environ, options) == expected


def test_under_torchrun_slurms_numbers_are_its_agents_and_not_compared() -> None:
    assert launcher(captured("torchrun-srun/task-3@node02")) == "torchrun"


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "WORLD_SIZE"])
def test_a_torchrun_set_by_hand_must_agree_with_the_step(name: str) -> None:
    agreeing = TORCHRUN | STEP
    with pytest.raises(Failure, match=f"{name} and SLURM_") as caught:
        launcher(agreeing | {name: "3"})
    assert caught.value.code == 76


def test_a_torchrun_set_by_hand_that_agrees_with_the_step_is_taken() -> None:
    assert launcher(TORCHRUN | STEP) == "torchrun"


@pytest.mark.parametrize(
    "job",
    [
        captured("per-gpu/task-0@node01"),
        captured("per-gpu/task-1@node01"),
        ONE_TASK,
        captured("batch-one-node/batch-0@node01"),
        {"PBS_JOBID": "7.pbs"},
        {"LSB_JOBID": "7"},
    ],
    ids=["task-0", "task-1", "one-task-agrees", "batch", "pbs", "lsf"],
)
def test_a_ranks_variables_from_another_job_are_refused(job: dict[str, str]) -> None:
    with pytest.raises(Failure, match="of another launch") as caught:
        launcher(OURS | job)
    assert caught.value.code == 76
    assert "slurm:6.0.0" in (caught.value.found or "")


def test_the_fix_for_a_ranks_variables_names_all_that_came_along() -> None:
    with pytest.raises(Failure, match="of another launch") as caught:
        launcher(OURS | {"PMI_RANK": "0", "TORCHELASTIC_RUN_ID": "none", "NCCL_DEBUG": "INFO"} | STEP)
    named = set(caught.value.fix.partition("unset ")[2].split())
    assert named == {*ALONE, HANDOVER_VARIABLE, "ENTRYPOINT_DEVICE", "NCCL_SOCKET_IFNAME", "PMI_RANK"} | {
        "TORCHELASTIC_RUN_ID"
    }
    left = {name: value for name, value in OURS.items() if name not in named}
    assert launcher(left | STEP) == "slurm-task"


@pytest.mark.parametrize("made_in", ["", "slurm:6.0.0", "slurm:1.1.0", "pbs.7"], ids=["none", "job", "step", "pbs"])
def test_a_ranks_variables_from_anywhere_else_are_refused_in_a_step(made_in: str) -> None:
    assert current_job_key(STEP) not in (made_in, "")
    with pytest.raises(Failure, match="of another launch"):
        launcher(OURS | STEP | handed_over(made_in))


LAUNCHES = {**PER_RANK, **PER_NODE, "pet": PET_OF_TWO, "grid-engine": GRID_ENGINE, "flux-script": {"FLUX_JOB_ID": "f7"}}


@pytest.mark.parametrize("name", sorted(LAUNCHES.keys() - {"kubernetes"}))  # a pod is started by nobody's rank
def test_a_rank_of_ours_outside_of_a_job_is_no_rank_of_a_launch_that_it_starts(name: str) -> None:
    with pytest.raises(Failure, match="of another launch"):
        launcher(OURS | LAUNCHES[name] | handed_over(""))


IN_A_JOB = {"step": STEP, "one-task": ONE_TASK, "batch": BATCH, "pbs": {"PBS_JOBID": "7.pbs"}, "no job": {}}


@pytest.mark.parametrize("environ", (LAUNCHES | IN_A_JOB).values(), ids=LAUNCHES | IN_A_JOB)
def test_what_a_rank_of_ours_starts_in_any_launch_is_that_rank(environ: dict[str, str]) -> None:
    """Also a rank of --nodes 1 on a platform of several nodes: its parent has looked."""
    assert launcher(OURS | environ | handed_over(current_job_key(environ))) == "torchrun"


def test_a_variable_that_a_rank_of_ours_left_behind_hides_no_larger_job() -> None:
    with pytest.raises(Failure, match="PMI_SIZE says that there are 4"):
        launcher({**handed_over(""), "PMI_SIZE": "4"})


def test_a_rank_that_took_slurms_variables_away_is_that_rank() -> None:
    assert launcher(OURS) == "torchrun"


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_torchrun_of_fewer_ranks_than_the_step_has_tasks_is_another_jobs(rank: str) -> None:
    with pytest.raises(Failure, match="contradict each other") as caught:
        launcher(TORCHRUNS | captured(f"per-gpu/task-{rank}@node01"))
    assert "unset" in caught.value.fix
    assert "--nodes 1 --node-rank 0" in caught.value.fix


def test_a_torchrun_of_one_rank_in_a_step_of_one_task_is_its_own() -> None:
    assert launcher(TORCHRUNS | ONE_TASK) == "torchrun"


def test_machines_by_hand_are_not_asked_for_their_launcher() -> None:
    assert launcher({"PMIX_RANK": "3"}, LaunchOptions(nodes=1, node_rank=0, master_addr="a")) == "local"


@pytest.mark.parametrize("name", ["PMIX_RANK", "PALS_RANKID"])
def test_a_number_beside_a_launcher_that_says_more_is_not_asked(name: str) -> None:
    launchers = [launcher(environ | {name: "0"}) for environ in (TORCHRUN, STEP, PET)]
    assert launchers == ["torchrun", "slurm-task", "pet"]


@pytest.mark.parametrize(
    "plugins",
    [
        {"PMIX_RANK": "0", "PMIX_NAMESPACE": "slurm.pmix.7.4294967290"},
        {"PALS_RANKID": "0", "PALS_APID": "7.4294967290"},
        {"PMI_RANK": "0", "PMI_SIZE": "1", "PMI_JOBID": "7.4294967290"},
    ],
    ids=["pmix", "cray-shasta", "pmi2"],
)
def test_what_slurms_own_plugins_set_in_an_interactive_shell_is_slurms_word(plugins: dict[str, str]) -> None:
    shell = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "4294967290", "SLURM_JOB_NUM_NODES": "1", "SLURM_PROCID": "0"}
    assert launcher(shell | plugins) == "local"
    with pytest.raises(Failure, match="not started by srun"):
        launcher(shell | plugins | {"SLURM_JOB_NUM_NODES": "2"})


def test_a_torchrun_in_an_interactive_shell_of_several_tasks_is_not_compared_with_slurms_plugins() -> None:
    shell = captured("srun-pty/task-0@node01") | {"SLURM_STEP_NUM_TASKS": "4", "PMI_RANK": "0", "PMI_SIZE": "4"}
    ranks = dict(zip(("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"), ("1", "4", "1", "4"), strict=True))
    agent = {"TORCHELASTIC_RUN_ID": "none", "GROUP_WORLD_SIZE": "1", "GROUP_RANK": "0", "MASTER_ADDR": "localhost"}
    environ = shell | ranks | agent | {"MASTER_PORT": "29500"}
    assert detect_allocation(environ, LaunchOptions(), machine()).launcher == "torchrun"


def test_a_prterun_in_such_a_shell_is_not_slurms_word() -> None:
    shell = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "PMIX_NAMESPACE": "prterun-node01-53@1"}
    with pytest.raises(Failure, match="PMIX_RANK shows"):
        launcher(shell | {"PMIX_RANK": "2"})


def test_master_addr_and_port_exported_before_srun_win() -> None:
    allocation = detect_allocation(
        STEP | {"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "31000"}, LaunchOptions(), machine()
    )
    assert (allocation.launcher, allocation.master_addr, allocation.master_port) == ("slurm-task", "10.0.0.7", 31000)
    assert allocation.sources["master_addr"] == "MASTER_ADDR"


def test_a_machine_alone_meets_on_loopback_whatever_master_is_set() -> None:
    allocation = detect_allocation({"MASTER_ADDR": "elsewhere"}, LaunchOptions(), machine())
    assert (allocation.launcher, allocation.master_addr, allocation.master_port) == ("local", "127.0.0.1", None)


BY_HAND = LaunchOptions(nodes=2, node_rank=0, master_addr="a")


@pytest.mark.parametrize(("environ", "options"), [({}, LaunchOptions()), (PET, LaunchOptions()), ({}, BY_HAND)])
def test_master_port_counts_wherever_the_launcher_gives_none(environ: dict[str, str], options: LaunchOptions) -> None:
    allocation = detect_allocation(environ | {"MASTER_PORT": "31000"}, options, machine())
    assert (allocation.master_port, allocation.sources["master_port"]) == (31000, "MASTER_PORT")


def test_a_port_that_was_asked_for_by_option_wins_over_master_port() -> None:
    assert (
        detect_allocation({"MASTER_PORT": "31000"}, replace(BY_HAND, master_port=4000), machine()).master_port == 4000
    )


@pytest.mark.parametrize(
    "job",
    [
        {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "4"},
        {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "batch"},
    ],
    ids=["several-tasks", "tasks-not-known"],
)
def test_an_environment_cleaned_inside_a_job_is_refused_with_the_flag_to_leave_out(job: dict[str, str]) -> None:
    with pytest.raises(Failure, match="in Slurm job 7") as caught:
        detect_allocation({}, LaunchOptions(), machine(hidden_job=job))
    assert "--cleanenv" in caught.value.fix


def test_an_environment_cleaned_inside_a_one_task_job_is_one_world_all_the_same() -> None:
    hidden = machine(hidden_job={"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS": "1"})
    assert detect_allocation({}, LaunchOptions(), hidden).launcher == "local"


LINK = "tcp://10.0.0.1:1234"  # so Kubernetes tells each pod of a service
SERVICE = {"MASTER_PORT": LINK, "MASTER_SERVICE_HOST": "10.0.0.1", "MASTER_SERVICE_PORT": "1234"}


@pytest.mark.parametrize(
    "environ",
    [{}, PET_OF_TWO, PET, STEP, PER_NODE["skypilot"], PER_NODE["kubernetes"], PER_RANK["openmpi"], ONE_NODE_BATCH],
    ids=["bare", "pet", "pet-of-one", "step", "skypilot", "kubernetes", "openmpi", "batch"],
)
def test_the_port_of_a_service_called_master_is_not_used_and_it_is_said(environ: dict[str, str]) -> None:
    environ = {name: value for name, value in environ.items() if name != "MASTER_PORT"}
    plain = detect_allocation(environ, LaunchOptions(), machine())
    allocation = detect_allocation(environ | SERVICE, LaunchOptions(), machine())
    assert allocation.master_port == plain.master_port
    assert (allocation.launcher, allocation.num_nodes) == (plain.launcher, plain.num_nodes)
    assert f"MASTER_PORT={LINK}" in allocation.warnings[-1]


def test_the_port_of_a_service_called_pet_master_is_not_used() -> None:
    allocation = detect_allocation(PET_OF_TWO | {"PET_MASTER_PORT": LINK}, LaunchOptions(), machine())
    assert allocation.master_port is None
    assert f"PET_MASTER_PORT={LINK}" in allocation.warnings[0]


def test_ranks_by_hand_with_the_port_of_a_service_are_asked_for_a_port() -> None:
    with pytest.raises(Failure, match="without MASTER_PORT"):
        detect_allocation(TORCHRUN | SERVICE, LaunchOptions(), machine())


RANK_OF_TWO = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node01"}
RANK_OF_TWO |= {"MASTER_PORT": "29500"}
LAST_TASK = captured("per-gpu/task-3@node02")
BATCH_OF_TASKS = captured("per-gpu/batch-0@node01")
# Name -> variables and host files, each of a job with several tasks or nodes.
SOURCES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "torchrun": (RANK_OF_TWO, {}),
    "step": (LAST_TASK, {}),
    "batch": (BATCH_OF_TASKS, {}),
    "pet": (PET_OF_TWO, {}),
    **{name: (environ, {}) for name, environ in (PER_RANK | PER_NODE).items()},
    **{f"script-{name}": (environ, files) for name, (environ, files, _) in SCRIPTS.items()},
}
SINGLE: dict[str, dict[str, str]] = {
    "torchrun": RANK_OF_TWO | {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"},
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
