"""Whose word counts."""

from __future__ import annotations

import pytest
from machines import captured, machine

from entrypoint.detect import detect
from entrypoint.errors import Failure
from entrypoint.options import Options

TORCHRUN = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node01"}
TORCHRUN |= {"MASTER_PORT": "29500"}
STEP = captured("per-gpu/task-0@node01")
BATCH = captured("no-srun-two-nodes/batch-0@node01")
PET = {"PET_NNODES": "1"}


def launcher(environ: dict[str, str], options: Options | None = None) -> str:
    return detect(environ, options or Options(), machine()).launcher


@pytest.mark.parametrize(
    ("environ", "options", "expected"),
    [
        (TORCHRUN, Options(nodes=1, node_rank=0, master_addr="a"), "local"),
        (TORCHRUN | BATCH, None, "torchrun"),
        (TORCHRUN | {"PMI_RANK": "7", "PMI_SIZE": "9"}, None, "torchrun"),
        (captured("openmpi-slurm/task-2@node02"), None, "openmpi"),
        (STEP | PET, None, "slurm-task"),
        (BATCH | PET, None, "pet"),
        ({}, None, "local"),
    ],
    ids=["by-hand", "torchrun-in-batch", "torchrun-in-mpi", "mpi-in-slurm", "step-over-pet", "pet-in-batch", "bare"],
)
def test_the_innermost_launcher_wins(environ: dict[str, str], options: Options | None, expected: str) -> None:
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


def test_master_addr_and_port_exported_before_srun_win() -> None:
    found = detect(STEP | {"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "31000"}, Options(), machine())
    assert (found.launcher, found.master_addr, found.master_port) == ("slurm-task", "10.0.0.7", 31000)
    assert found.sources["master_addr"] == "MASTER_ADDR"


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
        detect({}, Options(), machine(hidden_job=job))
    assert "--cleanenv" in caught.value.fix


def test_an_environment_cleaned_inside_a_one_task_job_is_one_world_all_the_same() -> None:
    hidden = machine(hidden_job={"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS": "1"})
    assert detect({}, Options(), hidden).launcher == "local"
