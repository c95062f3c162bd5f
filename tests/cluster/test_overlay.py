"""One more package without rebuilding the image, as docs/image.md says: installed once, read by two nodes at once."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from bed import Cluster, Ended
from runs import TEN_STEPS, Run
from wheels import write_wheel

MODEL = """
from torch import nn


def flat(classes, shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape.channels * shape.size[0] * shape.size[1], classes))
"""
CONFIG = TEN_STEPS.replace("{name: small_cnn}", '{name: "onemore:flat"}').replace("max_steps: 10", "max_steps: 2")
WHERE = "import onemore, torch; print(onemore.__file__[:10], torch.__file__[:9])"
FOUND = "/opt/extra /opt/venv"
# What a user gives to Apptainer to install the package, and then on the nodes.
WAYS = {
    "a bound folder": ("--bind extra:/opt/extra", "--bind extra:/opt/extra:ro"),
    "an overlay": ("--overlay overlay", "--overlay overlay:ro"),
    "a bound folder packed into one file": ("", "--bind extra.sqfs:/opt/extra:image-src=/,ro"),
}


def in_image(cluster: Cluster, cwd: str, options: str, *command: str) -> tuple[int, str]:
    """A command in the image on the login node."""
    done = cluster.login(
        "apptainer", "--quiet", "exec", *options.split(), "/shared/train.sif", *command, cwd=cwd, seconds=240
    )
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def user(cluster: Cluster, place: Callable[[str], str]) -> str:
    """The user's folder: a wheel, and what installing it each way made."""
    cwd = place("one-more-package")
    here = cluster.shared / Path(cwd).name
    wheel = write_wheel(here, "onemore", MODEL, "torch", "numpy")
    (here / "config.yaml").write_text(CONFIG)
    cluster.login("mkdir", "extra", "overlay", cwd=cwd)
    for install in filter(None, (install for install, _ in WAYS.values())):
        code, told = in_image(cluster, cwd, install, "pip", "install", "--no-index", wheel.name)
        assert code == 0, told
    packed = cluster.login("mksquashfs", "extra", "extra.sqfs", "-quiet", "-no-progress", cwd=cwd)
    assert packed.returncode == 0, packed.stdout
    return cwd


@pytest.fixture(scope="module")
def read_by_two_nodes(cluster: Cluster, user: str) -> dict[str, Ended]:
    """What Python says on two nodes at once, each way."""
    jobs = {}
    for way, (_, options) in WAYS.items():
        script = f"srun -N2 apptainer --quiet exec {options} /shared/train.sif python -c {shlex.quote(WHERE)}"
        jobs[way] = cluster.submit("-N2", script=script, cwd=user)
    return {way: job.wait() for way, job in jobs.items()}


@pytest.mark.parametrize("way", WAYS)
def test_two_nodes_read_one_package_that_hides_no_locked_one(read_by_two_nodes: dict[str, Ended], way: str) -> None:
    assert read_by_two_nodes[way].output.splitlines() == [FOUND] * 2


def test_a_job_script_as_it_is_trains_a_model_from_the_package(cluster: Cluster, user: str) -> None:
    job = cluster.submit(
        "--nodes=2", "--cpus-per-task=4", "--gpus-per-node=1", "/shared/launch/multigpu.sh", "config.yaml",
        cwd=user, IMAGE="/shared/train.sif", OMP_NUM_THREADS="1", APPTAINER_BIND=f"{user}/extra:/opt/extra:ro",
    )  # fmt: skip
    ended = job.wait()
    assert ended.code == 0, ended.output
    run = Run(folder=cluster.shared / Path(user).name / "runs" / "run")
    assert (run.record["world"]["num_nodes"], run.logged()) == (2, [1, 2])


def test_only_the_package_itself_is_installed(cluster: Cluster, user: str) -> None:
    installed = (cluster.shared / Path(user).name / "extra").glob("lib/python3.*/site-packages/*")
    assert {path.name for path in installed} == {"onemore.py", "__pycache__", "onemore-1.0.dist-info"}


def test_a_package_that_needs_another_version_of_a_locked_one_is_refused(cluster: Cluster, user: str) -> None:
    wheel = write_wheel(cluster.shared / Path(user).name, "backward", "", "numpy<1")
    code, told = in_image(cluster, user, "--bind extra:/opt/extra", "pip", "install", "--no-index", wheel.name)
    assert (code, "The user requested (constraint) numpy==" in told) == (1, True), told


def test_without_a_place_to_install_into_the_bind_is_named(cluster: Cluster, user: str) -> None:
    code, told = in_image(cluster, user, "", "pip", "install", "onemore")
    assert (code, "fix: mkdir extra, and --bind ./extra:/opt/extra" in told) == (73, True), told
