"""A shell on a node that `salloc` and `srun --pty` give: `train` in it takes that node, not the whole job."""

from __future__ import annotations

import re

from bed import Cluster
from runs import TEN_STEPS, Run

CHECK = "apptainer --quiet exec /shared/train.sif train check --device cpu"


def test_an_interactive_task_is_a_world_of_its_own_node(cluster: Cluster, work: str) -> None:
    shell = f"salloc -Q -N2 --ntasks-per-node=2 srun -N1 -n1 --pty bash -c '{CHECK} --procs-per-node 2'"
    done = cluster.login("script", "-qec", shell, "/dev/null", cwd=work)
    assert re.search(r"launcher +slurm-node", done.stdout)
    assert re.search(r"world +2 ranks on 1 node, this task starts 2", done.stdout)


def test_a_job_script_typed_in_the_shell_of_srun_trains_there(cluster: Cluster, work: str) -> None:
    """Its own srun does not wait for the step of the shell. tests/cluster/test_inherited.py has the other shells."""
    (cluster.here(work) / "config.yaml").write_text(TEN_STEPS)
    variables = "IMAGE=/shared/train.sif OMP_NUM_THREADS=1"
    typed = f"srun -n1 -c2 --gpus=1 --pty env {variables} /shared/launch/multigpu.sh config.yaml"
    done = cluster.login("script", "-qec", typed, "/dev/null", cwd=work, seconds=200)
    assert done.returncode == 0, done.stdout
    assert Run(folder=cluster.here(work) / "runs" / "run").committed() == 10
