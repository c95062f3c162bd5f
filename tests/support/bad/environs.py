"""Environments that no launcher makes, or that contradict themselves: refused before any socket is opened."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from unittest.mock import patch

from bad.case import Case, through, through_entrypoint
from machines import captured, fake_gpus

from entrypoint import Handover
from entrypoint.accelerators import nvidia

show = partial(Case, door=through_entrypoint, line=("show", "--device", "cpu"), code=76)
TASK, NODE = captured("per-gpu/task-3@node02"), captured("per-node/task-1@node02")
BATCH = captured("per-gpu/batch-0@node01")
TORCHRUN = {
    "RANK": "1",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29999",
}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
PMI = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
PET = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "master-0", "PET_NPROC_PER_NODE": "2"}
HUGE = "9" * 5000  # Python itself refuses to read such a number

# What is changed in a good environment (None: taken out), and what must be said.
Row = tuple[str, Mapping[str, str], Mapping[str, str | None], tuple[str, ...], str]
ROWS: dict[str, Row] = {
    "rank-beyond-world": (
        "32",
        TORCHRUN,
        {"RANK": "2"},
        ("RANK must be below WORLD_SIZE", "RANK=2 WORLD_SIZE=2"),
        "RANK",
    ),
    "local-rank-beyond": ("32", TORCHRUN, {"LOCAL_RANK": "2"}, ("LOCAL_RANK=2 LOCAL_WORLD_SIZE=2",), "LOCAL_RANK"),
    "group-rank-beyond": ("32", TORCHRUN, {"GROUP_RANK": "7"}, ("GROUP_RANK=7 GROUP_WORLD_SIZE=1",), "GROUP_RANK"),
    "world-of-none": ("32", TORCHRUN, {"WORLD_SIZE": "0", "LOCAL_WORLD_SIZE": None}, ("WORLD_SIZE=0",), "unset both"),
    "larger-here": ("32", TORCHRUN, {"LOCAL_WORLD_SIZE": "3"}, ("LOCAL_WORLD_SIZE=3 WORLD_SIZE=2",), "unset both"),
    "negative-rank": ("32", TORCHRUN, {"RANK": "-1"}, ("RANK is not a whole number", "RANK=-1"), "unset RANK"),
    "rank-is-text": ("32", TORCHRUN, {"RANK": "one"}, ("RANK is not a whole number", "RANK=one"), "unset RANK"),
    "rank-in-arabic-digits": ("32", TORCHRUN, {"RANK": "\u0661"}, ("RANK=\u0661",), "unset RANK"),
    "rank-of-5000-digits": ("32", TORCHRUN, {"RANK": HUGE}, ("RANK", "999"), "unset RANK"),
    "rank-of-two-lines": ("32", TORCHRUN, {"RANK": "1\n  fix: rm -rf /"}, ("RANK=1\\n  fix",), "unset RANK"),
    "rank-is-a-command": ("32", TORCHRUN, {"RANK": "$(touch executed)"}, ("RANK=$(touch executed)",), "unset RANK"),
    "world-size-is-a-command": ("32", TORCHRUN, {"WORLD_SIZE": "`touch executed`"}, ("WORLD_SIZE=`",), "WORLD_SIZE"),
    "rank-alone": (
        "33",
        {},
        {"RANK": "0"},
        ("incomplete torchrun variables: RANK without LOCAL_RANK, WORLD_SIZE",),
        "unset RANK",
    ),
    "no-local-rank": ("33", TORCHRUN, {"LOCAL_RANK": None}, ("without LOCAL_RANK", "RANK=1 WORLD_SIZE=2"), "torchrun"),
    "no-world-size": ("33", TORCHRUN, {"WORLD_SIZE": ""}, ("without WORLD_SIZE",), "torchrun"),
    "no-master": (
        "33",
        TORCHRUN,
        {"MASTER_ADDR": None, "MASTER_PORT": None},
        ("MASTER_ADDR and MASTER_PORT",),
        "rank 0",
    ),
    "no-master-port": ("33", TORCHRUN, {"MASTER_PORT": ""}, ("2 ranks without MASTER_PORT",), "a free port of rank 0"),
    "port-0": (
        "32",
        TORCHRUN,
        {"MASTER_PORT": "0"},
        ("MASTER_PORT is not a port", "MASTER_PORT=0", "65535"),
        "MASTER_PORT",
    ),
    "port-65536": ("32", TORCHRUN, {"MASTER_PORT": "65536"}, ("MASTER_PORT=65536", "1 to 65535"), "unset MASTER_PORT"),
    "port-is-negative": ("32", TORCHRUN, {"MASTER_PORT": "-1"}, ("MASTER_PORT=-1",), "unset MASTER_PORT"),
    "port-before-srun": ("32", TASK, {"MASTER_PORT": "99999"}, ("MASTER_PORT=99999", "1 to 65535"), "MASTER_PORT"),
    "slurm-and-rank": ("34", TASK, TORCHRUN, ("RANK and SLURM_PROCID", "RANK=1 SLURM_PROCID=3"), "remove `export RANK"),
    "slurm-and-size": (
        "34",
        TASK,
        {**TORCHRUN, "RANK": "3", "WORLD_SIZE": "8"},
        ("WORLD_SIZE and SLURM_STEP_NUM_TASKS", "WORLD_SIZE=8 SLURM_STEP_NUM_TASKS=4"),
        "remove `export RANK",
    ),
    "slurm-and-local-rank": (
        "34",
        TASK,
        {**TORCHRUN, "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "0"},
        ("LOCAL_RANK and SLURM_LOCALID",),
        "remove `export RANK",
    ),
    "rank-of-another-job": (
        "34",
        TASK,
        {**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1", **Handover(job="slurm:6.0.0").to_environ()},
        ("a rank of another launch", "RANK=0 WORLD_SIZE=1 of slurm:6.0.0"),
        "unset RANK",
    ),
    "torchrun-of-another-job": (
        "34",
        TASK,
        {**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "none"},
        ("RANK=0 SLURM_PROCID=3",),
        "unset them",
    ),
    "no-node-id": ("33", TASK, {"SLURM_NODEID": None}, ("a Slurm job step without SLURM_NODEID",), "srun"),
    "no-hosts": ("33", TASK, {"SLURM_STEP_NODELIST": None}, ("without SLURM_STEP_NODELIST",), "--cleanenv"),
    "no-counts": ("33", TASK, {"SLURM_STEP_TASKS_PER_NODE": ""}, ("without SLURM_STEP_TASKS_PER_NODE",), "srun"),
    "no-nodes": ("33", TASK, {"SLURM_STEP_NUM_NODES": None}, ("without SLURM_STEP_NUM_NODES",), "srun"),
    "no-procid": ("33", TASK, {"SLURM_PROCID": None}, ("not started by srun", "SLURM_"), "srun"),
    "procid-beyond": ("34", TASK, {"SLURM_PROCID": "4"}, ("SLURM_PROCID=4 SLURM_STEP_NUM_TASKS=4",), "by hand"),
    "node-id-beyond": ("34", TASK, {"SLURM_NODEID": "2"}, ("SLURM_NODEID=2 SLURM_STEP_NUM_NODES=2",), "by hand"),
    "fewer-hosts": ("34", TASK, {"SLURM_STEP_NODELIST": "node01"}, ("SLURM_STEP_NODELIST and",), "by hand"),
    "a-host-twice": ("34", TASK, {"SLURM_STEP_NODELIST": "node[01,01]"}, ("SLURM_STEP_NODELIST and",), "by hand"),
    "more-counts": ("34", TASK, {"SLURM_STEP_TASKS_PER_NODE": "2(x3)"}, ("SLURM_STEP_NUM_NODES=2",), "by hand"),
    "other-sum": ("34", TASK, {"SLURM_STEP_TASKS_PER_NODE": "3,2"}, ("SLURM_STEP_NUM_TASKS=4",), "by hand"),
    "an-empty-node": ("34", TASK, {"SLURM_STEP_TASKS_PER_NODE": "4,0"}, ("SLURM_STEP_NUM_TASKS=4",), "by hand"),
    "local-id-beyond": ("34", TASK, {"SLURM_LOCALID": "2"}, ("SLURM_LOCALID=2 SLURM_STEP_TASKS",), "by hand"),
    "step-of-5000-digits": ("32", TASK, {"SLURM_STEP_ID": HUGE}, ("not started by srun",), "srun"),
    "hosts-unclosed": ("32", TASK, {"SLURM_STEP_NODELIST": "node[01-02"}, ("SLURM_STEP_NODELIST cannot",), "by hand"),
    "hosts-empty": ("32", TASK, {"SLURM_STEP_NODELIST": " "}, ("SLURM_STEP_NODELIST cannot be read",), "by hand"),
    "hosts-nested": ("32", TASK, {"SLURM_STEP_NODELIST": "n[1[2]]"}, ("SLURM_STEP_NODELIST cannot",), "by hand"),
    "hosts-are-letters": ("32", TASK, {"SLURM_STEP_NODELIST": "n[a-b]"}, ("numbers or ranges",), "by hand"),
    "hosts-fall": ("32", TASK, {"SLURM_STEP_NODELIST": "n[9-1]"}, ("a rising range",), "by hand"),
    "hosts-million": ("49", TASK, {"SLURM_STEP_NODELIST": "n[0-99999999]"}, ("a rising range of at most",), "by hand"),
    "hosts-5000-digits": ("49", TASK, {"SLURM_STEP_NODELIST": f"n[0-{HUGE}]"}, ("cannot be read",), "by hand"),
    "hosts-product": ("49", TASK, {"SLURM_STEP_NODELIST": "n" + "[0-99]" * 9}, ("at most 65536 names",), "by hand"),
    "hosts-sum": ("49", TASK, {"SLURM_STEP_NODELIST": ",".join(["n[0-65535]"] * 9000)}, ("at most 65536",), "by hand"),
    "counts-text": ("32", TASK, {"SLURM_STEP_TASKS_PER_NODE": "two"}, ("SLURM_STEP_TASKS_PER_NODE cannot",), "by hand"),
    "counts-million": ("49", TASK, {"SLURM_STEP_TASKS_PER_NODE": "1(x99999999)"}, ("counts such as",), "by hand"),
    "counts-5000-digits": ("49", TASK, {"SLURM_STEP_TASKS_PER_NODE": HUGE}, ("counts such as",), "by hand"),
    "batch-with-tasks": (
        "35",
        BATCH,
        {},
        ("not started by srun", "several nodes or tasks"),
        "srun --kill-on-bad-exit=1",
    ),
    "salloc-shell": ("73", captured("salloc/shell-x@ctl"), {}, ("not started by srun", "hang"), "srun"),
    "interactive-shell": ("73", captured("salloc-interactive/shell-0@node01"), {}, ("not started by srun",), "srun"),
    "no-srun-two-nodes": ("73", captured("no-srun-two-nodes/batch-0@node01"), {}, ("SLURM_JOB_NUM_NODES=2",), "srun"),
    "job-of-another-host": (
        "35",
        {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node07"},
        {},
        ("this host is node01", "SLURM_JOB_NODELIST=node07"),
        "srun",
    ),
    "job-of-many-nodes": ("35", {"SLURM_JOB_ID": "7", "SLURM_NNODES": HUGE}, {}, ("SLURM_NNODES",), "SLURM_NNODES"),
    "mpi-without-local": (
        "33",
        OPENMPI,
        {"OMPI_COMM_WORLD_LOCAL_RANK": None},
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        "--cleanenv",
    ),
    "mpi-rank-beyond": (
        "32",
        OPENMPI,
        {"OMPI_COMM_WORLD_RANK": "4"},
        ("must be below OMPI_COMM_WORLD_SIZE",),
        "by hand",
    ),
    "mpi-local-size-0": (
        "32",
        OPENMPI,
        {"OMPI_COMM_WORLD_LOCAL_SIZE": "0"},
        ("OMPI_COMM_WORLD_LOCAL_SIZE=0",),
        "by hand",
    ),
    "pmi-without-local": (
        "33",
        PMI,
        {"MPI_LOCALRANKID": None},
        ("missing: MPI_LOCALRANKID",),
        "--cleanenv",
    ),
    "flux-without-size": ("33", {}, {"FLUX_TASK_RANK": "1"}, ("FLUX_JOB_SIZE",), "--cleanenv"),
    "unknown-launcher": (
        "33",
        {},
        {"ACME_RANK": "1", "ACME_SIZE": "8"},
        ("ACME_RANK and ACME_SIZE", "ACME_RANK=1 ACME_SIZE=8"),
        "--nodes NODES --node-rank K",
    ),
    "torchrun-smaller-than-mpi": (
        "34",
        TORCHRUN,
        {"PMI_RANK": "1", "PMI_SIZE": "4"},
        ("torchrun starts 2", "PMI_SIZE says that there are 4"),
        "one launcher",
    ),
    "pmix-alone": ("33", {}, {"PMIX_RANK": "1"}, ("PMIX_RANK shows that PMIx (prterun)",), "unset PMIX_RANK"),
    "pmi-size-0": ("32", PMI, {"PMI_SIZE": "0"}, ("PMI_RANK must be below PMI_SIZE",), "by hand"),
    "pet-other-size": (
        "34",
        PET,
        {"RANK": "1", "WORLD_SIZE": "7"},
        ("incomplete torchrun variables", "RANK=1 WORLD_SIZE=7"),
        "unset RANK WORLD_SIZE",
    ),
    "pet-elastic": ("34", PET, {"PET_NNODES": "1:4"}, ("PET_NNODES=1:4", "elastic"), "set PET_NNODES to one number"),
    "pet-half": ("33", PET, {"PET_MASTER_ADDR": None}, ("PET_NNODES=2 without PET_MASTER_ADDR",), "PET_MASTER_ADDR"),
    "pet-rank-beyond": ("32", PET, {"PET_NODE_RANK": "2"}, ("PET_NODE_RANK=2 must be below PET_NNODES=2",), "from 0"),
    "pet-no-nodes": ("32", PET, {"PET_NNODES": "0"}, ("PET_NNODES=0", "at least one"), "PET_NNODES to 1 or more"),
    "pet-no-procs": ("32", PET, {"PET_NPROC_PER_NODE": "0"}, ("PET_NPROC_PER_NODE=0",), "PET_NPROC_PER_NODE to 1"),
    "skypilot": (
        "73",
        {},
        {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "2"},
        ("SKYPILOT_NODE_RANK must be below 2, in a SkyPilot job",),
        "--nodes 1 --node-rank 0",
    ),
    "pet-port": ("32", PET, {"PET_MASTER_PORT": "70000"}, ("PET_MASTER_PORT=70000",), "PET_MASTER_PORT"),
}
SEVERAL = {"SLURM_JOB_ID": "12", "SLURM_STEP_NUM_TASKS": "4"}


def _changed(environ: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in {**environ, **changes}.items() if value is not None}


def _without_pynvml(folder: Path) -> None:
    with patch.dict("sys.modules", pynvml=None):
        nvidia.list_gpus()


CASES = [
    *(
        show(id=f"environ-{name}", environ=_changed(environ, changes), says=says, fix=fix, row=row)
        for name, (row, environ, changes, says, fix) in ROWS.items()
    ),
    show(
        id="environ-cleanenv",
        machine={"hidden_job": SEVERAL},
        says=("in Slurm job 12", "a job with 4 tasks"),
        fix="leave out --cleanenv",
        row="33",
    ),
    show(
        id="environ-cleanenv-unprivileged",
        machine={"hidden_job": {"SLURM_JOB_ID": "12"}},
        says=("a job with several tasks",),
        fix="leave out --cleanenv",
        row="33",
    ),
    show(
        id="environ-range-of-ports",
        code=64,
        environ={"ENTRYPOINT_PORT_RANGE": "30000-20000"},
        says=("ENTRYPOINT_PORT_RANGE=30000-20000", "LOW <= HIGH"),
        fix="ENTRYPOINT_PORT_RANGE",
    ),
    show(
        id="environ-ports-of-root",
        code=64,
        environ={"ENTRYPOINT_PORT_RANGE": "1-1023"},
        says=("ENTRYPOINT_PORT_RANGE=1-1023", "1024"),
        fix="ENTRYPOINT_PORT_RANGE",
    ),
    show(
        id="environ-device",
        code=64,
        line=("show",),
        environ={"ENTRYPOINT_DEVICE": "gpu"},
        says=("ENTRYPOINT_DEVICE=gpu",),
        fix="set ENTRYPOINT_DEVICE to cuda",
    ),
    show(
        id="environ-procs-million",
        code=64,
        environ={"ENTRYPOINT_PROCS_PER_NODE": "1000000"},
        says=("ENTRYPOINT_PROCS_PER_NODE=1000000", "1024"),
        fix="ENTRYPOINT_PROCS_PER_NODE",
    ),
    show(
        id="environ-gpu-promised",
        code=78,
        line=("show",),
        environ={"CUDA_VISIBLE_DEVICES": "0"},
        says=("no GPU can be used here", "CUDA_VISIBLE_DEVICES=0", "NVML"),
        fix="nvidia-smi",
        row="36",
    ),
    show(
        id="environ-gpu-promised-apptainer",
        code=78,
        line=("show",),
        environ={"CUDA_VISIBLE_DEVICES": "0,1"},
        machine={"container": "apptainer"},
        says=("CUDA_VISIBLE_DEVICES=0,1",),
        fix="apptainer exec --nv",
        row="36",
    ),
    show(
        id="environ-gpu-asked-docker",
        code=78,
        line=("show", "--device", "cuda"),
        machine={"container": "docker"},
        says=("CUDA_VISIBLE_DEVICES is not set",),
        fix="docker run --gpus all",
        row="36",
    ),
    Case(
        id="environ-no-package-for-gpus",
        code=78,
        door=through(_without_pynvml),
        says=("GPUs cannot be counted", "nvidia-ml-py"),
        fix="pip install nvidia-ml-py",
    ),
    show(
        id="environ-more-ranks-than-gpus",
        code=78,
        line=("show", "--procs-per-node", "4"),
        machine={"gpus": fake_gpus(2)},
        says=("4 ranks on this node and only 2 GPUs",),
        fix="start 2 ranks per node",
        row="37",
    ),
    show(
        id="environ-more-ranks-than-instances",
        code=78,
        line=("show", "--procs-per-node", "2"),
        machine={"gpus": ("MIG-made-up-1",), "idle": ("MIG-made-up-2",)},
        says=("2 ranks on this node and one MIG instance", "given MIG-made-up-1, MIG-made-up-2"),
        fix="CUDA_VISIBLE_DEVICES=MIG-...",
    ),
    show(
        id="environ-more-tasks-than-gpus",
        code=78,
        line=("show",),
        environ=_changed(captured("srun-direct/task-0@node01"), {}),
        machine={"gpus": fake_gpus(2)},
        says=("3 ranks on this node and only 2 GPUs",),
        fix="start 2 ranks per node",
        row="37",
    ),
    show(
        id="environ-procs-beside-tasks",
        line=("show", "--device", "cpu", "--procs-per-node", "4"),
        environ=TASK,
        says=("their number is not the requested one", "--procs-per-node 4, and 2 tasks"),
        fix="leave out --procs-per-node",
        row="34",
    ),
    show(
        id="environ-interface",
        line=("run", "--device", "cpu", "--procs-per-node", "2", "true"),
        environ={"ENTRYPOINT_INTERFACE": "wlan99"},
        says=("ENTRYPOINT_INTERFACE=wlan99", "one of lo"),
        fix="unset it",
    ),
    show(
        id="environ-interface-with-a-space",
        line=("run", "--device", "cpu", "--procs-per-node", "2", "true"),
        environ={"ENTRYPOINT_INTERFACE": "lo; touch executed"},
        says=("ENTRYPOINT_INTERFACE=lo; touch executed",),
        fix="unset it",
    ),
]
