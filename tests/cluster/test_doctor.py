"""`entrypoint doctor` in jobs of a real cluster: on good nodes, on one whose link is cut, and before a training."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from bed import Cluster, until
from runs import TEN_STEPS

IMAGE = "apptainer --quiet exec /shared/train.sif"
DOCTOR = f"{IMAGE} entrypoint doctor --device cpu"
TIMED = 'TIMEFORMAT="took %U %S"; time "$@"'  # its own; checks that wait have 8 seconds besides
Found = dict[str, dict[str, Any]]
# Each task says that it is there, waits until the test has cut the link, and leaves its findings in a file.
WAITS = f"""
touch ready-$SLURM_PROCID
until [[ -e go ]]; do sleep 0.2; done
{DOCTOR} --json --output . >doctor-$SLURM_PROCID.json || true
touch done-$SLURM_PROCID
"""


def by_name(said: str) -> Found:
    """The findings of --json."""
    return {finding["name"]: finding for finding in json.loads(said)["findings"]}


@pytest.fixture
def on_two_nodes(cluster: Cluster, work: str) -> list[Found]:
    """What the doctor says in each task of a job on two nodes."""
    done = cluster.login("srun", "-N2", "--ntasks-per-node=1", *DOCTOR.split(), "--json", "--output", work, cwd=work)
    assert done.returncode == 0, done.stdout
    return [by_name(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_on_two_good_nodes_nothing_would_break_a_training(on_two_nodes: list[Found]) -> None:
    assert [[one["name"] for one in found.values() if one["state"] == "fail"] for found in on_two_nodes] == [[], []]
    first, second = sorted(on_two_nodes, key=lambda found: "way" in found)
    assert first["plan"]["text"].endswith("node 0 of 2")
    assert (first["port"]["state"], second["way"]["state"]) == ("ok", "ok")
    assert re.fullmatch(r"node0\d is 10\.77\.0\.1\d, through eth0", second["master"]["text"])


def test_in_the_image_it_computes_for_less_than_two_seconds(cluster: Cluster, work: str) -> None:
    done = cluster.login(*IMAGE.split(), "bash", "-c", TIMED, "bash", *DOCTOR.split()[4:], cwd=work)
    assert (done.returncode, "Traceback" in done.stdout) == (0, False), done.stdout
    assert sum(map(float, done.stdout.rpartition("took ")[2].split())) < 2


def test_an_output_folder_that_is_not_bound_is_named(cluster: Cluster, work: str) -> None:
    done = cluster.login(*DOCTOR.split(), "--json", "--output", "/project/runs", cwd=work)
    found = by_name(done.stdout)["output"]
    assert (done.returncode, found["state"]) == (78, "fail")
    assert "/project/runs is not visible inside the container" in found["text"]
    assert "--bind /project/runs" in found["fix"]


@pytest.mark.parametrize(
    ("tasks", "options", "said"),
    [("-N1 -n1", ["--procs-per-node", "2"], "2 ranks over gloo (TCP on lo)"), ("-N2 -n2", [], "(TCP on eth0)")],
    ids=["one node", "two nodes"],
)
def test_all_ranks_of_a_job_add_up_numbers(
    cluster: Cluster, work: str, tasks: str, options: list[str], said: str
) -> None:
    words = ["srun", *tasks.split(), *DOCTOR.split(), "--full", "--output", work, *options]
    done = cluster.login(*words, cwd=work, seconds=200)
    assert done.returncode == 0, done.stdout
    assert f"{said}: every sum right" in done.stdout


@pytest.fixture
def cut_off(cluster: Cluster, work: str) -> Iterator[list[Found]]:
    """What the doctor says in the two tasks of a job once the second node's link is cut."""
    here = cluster.here(work)
    (here / "waits.sh").write_text(WAITS)
    job = cluster.submit("-N2", "--ntasks-per-node=1", script="srun bash waits.sh", cwd=work)
    nodes = ["node01", "node02"]
    try:
        until(lambda: len(list(here.glob("ready-*"))) == 2, 120, lambda: job.output)
        nodes = cluster.login("scontrol", "show", "hostnames", job.facts()["NodeList"]).stdout.split()
        cluster.cut(nodes[1])
        (here / "go").touch()
        until(lambda: len(list(here.glob("done-*"))) == 2, 120, lambda: job.output)
        yield [by_name((here / f"doctor-{rank}.json").read_text()) for rank in (0, 1)]
    finally:
        job.signal("--quiet", "--full", "-s", "KILL")
        cluster.heal(*nodes)


def test_a_node_whose_link_is_cut_names_the_host_that_it_does_not_reach(cut_off: list[Found]) -> None:
    first, second = cut_off
    assert first["port"]["state"] == "ok"
    assert (second["way"]["state"], "10.77.0.1" in second["way"]["text"]) == ("fail", True)
    assert second["way"]["fix"]


def test_a_training_says_what_is_not_ok_on_another_node_once_and_with_its_name(cluster: Cluster, work: str) -> None:
    (cluster.here(work) / "config.yaml").write_text(TEN_STEPS)
    # Two tasks on each node, of which the second node allows few open files.
    limited = f'[[ $SLURM_NODEID == 0 ]] || ulimit -n 512; exec {IMAGE} train --config config.yaml "$@"'
    (cluster.here(work) / "limited.sh").write_text(limited)
    words = ["srun", "-N2", "--ntasks-per-node=2", "bash", "limited.sh"]
    done = cluster.login("OMP_NUM_THREADS=1", *words, cwd=work, seconds=300)
    assert done.returncode == 0, done.stdout
    told = [line for line in done.stdout.splitlines() if "open files" in line]
    assert len(told) == 1
    assert re.match(r"warn  node0\d: open files  512 open files for each process: ", told[0])
