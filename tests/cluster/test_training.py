"""Training in the image on a real cluster: however it is started, the weights are those of one process."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from bed import Cluster, Ended, Job
from runs import TEN_STEPS, Run

TRAIN = "apptainer --quiet exec /shared/train.sif train --config config.yaml"
TORCHRUN = TRAIN.replace("sif train", "sif torchrun --nproc-per-node 2 -m train")
# Slurm only starts mpiexec's helpers on the nodes: a rank sees what it would see without Slurm.
WITHOUT_SLURM = "bash -c 'unset ${!SLURM_@}; exec \"$@\"' bash"
# sbatch's words; the batch script, if not among them; ranks of a task that starts them; launcher, ranks, nodes.
WAYS = {
    "one GPU": ("--gpus-per-node=1 multigpu.sh", None, None, ("slurm-node", 1, 1)),
    "multigpu.sh": ("multigpu.sh", None, "2", ("slurm-node", 2, 1)),
    "one task per GPU": ("--ntasks-per-node=2 multigpu.sh", None, None, ("slurm-task", 2, 1)),
    "two nodes": ("--nodes=2 --export=SITE_ENV multigpu.sh", None, None, ("slurm-node", 4, 2)),
    "one task per GPU of two nodes": ("--nodes=2 --ntasks-per-node=2 multigpu.sh", None, None, ("slurm-task", 4, 2)),
    "multinode_srun.sh": ("--ntasks-per-node=2 multinode_srun.sh", None, None, ("slurm-task", 4, 2)),
    "torchrun.sh": ("--gpus-per-node=2 torchrun.sh", None, None, ("torchrun", 4, 2)),
    "torchrun without srun": ("-N1 --gpus-per-node=2", TORCHRUN, None, ("torchrun", 2, 1)),
    "mpirun": ("-N2 --ntasks-per-node=2", f"mpirun {TRAIN}", None, ("openmpi", 4, 2)),
    "mpirun outside Slurm": ("-N2 --ntasks-per-node=2", f"mpirun {WITHOUT_SLURM} {TRAIN}", None, ("openmpi", 4, 2)),
    "mpiexec of MPICH": (
        *("-N2 --ntasks-per-node=2", f"mpiexec.hydra -n 4 -ppn 2 {WITHOUT_SLURM} {TRAIN}", None),
        ("hydra", 4, 2),
    ),
    "mpiexec of MPICH, one rank per node": (
        *("-N2 --ntasks-per-node=1", f"mpiexec.hydra -n 2 -ppn 1 {WITHOUT_SLURM} {TRAIN}", None),
        ("hydra", 2, 2),
    ),
}
SETTINGS = """
export SBATCH_PARTITION=urgent SBATCH_ACCOUNT=physics
export IMAGE=/shared/train.sif OMP_NUM_THREADS=1 ENTRYPOINT_PROCS_PER_NODE=2
. /shared/launch/fabric/ethernet.env
"""


class Started:
    """A job in a folder of its own, and the run that it makes."""

    def __init__(self, cluster: Cluster, folder: str, words: str, script: str | None, **variables: str) -> None:
        self.run = Run(folder=cluster.shared / folder.removeprefix("/shared/") / "runs" / "run")
        (self.run.folder.parents[1] / "config.yaml").write_text(TEN_STEPS)
        options = [f"/shared/launch/{word}" if word.endswith(".sh") else word for word in words.split()]
        tail = [] if script else ["config.yaml"]
        self.job: Job = cluster.submit(
            "--cpus-per-task=1", *options, *tail, script=script, cwd=folder, IMAGE="/shared/train.sif",
            OMP_NUM_THREADS="1", **variables,
        )  # fmt: skip

    def ended(self) -> Ended:
        """How it ended, which must be well."""
        ended = self.job.wait(600)  # a busy machine; the queue may start it last
        assert ended.code == 0, ended.output
        return ended


@pytest.fixture(scope="module")
def started(cluster: Cluster, place: Callable[[str], str]) -> dict[str, Started]:
    """All ways at once: the queue decides when."""
    (cluster.shared / "site.env").write_text(SETTINGS)
    jobs = {}
    for way, (words, script, ranks, _) in WAYS.items():
        variables = {"ENTRYPOINT_PROCS_PER_NODE": ranks} if ranks else {}
        variables |= {"SITE_ENV": "/shared/site.env"} if way == "two nodes" else {}
        jobs[way] = Started(cluster, place(way.replace(" ", "-")), words, script, **variables)
    once = f"srun {TRAIN} train.max_steps=1"
    return jobs | {"one step": Started(cluster, place("one-step"), "-n1", once)}


@pytest.mark.parametrize("way", WAYS)
def test_however_it_is_started_the_weights_are_those_of_one_process(started: dict[str, Started], way: str) -> None:
    alone, many = started["one GPU"], started[way]
    assert [alone.ended().state, many.ended().state] == ["COMPLETED"] * 2
    one, other = alone.run.weights(10), many.run.weights(10)
    assert one.keys() == other.keys()
    for name, weights in one.items():
        np.testing.assert_allclose(other[name], weights, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("way", WAYS)
def test_each_way_is_the_world_that_it_says(started: dict[str, Started], way: str) -> None:
    started[way].ended()
    told = started[way].run.record
    assert (told["launcher"], told["world"]["world_size"], told["world"]["num_nodes"]) == WAYS[way][3]


def test_ten_steps_move_the_weights(started: dict[str, Started]) -> None:
    """Or the comparison above would hold for a training that does nothing."""
    started["one step"].ended()
    started["one GPU"].ended()
    first, tenth = started["one step"].run.weights(1), started["one GPU"].run.weights(10)
    assert any(np.abs(first[name] - weights).max() > 1e-3 for name, weights in tenth.items())


def test_the_image_s_digest_is_in_the_log_and_in_the_record(cluster: Cluster, started: dict[str, Started]) -> None:
    digest = "sha256:" + cluster.login("sha256sum", "train.sif", seconds=120).stdout.split()[0]
    assert f"image /shared/train.sif {digest}" in started["multigpu.sh"].ended().output
    assert started["multigpu.sh"].run.record["image"]["digest"] == digest


def test_a_job_reads_the_site_s_settings_too(started: dict[str, Started]) -> None:
    """Plain sbatch, which passes nothing else on: the fabric is the job's, account and partition come too late."""
    started["two nodes"].ended()
    assert started["two nodes"].run.record["variables"]["acting"]["NCCL_NET"] == "Socket"
    assert started["two nodes"].job.facts()["Partition"] == "main"
