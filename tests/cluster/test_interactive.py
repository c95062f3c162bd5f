"""A shell on a node that `salloc` and `srun --pty` give: `train` in it takes that node, not the whole job."""

from __future__ import annotations

import re

from bed import Cluster

CHECK = "apptainer --quiet exec /shared/train.sif train check --device cpu"


def test_an_interactive_task_is_a_world_of_its_own_node(cluster: Cluster, work: str) -> None:
    shell = f"salloc -Q -N2 --ntasks-per-node=2 srun -N1 -n1 --pty bash -c '{CHECK} --procs-per-node 2'"
    done = cluster.login("script", "-qec", shell, "/dev/null", cwd=work)
    assert re.search(r"launcher +slurm-node", done.stdout)
    assert re.search(r"world +2 ranks on 1 node, this task starts 2", done.stdout)
