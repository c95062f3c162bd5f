"""Grid Engine and HTCondor on the cluster's nodes: launch/'s scripts train on two nodes, and go on after a stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from bed import Cluster, until
from machines import REPOSITORY
from runs import ENDLESS, TEN_STEPS, Run

HERE = Path(__file__).parent
NODES = ("node01", "node02", "node03")
TRAINS_S = 300  # a busy machine
# Debian's Open MPI was built without Grid Engine's list of hosts, and binds each rank to a core of its own.
OPEN_MPI = """
awk '{print $1 " slots=" $2}' "$PE_HOSTFILE" >"$TMPDIR/hosts"
export PRTE_MCA_prte_default_hostfile=$TMPDIR/hosts PRTE_MCA_hwloc_default_binding_policy=none
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A script of launch/ with what a site or a user changes in it, and how its jobs are started, counted and removed.

    Attributes:
        submit, jobs, remove: the user's commands. `jobs` prints nothing when there are none.
        seen: launcher, ranks and nodes in the run's record.
    """

    scheduler: str
    script: str
    edits: Mapping[str, str] = field(default_factory=dict)
    submit: str
    jobs: str
    remove: str
    seen: tuple[str, int, int]


QSUB = "qsub -v CONFIG=cfg.yaml,OMP_NUM_THREADS=1 -pe mpi 4"
WAYS = {
    "Grid Engine, Open MPI": Way(
        scheduler="gridengine",
        script="gridengine.sh",
        edits={"# module load apptainer openmpi": OPEN_MPI},
        submit=QSUB,
        jobs="qstat",
        remove="qdel -u user",
        seen=("openmpi", 4, 2),
    ),
    "Grid Engine, MPICH": Way(
        scheduler="gridengine",
        script="gridengine.sh",
        edits={"mpirun ": "mpiexec.hydra "},
        submit=QSUB,
        jobs="qstat",
        remove="qdel -u user",
        seen=("hydra", 4, 2),
    ),
    "HTCondor": Way(
        scheduler="htcondor",
        script="htcondor.sub",
        edits={"OMP_NUM_THREADS=8": "OMP_NUM_THREADS=1"},
        submit="condor_submit",
        jobs="condor_q -nobatch -autoformat ClusterId",
        remove="condor_rm -all",
        seen=("htcondor", 2, 2),
    ),
}
Submit = Callable[[Way, str], Run]


@pytest.fixture(scope="module")
def schedulers(cluster: Cluster) -> Iterator[Cluster]:
    """The nodes with both schedulers, until the end of this file's tests."""
    for name in ("gridengine", "htcondor"):
        text = (HERE / name).read_text()
        for node, *others in (("ctl", *NODES), *((node,) for node in NODES)):
            done = cluster.root(node, "bash", "-c", text, name, node, *others)
            assert done.returncode == 0, done.stdout
    yield cluster
    for node in ("ctl", *NODES):
        cluster.root(node, "pkill", "-KILL", "^(sge_|condor_)")


@pytest.fixture
def submit(schedulers: Cluster, work: str) -> Iterator[Submit]:
    """Submits a way's script in the test's own folder, with a configuration; no job outlives the test."""
    submitted: list[Way] = []

    def submit(way: Way, config: str) -> Run:
        text = (REPOSITORY / "launch" / way.script).read_text()
        for old, new in way.edits.items():
            assert old in text
            text = text.replace(old, new)
        folder = schedulers.here(work)
        (folder / way.script).write_text(text)
        (folder / "cfg.yaml").write_text(config)
        (folder / "train.sif").symlink_to("/shared/train.sif")
        submitted.append(way)
        arguments = ["CONFIG=cfg.yaml"] if way.script.endswith(".sub") else []
        done = users(schedulers, f"{way.submit} {way.script}", *arguments, cwd=work)
        assert done, "nothing was submitted"
        return Run(folder=folder / "runs" / "run")

    yield submit
    for way in submitted:
        users(schedulers, way.remove, cwd=work)
        until(lambda way=way: not users(schedulers, way.jobs, cwd=work), 90, lambda: output(schedulers, work))


def users(cluster: Cluster, command: str, *words: str, cwd: str) -> str:
    """What one of the user's commands prints."""
    done = cluster.login("env", "SGE_ROOT=/var/lib/gridengine", *command.split(), *words, cwd=cwd, seconds=60)
    return done.stdout.strip()


def output(cluster: Cluster, work: str) -> str:
    """What the jobs in a folder have printed."""
    files = [*cluster.here(work).glob("train.o*"), *cluster.here(work).glob("train-*")]
    return "\n".join(f"{path.name}:\n{path.read_text(errors='replace')[-4000:]}" for path in files)


@pytest.fixture(scope="module")
def alone(cluster: Cluster, place: Callable[[str], str]) -> dict[str, np.ndarray]:
    """The weights of one process after ten steps."""
    work = place("alone")
    (cluster.here(work) / "cfg.yaml").write_text(TEN_STEPS)
    words = ["apptainer", "exec", "/shared/train.sif", "train", "--config", "cfg.yaml"]
    done = cluster.login("env", "OMP_NUM_THREADS=1", *words, cwd=work, seconds=TRAINS_S)
    assert done.returncode == 0, done.stdout
    return Run(folder=cluster.here(work) / "runs" / "run").weights(10)


@pytest.mark.parametrize("name", WAYS)
def test_its_script_trains_on_two_nodes_to_the_weights_of_one_process(
    schedulers: Cluster, work: str, submit: Submit, alone: dict[str, np.ndarray], name: str
) -> None:
    way = WAYS[name]
    run = submit(way, TEN_STEPS)
    until(lambda: not users(schedulers, way.jobs, cwd=work), TRAINS_S, lambda: output(schedulers, work))
    assert run.committed() == 10, output(schedulers, work)
    world = run.record["world"]
    assert (run.record["launcher"], world["world_size"], world["num_nodes"]) == way.seen
    for part, weights in run.weights(10).items():
        np.testing.assert_allclose(weights, alone[part], rtol=1e-5, atol=1e-6, err_msg=part)


@pytest.mark.parametrize("name", WAYS)
def test_a_signal_15_ends_it_with_75_and_the_scheduler_starts_it_again(
    schedulers: Cluster, work: str, submit: Submit, name: str
) -> None:
    run = submit(WAYS[name], ENDLESS)
    until(lambda: len(run.logged()) > 2, TRAINS_S, lambda: output(schedulers, work))
    told = [schedulers.root(node, "pkill", "-TERM", "-f", "m train --config").returncode for node in NODES[::-1]]
    assert 0 in told
    until(lambda: run.ending is not None, 60, lambda: output(schedulers, work))
    assert run.ending is not None
    assert run.ending.code == 75, output(schedulers, work)
    stopped_at = run.committed()
    until(lambda: run.logged()[-1] > (stopped_at or 0) + 1, TRAINS_S, lambda: output(schedulers, work))
    assert run.logged() == list(range(1, run.logged()[-1] + 1))
