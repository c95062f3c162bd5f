"""The test cluster itself: it is what the other tests say of it, and it always ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bed import Cluster, running, until

# Without "job 83 queued and waiting for resources", which it says while the job before still leaves its nodes.
SRUN = ("srun", "--quiet")
HOLD = """
import sys, time
sys.path.insert(0, sys.argv[1])
from bed import running
with running(NODES="1", GPUS="0") as cluster:
    print(cluster.folder, flush=True)
    time.sleep(600)
"""


def test_tasks_run_on_different_hosts_as_an_unprivileged_user(nodes: Cluster) -> None:
    told = nodes.login(*SRUN, "-N3", "bash", "-c", "echo $(hostname) $(id -u)").stdout
    assert sorted(told.splitlines()) == ["node01 1001", "node02 1001", "node03 1001"]


def test_nodes_have_addresses_of_their_own_and_reach_each_other(nodes: Cluster) -> None:
    told = nodes.login(*SRUN, "-N1", "-w", "node02", "bash", "-c", "hostname -I; getent hosts node03").stdout
    assert told.split() == ["10.77.0.12", "10.77.0.13", "node03"]


def test_nodes_share_one_folder_and_nothing_else(nodes: Cluster, work: str) -> None:
    nodes.login(*SRUN, "-N3", "bash", "-c", f"hostname | tee /tmp/mine {work}/$(hostname) >/tmp/$(hostname)")
    here = nodes.login(*SRUN, "-N1", "-w", "node02", "bash", "-c", f"ls {work}; ls /tmp/node*; cat /tmp/mine").stdout
    assert here.split() == ["node01", "node02", "node03", "/tmp/node02", "node02"]


def test_a_node_sees_nothing_of_the_machine(nodes: Cluster) -> None:
    words = nodes.login(*SRUN, "-N1", "bash", "-c", "env; cat /proc/mounts; ls /sys/class/net").stdout
    assert os.uname().nodename not in words
    assert "eth0" in words


def test_a_job_tells_its_exit_code(nodes: Cluster, work: str) -> None:
    ended = nodes.submit(script="echo hello; exit 75", cwd=work).wait()
    assert (ended.state, ended.code, ended.output) == ("FAILED", 75, "hello\n")


def test_two_clusters_do_not_meet(nodes: Cluster) -> None:
    with running(NODES="1", GPUS="0") as other:
        assert other.login(*SRUN, "-N1", "ls", "/shared").stdout == ""
        assert nodes.login("sinfo", "-h", "-o", "%D").stdout.strip() == "3"


def test_a_cluster_ends_with_its_owner_even_after_kill_9(provisioned: None) -> None:
    support = Path(__file__).parents[1] / "support"
    with subprocess.Popen([sys.executable, "-c", HOLD, support], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        folder = Path(owner.stdout.readline().strip())
        was_up = (folder / "fabric").exists()
        owner.kill()
    until(lambda: not folder.exists(), 30, lambda: f"{folder} is still there")
    assert was_up
