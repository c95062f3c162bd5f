"""The world that the image sees on a real cluster, in every way a user starts it."""

from __future__ import annotations

import pytest
from bed import Cluster, Ended

SHOW = "apptainer --quiet exec /shared/train.sif entrypoint show --json"
# How it is started: sbatch's options and the script; then the launcher, and for each task
# (rank, local_rank, local_world_size, node_rank, spawn).
TWO_ON_TWO = [(0, 0, 2, 0, 1), (1, 1, 2, 0, 1), (2, 0, 2, 1, 1), (3, 1, 2, 1, 1)]
UNEVEN = [(rank, rank, 4, 0, 1) for rank in range(4)] + [(4, 0, 2, 1, 1), (5, 1, 2, 1, 1), (6, 0, 1, 2, 1)]
WAYS = {
    "task per GPU": ("-N2 --ntasks-per-node=2", f"srun {SHOW}", "slurm-task", TWO_ON_TWO),
    "task per node": (
        "-N3 --ntasks-per-node=1",
        f"srun {SHOW} --procs-per-node 2",
        "slurm-node",
        [(0, 0, 2, 0, 2), (2, 0, 2, 1, 2), (4, 0, 2, 2, 2)],
    ),
    "uneven": ("-N3 -n7", f"srun {SHOW}", "slurm-task", UNEVEN),
    "cyclic": (
        "-N2 --ntasks-per-node=2 -m cyclic",
        f"srun {SHOW}",
        "slurm-task",
        [(0, 0, 2, 0, 1), (1, 0, 2, 1, 1), (2, 1, 2, 0, 1), (3, 1, 2, 1, 1)],
    ),
    "nodes in the user's order": (
        "-N3 --ntasks-per-node=2",
        f"srun -N2 -n4 -w node03,node01 {SHOW}",
        "slurm-task",
        TWO_ON_TWO,
    ),
    "step of one node of the job": ("-N3 -n6", f"srun -N1 -n1 {SHOW}", "slurm-node", [(0, 0, 1, 0, 1)]),
    "heterogeneous job": (
        "-N1 -n1 : -N2 -n4 --ntasks-per-node=2",
        f"srun --het-group=0,1 {SHOW}",
        "slurm-task",
        [(0, 0, 1, 0, 1), (1, 0, 2, 1, 1), (2, 1, 2, 1, 1), (3, 0, 2, 2, 1), (4, 1, 2, 2, 1)],
    ),
    "Open MPI": ("-N2 --ntasks-per-node=2", f"mpirun {SHOW}", "openmpi", TWO_ON_TWO),
    "PMI-2": ("-N2 --ntasks-per-node=2", f"srun --mpi=pmi2 {SHOW}", "slurm-task", TWO_ON_TWO),
    "torchrun without srun": (
        "-N1",
        SHOW.replace("entrypoint", "torchrun --nproc-per-node 2 --no-python entrypoint"),
        "torchrun",
        TWO_ON_TWO[:2],
    ),
    "torchrun in a task per node": (
        "-N2 --ntasks-per-node=1 -c2",
        "export MASTER=$(scontrol show hostnames | head -n 1); srun "
        + SHOW.replace(
            "entrypoint",
            "torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint $MASTER --no-python entrypoint",
        ),
        "torchrun",
        TWO_ON_TWO,
    ),
    "batch shell on one node": ("-N1", SHOW, "local", [(0, 0, 1, 0, 1)]),
}


def tasks(ended: Ended) -> list[tuple[int, ...]]:
    """One line for each task that told its world, by rank."""
    nouns = ("rank", "local_rank", "local_world_size", "node_rank")
    return sorted((*(told["world"][noun] for noun in nouns), told["spawn"]) for told in ended.objects())


@pytest.mark.parametrize("way", WAYS)
def test_each_task_knows_its_place(cluster: Cluster, work: str, way: str) -> None:
    options, script, launcher, places = WAYS[way]
    ended = cluster.submit(*options.split(), script=script, cwd=work, ENTRYPOINT_DEVICE="cpu").wait()
    assert (ended.code, tasks(ended)) == (0, places), ended.output
    assert {told["launcher"] for told in ended.objects()} == {launcher}
    assert len({(told["world"]["master_addr"], told["world"]["master_port"]) for told in ended.objects()}) == 1


def test_array_tasks_are_jobs_of_their_own(cluster: Cluster, work: str) -> None:
    job = cluster.submit(
        "-N2", "--ntasks-per-node=1", "--array=1-2", "--output=%a.out", "--wait",
        script=f"srun {SHOW}", cwd=work, ENTRYPOINT_DEVICE="cpu",
    )  # fmt: skip
    outputs = [(cluster.shared / work.removeprefix("/shared/") / f"{index}.out").read_text() for index in (1, 2)]
    told = [Ended(state="", code=0, output=output).objects() for output in outputs]
    assert job.number
    assert [[each["world"]["world_size"] for each in one] for one in told] == [[2, 2], [2, 2]]
    assert told[0][0]["world"]["master_port"] != told[1][0]["world"]["master_port"]


# fmt: off
REFUSED = {
    "batch shell on two nodes": ("sbatch --wait -N2 --output=job.out --wrap '{show}'", 76, "srun"),
    "batch shell with tasks": ("sbatch --wait -n4 --output=job.out --wrap '{show}'", 76, "srun"),
    "salloc's shell with four tasks": ("salloc -Q -n4 {show} >job.out", 76, "srun"),
    "salloc's shell on a login node": ("salloc -Q -N1 {show} >job.out", 76, "srun"),
    "shell of an interactive step": ("script -qec 'salloc -N2 -n4' /dev/null <<<'{show} >job.out; exit'", 76, "srun"),
    "GPUs given, --nv forgotten": ("sbatch --wait -n1 --gpus=1 --output=job.out --wrap 'unset ENTRYPOINT_DEVICE; {show}'", 78, "--nv"),  # noqa: E501
    "--cleanenv": ("sbatch --wait -N2 --ntasks-per-node=1 --output=job.out --wrap 'srun {cleanenv}'", 76, "--cleanenv"),
}
# fmt: on


@pytest.mark.parametrize("way", REFUSED)
def test_what_would_hang_or_train_alone_is_refused(cluster: Cluster, work: str, way: str) -> None:
    command, code, fix = REFUSED[way]
    command = command.format(show=SHOW, cleanenv=SHOW.replace("exec", "exec --cleanenv"))
    done = cluster.login("env", "ENTRYPOINT_DEVICE=cpu", "bash", "-c", command, cwd=work)
    output = (cluster.shared / work.removeprefix("/shared/") / "job.out").read_text()
    assert done.returncode == code, done.stdout + output
    errors = [told["error"] for told in Ended(state="", code=0, output=output).objects()]
    assert {error["code"] for error in errors} == {code}
    assert all(fix in error["fix"] + error["what"] for error in errors)
