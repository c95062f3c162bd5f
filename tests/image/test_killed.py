"""A build that is killed leaves working containers of gigabytes behind; the next one takes them away, and only them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from bed import until
from containers import Image, call
from machines import REPOSITORY

pytestmark = pytest.mark.timeout(600)  # the first one may have to build the image


@pytest.fixture
def recipe(image: Image, tmp_path: Path) -> Path:
    """A copy of the recipe with a first step that never ends."""
    if image.engine != "podman":
        pytest.skip(f"machine: {image.engine} tidies up by itself")
    (tmp_path / "tools").mkdir()
    shutil.copy(REPOSITORY / "tools" / "build-image", tmp_path / "tools")
    locks = [path.name for path in REPOSITORY.glob("requirements*.lock")]
    for name in ("Containerfile", ".dockerignore", "README.md", "pyproject.toml", *locks):
        shutil.copy(REPOSITORY / name, tmp_path)
    for name in ("bench", "configs", "entrypoint", "examples", "image", "launch", "train"):
        shutil.copytree(REPOSITORY / name, tmp_path / name)
    (tmp_path / "image" / "system.sh").write_text(f"# {tmp_path}\nsleep 600\n")
    return tmp_path


def working() -> set[str]:
    """The containers in which podman builds anything now."""
    lines = call(
        "podman", "ps", "--all", "--external", "--format", "{{.Status}} {{.ID}} {{.Command}}"
    ).stdout.splitlines()
    return {line.split()[1] for line in lines if line.startswith("Storage")}


def start(recipe: Path) -> subprocess.Popen[bytes]:
    """Build in a process group of its own."""
    environ = {**os.environ, "TESTBED_CACHE": str(recipe / "cache"), "TESTBED_REUSE": "", "ENGINE": "podman"}
    quiet = subprocess.DEVNULL
    command = [recipe / "tools" / "build-image", "image"]
    return subprocess.Popen(command, env=environ, stdout=quiet, stderr=quiet, start_new_session=True)


def test_the_next_build_takes_away_what_a_killed_one_left(recipe: Path) -> None:
    before, log = working(), recipe / "cache" / "images" / "build.log"
    killed = start(recipe)
    until(lambda: log.exists() and "system.sh" in log.read_text().rpartition("RUN")[2], 120, lambda: "no step")
    until(lambda: bool(working() - before), 60, lambda: "no container")
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    left = working() - before
    (recipe / "image" / "system.sh").write_text("exit 1\n")
    assert start(recipe).wait(timeout=120) == 1
    assert left
    assert len(left & working()) < len(left)
