"""The job scripts on the login node, where they refuse before anything is queued or submit themselves; sweeps."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from bed import Cluster, Ended, Job
from launching import Launched, launch, run_directly
from runs import TEN_STEPS, Run

NO_DATA = TEN_STEPS.replace("name: synthetic, samples: 960,", "name: folder, root: nowhere,")
SITE = """
export SBATCH_ACCOUNT=${SBATCH_ACCOUNT:-physics}
export SBATCH_PARTITION=${SBATCH_PARTITION:-urgent}
"""
# Broken in the second line; the third has a name of its own, and comes from Windows.
LINES = """train.max_steps=1
optim.speed=1
train.max_steps=2 'optim.args={nesterov: true}' run.name=own\r
"""
REFUSED = {
    "no config": ((), {}, 64, "ERROR[64] no CONFIG"),
    "no image": (("config.yaml",), {"IMAGE": "none.sif"}, 78, "ERROR[78] none.sif cannot be run on ctl"),
    "no config file": (("none.yaml",), {}, 66, "none.yaml"),
    "a wrong key": (("config.yaml", "optim.lrr=1"), {}, 64, "optim.lrr"),
    "no data": (("no-data.yaml",), {}, 66, "nowhere"),
    "not signed": (("config.yaml",), {"REQUIRE_SIGNED": "1"}, 77, "ERROR[77] /shared/train.sif is not signed"),
}


def folder(cluster: Cluster, work: str) -> str:
    """A user's folder with everything that these tests name."""
    files = {"config.yaml": TEN_STEPS, "no-data.yaml": NO_DATA, "lr.txt": LINES, "site.env": SITE}
    for name, text in files.items():
        (cluster.here(work) / name).write_text(text)
    return work


@pytest.mark.parametrize("case", REFUSED)
def test_a_script_refuses_before_anything_is_queued_or_written(cluster: Cluster, work: str, case: str) -> None:
    words, variables, code, text = REFUSED[case]
    before = sorted(cluster.here(folder(cluster, work)).iterdir())
    done = run_directly(cluster, work, "multigpu", *words, **variables)
    assert (done.returncode, text in done.stdout, "fix: " in done.stdout) == (code, True, True), done.stdout
    assert "Submitted" not in done.stdout
    assert sorted(cluster.here(work).iterdir()) == before


def submitted(cluster: Cluster, work: str, script: str, *words: str, **variables: str) -> tuple[dict[str, str], str]:
    """What Slurm says of the held job that a script submitted by itself, and what the script printed."""
    done = run_directly(cluster, folder(cluster, work), script, "--hold", "--gpus-per-node=1", *words, **variables)
    number = re.search(r"Submitted batch job (\d+)", done.stdout)
    assert number, done.stdout
    job = Job(cluster=cluster, number=number[1], cwd=work)
    facts = job.facts()
    job.signal()
    return facts, done.stdout


def test_account_and_partition_come_from_the_site_s_file(cluster: Cluster, work: str) -> None:
    words = ("--nodes=2", "--cpus-per-task=1", "config.yaml")
    facts, output = submitted(cluster, work, "multigpu", *words, SITE_ENV="site.env")
    assert (facts["Account"], facts["Partition"], facts["NumNodes"]) == ("physics", "urgent", "2-2")
    assert "global batch   48" in output


def test_the_command_line_beats_the_shell_and_the_shell_the_site_s_file(cluster: Cluster, work: str) -> None:
    words = ("--nodes=3", "--cpus-per-task=1", "config.yaml")
    variables = {"SITE_ENV": "site.env", "SBATCH_PARTITION": "main"}
    facts, _ = submitted(cluster, work, "multinode", *words, **variables)
    assert (facts["Account"], facts["Partition"], facts["NumNodes"]) == ("physics", "main", "3-3")


def test_the_signature_is_looked_at_in_the_job_too(cluster: Cluster, work: str) -> None:
    words = ("--gpus-per-node=1", "--cpus-per-task=1", "/shared/launch/multigpu.sh", "config.yaml")
    job = cluster.submit(*words, cwd=folder(cluster, work), IMAGE="/shared/train.sif", REQUIRE_SIGNED="1")
    ended = job.wait(100)
    assert (ended.code, "ERROR[77] /shared/train.sif is not signed" in ended.output) == (77, True), ended.output


def test_a_sweep_has_as_many_tasks_as_its_file_has_lines(cluster: Cluster, work: str) -> None:
    folder(cluster, work)
    (cluster.here(work) / "good.txt").write_text("optim.lr=0.1\noptim.lr=0.2\n")
    facts, output = submitted(cluster, work, "sweep", "--cpus-per-task=1", "config.yaml", "good.txt")
    assert facts["ArrayTaskId"] == "1-2"
    assert output.count("global batch   48") == 2


def test_a_sweep_that_is_no_array_names_the_number_of_its_lines(cluster: Cluster, work: str) -> None:
    words = ("--gpus-per-node=1", "--cpus-per-task=1", "/shared/launch/sweep.sh", "config.yaml", "lr.txt")
    ended = cluster.submit(*words, cwd=folder(cluster, work), IMAGE="/shared/train.sif").wait(100)
    assert (ended.code, "fix: sbatch --array=1-3" in ended.output) == (64, True), ended.output


@pytest.fixture(scope="module")
def sweep(cluster: Cluster, place: Callable[[str], str]) -> dict[int, tuple[Ended, Run]]:
    """Three tasks for three lines, in a file whose name has a `=` and, before its last part, a dot."""
    work = folder(cluster, place("sweep"))
    (cluster.here(work) / "v=0.1").mkdir()
    (cluster.here(work) / "v=0.1" / "lr").write_text(LINES)
    first: Launched = launch(cluster, work, "sweep", "--array=1-3", "config.yaml", "v=0.1/lr", "run.seed=3", task="1")
    number = first.job.number.removesuffix("_1")
    jobs = {task: replace(first.job, number=f"{number}_{task}") for task in range(1, 4)}
    names = {1: "lr-1", 2: "lr-2", 3: "own"}
    return {task: (job.wait(280), Run(folder=cluster.here(work) / "runs" / names[task])) for task, job in jobs.items()}


@pytest.mark.parametrize(("task", "steps"), [(1, 1), (3, 2)])
def test_each_task_of_a_sweep_trains_its_own_line(sweep: dict[int, tuple[Ended, Run]], task: int, steps: int) -> None:
    ended, run = sweep[task]
    assert (ended.code, run.committed()) == (0, steps), ended.output
    assert "seed: 3" in (run.folder / "config.yaml").read_text()


def test_a_broken_line_of_a_sweep_ends_its_own_task_only(sweep: dict[int, tuple[Ended, Run]]) -> None:
    ended, run = sweep[2]
    assert (ended.code, "optim.speed" in ended.output, run.folder.exists()) == (64, True, False)
