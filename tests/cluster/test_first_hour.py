"""A new user's first hour, with the real image and a real cluster: own pictures, and at the end a model to hand on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from bed import TOOL, Job, running, until
from launching import Launched
from machines import REPOSITORY
from runs import Run
from walk import Told, User, draw, paths, unexplained

BUILD_S = 1500  # the image and its SIF, from nothing, on two cores
pytestmark = pytest.mark.timeout(BUILD_S + 600)  # the first test waits for the whole walk before it

CONFIG = """\
run: {name: shapes}
data: {name: folder, root: pictures}
optim: {lr: 0.05}
train: {epochs: 8, global_batch_size: 24}
"""
CHECK = ("--config", "shapes.yaml", "--nodes", "2", "--procs-per-node", "1", "--device", "cpu")
TWO_NODES = (
    "--nodes=2",
    "--gpus-per-node=0",
    "--cpus-per-task=2",
    "launch/multigpu.sh",
    "shapes.yaml",
    "--device",
    "cpu",
)
LONGER = ("run.name=two", "train.epochs=60")  # 240 steps: there is time to be preempted in
PICTURE = "pictures/circle/00.jpg"


def fine(user: User, told: Told) -> bool:
    """It ended well, the user can act on every line of it, and what it names is there."""
    assert told.code == 0, told.output
    assert "Traceback" not in told.output
    assert unexplained(told.output) == [], told.output
    assert user.lost(told) == [], told.output
    return True


@pytest.fixture(scope="module")
def sif() -> Path:
    """The image of the code as it is now; a skip where this machine has no root, no namespaces or no image."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a real cluster needs root and unshare: as root on Debian, make testbed")
    if subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "true"], timeout=30).returncode:
        pytest.skip("a real cluster needs namespaces, and this machine (a container?) may make none")
    if subprocess.run([TOOL.with_name("node-rootfs"), "sid"], env=os.environ | {"HAVE": "1"}, timeout=60).returncode:
        pytest.skip("the file system of the sid nodes is not built: make testbed")
    build = [REPOSITORY / "tools" / "build-image", "sif"]
    done = subprocess.run(build, stdout=subprocess.PIPE, text=True, timeout=BUILD_S)
    if done.returncode:
        pytest.skip("the image could not be built (see above): make testbed")
    return Path(done.stdout.split()[-1])


@pytest.fixture(scope="module")
def user(sif: Path) -> Iterator[User]:
    """Two nodes, and in a folder that they share: the image, pictures in three folders, and a config of four lines."""
    with running(NODES="2", CPUS="4", GPUS="2") as cluster:
        work = cluster.shared / "first-hour"
        draw(work / "pictures")
        (work / "shapes.yaml").write_text(CONFIG)
        try:
            os.link(sif, work / "train.sif")
        except OSError:  # the cache is on another file system
            shutil.copyfile(sif, work / "train.sif")
        work.chmod(0o777)
        yield User(cluster=cluster, work="/shared/first-hour")


@pytest.fixture(scope="module")
def alone(user: User) -> Told:
    """One process on the login node."""
    return user.inside("train", "--config", "shapes.yaml", seconds=200)


@pytest.fixture(scope="module")
def checked(user: User) -> Told:
    """What the check of a job on two nodes says, before it is submitted."""
    return user.inside("train", "check", *CHECK)


@pytest.fixture(scope="module")
def two_nodes(user: User, checked: Told) -> tuple[Told, Launched]:
    """The image's own job script, submitted as docs/clusters.md says, while it trains."""
    assert user.inside("cp", "-r", "/opt/train-image/launch", ".").code == 0
    told = user.types("sbatch", *TWO_NODES, *LONGER)
    number = re.findall(r"Submitted batch job (\d+)", told.output)
    job = Job(cluster=user.cluster, number=number[0], cwd=user.work)
    one = Launched(job=job, run=Run(folder=user.here / "runs" / "two"), said=told.output)
    one.train_until(3)
    return told, one


@pytest.fixture(scope="module")
def preempted(user: User, two_nodes: tuple[Told, Launched]) -> Told:
    """Somebody more urgent takes one of its nodes: what the job has said until it waits in the queue again."""
    one = two_nodes[1]
    user.cluster.submit("-p", "urgent", "--exclusive", "-w", "node02", script="sleep 1", cwd=user.work).wait()
    until(lambda: one.restarts == 1, 60, lambda: str(one.job.facts()))
    return Told(code=0, output=log(user, one))


@pytest.fixture(scope="module")
def started_again(user: User, two_nodes: tuple[Told, Launched], preempted: Told) -> Told:
    """What it says from then on until its end."""
    ended = two_nodes[1].job.wait(240)
    return Told(code=ended.code, output=log(user, two_nodes[1]).removeprefix(preempted.output))


def log(user: User, one: Launched) -> str:
    return (user.here / f"train-{one.job.number}.out").read_text()


@pytest.fixture(scope="module")
def answered(user: User, alone: Told) -> Told:
    """What the model of that process says of a picture."""
    return user.inside("train", "predict", "runs/shapes", PICTURE)


@pytest.fixture(scope="module")
def exported(user: User, alone: Told) -> Told:
    """The best of its checkpoints, as a folder."""
    return user.inside("train", "export", "runs/shapes", "--output", "model")


def test_the_pictures_and_a_config_of_four_lines_are_checked(user: User) -> None:
    told = user.inside("train", "check", "--config", "shapes.yaml")
    assert fine(user, told)
    assert "runs/shapes (new)" in told.output


def test_doctor_finds_nothing_there_that_would_break_a_training(user: User) -> None:
    told = user.inside("entrypoint", "doctor")
    assert fine(user, told)
    assert "shared memory" in told.output


def test_one_process_trains_better_than_chance(user: User, alone: Told) -> None:
    assert fine(user, alone)
    percent = re.findall(r"^accuracy +([\d.]+)%", alone.output, re.M)
    assert float(percent[-1]) > 50


def test_a_job_on_two_nodes_is_checked_and_submitted(
    user: User, checked: Told, two_nodes: tuple[Told, Launched]
) -> None:
    assert fine(user, checked)
    assert "2 nodes" in checked.output
    assert fine(user, two_nodes[0])
    assert two_nodes[1].run.record["hosts"] == ["node01", "node02"]


def test_preempted_it_is_saved_and_waits_in_the_queue(
    user: User, two_nodes: tuple[Told, Launched], preempted: Told
) -> None:
    assert fine(user, preempted)
    assert "stopped by SIGTERM" in preempted.output, preempted.output
    assert 3 < (two_nodes[1].run.committed() or 0) < 240


def test_started_again_it_goes_on_where_it_was_and_comes_to_its_end(
    user: User, two_nodes: tuple[Told, Launched], started_again: Told
) -> None:
    assert fine(user, started_again)
    run = two_nodes[1].run
    first, second = (start["step"] for start in run.record["starts"])
    assert (first, 3 < second < 240, run.committed()) == (0, True, 240)
    assert run.logged() == sorted(set(run.logged()))


def test_a_page_shows_both_runs(user: User, alone: Told, started_again: Told) -> None:
    told = user.inside("train", "report", "runs/shapes", "runs/two")
    assert fine(user, told)
    page = (user.here / "report" / "report.html").read_text()
    assert [name in page for name in ("shapes", "two")] == [True, True]


def test_a_page_shows_one_run(user: User, alone: Told) -> None:
    assert fine(user, user.inside("train", "report", "runs/shapes"))
    assert (user.here / "runs" / "shapes" / "report" / "report.html").exists()


def test_the_model_answers_for_a_picture(user: User, answered: Told) -> None:
    assert fine(user, answered)
    assert re.search(rf"^{PICTURE}\t(circle|square|triangle)\t[01]\.\d+$", answered.output, re.M)


def test_the_model_is_exported_and_answers_the_same_from_its_folder(user: User, exported: Told, answered: Told) -> None:
    assert fine(user, exported)
    assert user.inside("train", "predict", "model", PICTURE) == answered


def test_a_warning_without_a_fix_would_be_seen() -> None:
    said = "WARNING: slow\n  fix: more\nwarn  fast\nUserWarning: old\nINFO fine\n"
    assert unexplained(said) == ["warn  fast", "UserWarning: old"]


def test_a_path_is_told_from_a_fraction_and_looked_for_below_the_folders_that_are_named() -> None:
    said = "at /a/b (c.png), --bind=/d: 12 images/s, 1/5, runs/one/x.md\n/e (ext4, not there yet)\n"
    found = paths(said, {"runs"})
    assert sorted(found) == ["/a/b", "/d", "c.png", "runs/one/x.md"]
    assert {"/a/b/c.png", "runs/one/c.png"} <= set(found["c.png"])
