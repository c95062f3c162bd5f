"""The README's promised commands for a cluster, as a user types them beside train.sif, launch/ and cfg.yaml."""

from __future__ import annotations

import pytest
from bed import Cluster
from runs import TEN_STEPS, Run

pytestmark = pytest.mark.every_run


@pytest.fixture
def project(cluster: Cluster, work: str) -> str:
    """The user's folder."""
    for name in ("train.sif", "launch"):
        (cluster.here(work) / name).symlink_to(f"/shared/{name}")
    (cluster.here(work) / "cfg.yaml").write_text(TEN_STEPS)
    return work


def trained(cluster: Cluster, project: str) -> int | None:
    """The step that the run in the user's folder has reached and kept."""
    return Run(folder=cluster.here(project) / "runs" / "run").committed()


def test_apptainer_exec_nv_train_sif_train_config_cfg_yaml_less_the_gpu(cluster: Cluster, project: str) -> None:
    command = "apptainer exec --nv train.sif train --config cfg.yaml"
    done = cluster.login("bash", "-c", command, cwd=project, seconds=300)
    assert (done.returncode, trained(cluster, project)) == (0, 10), done.stdout


def test_sbatch_launch_multigpu_sh_cfg_yaml_less_the_gpus_with_4_cpus(cluster: Cluster, project: str) -> None:
    ended = cluster.submit("--cpus-per-task=4", "launch/multigpu.sh", "cfg.yaml", cwd=project).wait(300)
    assert (ended.code, trained(cluster, project)) == (0, 10), ended.output
