"""The job scripts run directly: they refuse before anything is queued, or submit themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from bed import Cluster, Ended
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
    "no image": (("config.yaml",), {"IMAGE": "none.sif"}, 66, "ERROR[66] no image at none.sif"),
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


def test_account_and_partition_come_from_the_site_s_file(cluster: Cluster, work: str) -> None:
    one = launch(cluster, folder(cluster, work), "multinode", "--hold", "config.yaml", SITE_ENV="site.env")
    facts = one.job.facts()
    one.job.signal()
    assert (facts["Account"], facts["Partition"], facts["NumNodes"]) == ("physics", "urgent", "2-2")
    assert "global batch   48" in one.said


def test_the_command_line_beats_the_shell_and_the_shell_the_site_s_file(cluster: Cluster, work: str) -> None:
    words = ("--hold", "--nodes=3", "config.yaml")
    variables = {"SITE_ENV": "site.env", "SBATCH_PARTITION": "main"}
    one = launch(cluster, folder(cluster, work), "multinode", *words, **variables)
    facts = one.job.facts()
    one.job.signal()
    assert (facts["Account"], facts["Partition"], facts["NumNodes"]) == ("physics", "main", "3-3")


def test_the_signature_is_looked_at_in_the_job_too(cluster: Cluster, work: str) -> None:
    words = ("--gpus-per-node=1", "--cpus-per-task=1", "/shared/launch/singlegpu.sh", "config.yaml")
    job = cluster.submit(*words, cwd=folder(cluster, work), IMAGE="/shared/train.sif", REQUIRE_SIGNED="1")
    ended = job.wait(100)
    assert (ended.code, "ERROR[77] /shared/train.sif is not signed" in ended.output) == (77, True), ended.output


def test_a_sweep_has_as_many_tasks_as_its_file_has_lines(cluster: Cluster, work: str) -> None:
    one = launch(cluster, folder(cluster, work), "sweep", "--hold", "config.yaml", "lr.txt")
    facts = one.job.facts()
    one.job.signal()
    assert facts["ArrayTaskId"] == "1-3"


def test_a_sweep_without_its_file_is_refused(cluster: Cluster, work: str) -> None:
    done = run_directly(cluster, folder(cluster, work), "sweep", "config.yaml", "none.txt")
    assert (done.returncode, "ERROR[66] no file of overrides at 'none.txt'" in done.stdout) == (66, True)


@pytest.fixture(scope="module")
def sweep(cluster: Cluster, place: Callable[[str], str]) -> dict[int, tuple[Ended, Run]]:
    """Three tasks for three lines, in a file whose name has a `=` and, before its last part, a dot."""
    work = folder(cluster, place("sweep"))
    (cluster.here(work) / "v=0.1").mkdir()
    (cluster.here(work) / "v=0.1" / "lr").write_text(LINES)
    first: Launched = launch(cluster, work, "sweep", "config.yaml", "v=0.1/lr", "run.seed=3", task="1")
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
