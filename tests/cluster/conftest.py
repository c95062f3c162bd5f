"""Three nodes with real Slurm and Apptainer for the tests in this folder, and the image in their shared folder."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bed import Cluster, running
from machines import REPOSITORY

TESTS = REPOSITORY / "tests"
NEEDS = ("unshare", "nsenter", "ip", "pgrep", "flock")
BUILD_S = 1500  # the image and its SIF, from nothing, on two cores


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test of the session may have to build; pytest's own limit counts that in."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(BUILD_S + 300))


@pytest.fixture(scope="session")
def can_make_nodes() -> None:
    """What a cluster needs of the machine, or a skip that says what is missing."""
    missing = [name for name in NEEDS if shutil.which(name) is None]
    if os.geteuid() != 0:
        pytest.skip("a real cluster needs root: as root on Debian, make testbed")
    if missing:
        pytest.skip(f"a real cluster needs {', '.join(missing)}: make testbed")
    if subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "true"], timeout=30).returncode:
        pytest.skip("a real cluster needs namespaces, and this machine (a container?) may make none")


def require_nodes(suite: str) -> None:
    """Skip where the file system of this Debian suite's nodes is not there."""
    look = [TESTS / "cluster" / "node-rootfs", suite]
    if subprocess.run(look, env=os.environ | {"HAVE": "1"}, timeout=60).returncode:
        pytest.skip(f"the file system of the {suite} nodes is not built: make testbed")


@pytest.fixture(scope="session")
def provisioned(can_make_nodes: None) -> None:
    """What the image's cluster needs: the suite that has Apptainer."""
    require_nodes("sid")


@pytest.fixture(scope="session")
def older_nodes(can_make_nodes: None) -> Callable[[str], None]:
    """Asks for the nodes of another suite."""
    return require_nodes


@pytest.fixture(scope="session")
def sif(provisioned: None) -> Path:
    """The image of the code as it is now."""
    build = [REPOSITORY / "tools" / "build-image", "sif"]
    done = subprocess.run(build, stdout=subprocess.PIPE, text=True, timeout=BUILD_S)
    if done.returncode:
        pytest.skip("the image could not be built (see above): make testbed")
    return Path(done.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="session")
def nodes(provisioned: None) -> Iterator[Cluster]:
    """A controller and three nodes of four CPUs and four stand-in GPUs."""
    with running(NODES="3", CPUS="4", GPUS="4") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def cluster(nodes: Cluster, sif: Path) -> Cluster:
    """The nodes, with the image and the launch scripts in the folder that a user submits from."""
    shutil.copytree(REPOSITORY / "launch", nodes.shared / "launch")
    try:
        os.link(sif, nodes.shared / "train.sif")
    except OSError:  # the cache is on another file system
        shutil.copyfile(sif, nodes.shared / "train.sif")
    return nodes


@pytest.fixture(scope="session")
def place(nodes: Cluster) -> Callable[[str], str]:
    """Makes a folder in which the user may write; returns its path on the nodes."""

    def make(name: str) -> str:
        folder = nodes.shared / name
        folder.mkdir()
        folder.chmod(0o777)
        return f"/shared/{name}"

    return make


@pytest.fixture
def work(place: Callable[[str], str], request: pytest.FixtureRequest) -> str:
    """A folder of the test's own that the user may write in, as the nodes see it."""
    return place("".join(letter if letter.isalnum() else "-" for letter in request.node.name))
