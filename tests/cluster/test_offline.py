"""No internet on the compute nodes, which is the rule: the error says what to type on the login node."""

from __future__ import annotations

import pytest
from bed import Cluster
from runs import TEN_STEPS, Run

TRAIN = "apptainer --quiet exec /shared/train.sif train --config cfg.yaml"
OFFLINE = "data.name=mnist data.root=data data.download=true"


@pytest.fixture
def project(cluster: Cluster, work: str) -> str:
    """A folder with a configuration."""
    (cluster.here(work) / "cfg.yaml").write_text(TEN_STEPS)
    return work


def test_a_node_without_internet_names_the_command_for_the_login_node(cluster: Cluster, project: str) -> None:
    srun = f"srun -N2 --kill-on-bad-exit=1 {TRAIN} {OFFLINE} data.loader=auto"
    done = cluster.login("bash", "-c", srun, cwd=project)
    assert "ERROR[66] train-images-idx3-ubyte.gz cannot be fetched for data.name=mnist" in done.stdout
    assert "its name cannot be resolved: no network, or no such host" in done.stdout
    command = f"`train data fetch data.name=mnist data.root={project}/data`"
    assert f"fix: where there is a network (on a cluster: its login node) run {command}; or put" in done.stdout
    assert "Exited with exit code 66" in done.stdout  # srun's own number may be that of a task that it ended


def test_without_download_the_same_command_is_named(cluster: Cluster, project: str) -> None:
    done = cluster.login("srun", *f"{TRAIN} data.name=mnist data.root=data".split(), cwd=project)
    assert "ERROR[66] data.name mnist: its files are not in data.root" in done.stdout
    assert "fix: run `train data fetch data.name=mnist data.root=data` where there is a network" in done.stdout
    assert done.returncode == 66


def test_a_name_server_that_is_out_of_reach_does_not_keep_a_node_from_training(cluster: Cluster, project: str) -> None:
    (cluster.here(project) / "resolv.conf").write_text("nameserver 10.77.0.99\n")
    (cluster.here(project) / "hosts").write_text("127.0.0.1 localhost\n")
    binds = "--bind $PWD/resolv.conf:/etc/resolv.conf --bind $PWD/hosts:/etc/hosts"
    srun = f"OMP_NUM_THREADS=1 srun -N1 -n2 {TRAIN.replace('exec', f'exec {binds}')}"
    done = cluster.login("bash", "-c", srun, cwd=project, seconds=300)
    assert (done.returncode, Run(folder=cluster.here(project) / "runs" / "run").committed()) == (0, 10), done.stdout


def test_several_nodes_whose_names_do_not_resolve_are_told_to_use_an_address(cluster: Cluster, project: str) -> None:
    (cluster.here(project) / "hosts").write_text("127.0.0.1 localhost\n")
    srun = f"srun -N2 {TRAIN.replace('exec', 'exec --bind $PWD/hosts:/etc/hosts')}"
    done = cluster.login("bash", "-c", srun, cwd=project)
    assert "ERROR[69] the master's host name 'node01' does not resolve on node02" in done.stdout
    assert "fix: set MASTER_ADDR to the IP address of node01" in done.stdout
    assert done.returncode == 69
