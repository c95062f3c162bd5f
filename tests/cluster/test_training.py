"""Training in the image on a real cluster: however it is started, the weights are those of one process."""

from __future__ import annotations

import numpy as np
import pytest
from bed import Cluster
from runs import TEN_STEPS, Run

TRAIN = "apptainer --quiet exec /shared/train.sif train --config config.yaml"
MULTIGPU = "--cpus-per-task=4 --gpus-per-node=4 /shared/launch/multigpu.sh config.yaml"
MULTINODE = "--nodes=3 --cpus-per-task=4 --gpus-per-node=4 /shared/launch/multinode.sh config.yaml"
TORCHRUN = TRAIN.replace("sif train", "sif torchrun --nproc-per-node 2 -m train")
# sbatch's words, the batch script (None: it is among the words), variables, and the world: launcher, ranks, nodes.
WAYS = {
    "sbatch launch/multigpu.sh": (MULTIGPU, None, {"ENTRYPOINT_PROCS_PER_NODE": "2"}, ("slurm-node", 2, 1)),
    "sbatch launch/multinode.sh": (MULTINODE, None, {"ENTRYPOINT_PROCS_PER_NODE": "2"}, ("slurm-node", 6, 3)),
    "a task per GPU by srun": (
        "-N3 --ntasks-per-node=2 --gpus-per-node=2",
        f"srun --kill-on-bad-exit=1 {TRAIN}",
        {},
        ("slurm-task", 6, 3),
    ),
    "torchrun without srun": ("-N1 --gpus-per-node=2", TORCHRUN, {}, ("torchrun", 2, 1)),
    "mpirun": ("-N2 --ntasks-per-node=2", f"mpirun {TRAIN}", {}, ("openmpi", 4, 2)),
}


def run_in(cluster: Cluster, work: str) -> Run:
    """The run that a job in `work` makes; its configuration is written there."""
    place = cluster.shared / work.removeprefix("/shared/")
    (place / "config.yaml").write_text(TEN_STEPS)
    return Run(folder=place / "runs" / "run")


@pytest.fixture(scope="module")
def alone(cluster: Cluster) -> Run:
    """The same training by one process."""
    (cluster.shared / "alone").mkdir()
    (cluster.shared / "alone").chmod(0o777)
    run = run_in(cluster, "/shared/alone")
    ended = cluster.submit("-n1", script=f"srun {TRAIN}", cwd="/shared/alone", OMP_NUM_THREADS="1").wait()
    if ended.code:
        raise RuntimeError(ended.output)
    return run


@pytest.mark.parametrize("way", WAYS)
def test_however_it_is_started_the_weights_are_those_of_one_process(
    cluster: Cluster, work: str, alone: Run, way: str
) -> None:
    words, script, variables, world = WAYS[way]
    run = run_in(cluster, work)
    job = cluster.submit(
        *words.split(), script=script, cwd=work, IMAGE="/shared/train.sif", OMP_NUM_THREADS="1", **variables
    )
    ended = job.wait(240)
    assert ended.code == 0, ended.output
    told = run.record
    assert (told["launcher"], told["world"]["world_size"], told["world"]["num_nodes"]) == world
    one, many = alone.weights(10), run.weights(10)
    assert one.keys() == many.keys()
    for name, weights in one.items():
        np.testing.assert_allclose(many[name], weights, rtol=1e-5, atol=1e-6, err_msg=name)


def test_ten_steps_move_the_weights(cluster: Cluster, alone: Run) -> None:
    """Or the comparison above would hold for a training that does nothing."""
    first = cluster.shared / "first"
    first.mkdir()
    first.chmod(0o777)
    run = run_in(cluster, "/shared/first")
    ended = cluster.submit(
        "-n1", script=f"srun {TRAIN} train.max_steps=1", cwd="/shared/first", OMP_NUM_THREADS="1"
    ).wait()
    assert ended.code == 0, ended.output
    assert any(np.abs(run.weights(1)[name] - weights).max() > 1e-3 for name, weights in alone.weights(10).items())
