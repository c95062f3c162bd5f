"""examples/README.md, typed as it stands beside the image alone: no checkout is in reach."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from containers import BUILD, Image, call, mounted
from images import write_image
from machines import REPOSITORY

pytestmark = pytest.mark.timeout(1800)  # the first one may have to build image and SIF
README = (REPOSITORY / "examples" / "README.md").read_text()
ROOTFS = REPOSITORY / "tests" / "cluster" / "node-rootfs"
IN_NODE = REPOSITORY / "tests" / "in-node"


def commands(program: str) -> list[str]:
    """The README's lines for one engine, each with the `cd` that stands above it."""
    lines = []
    for block in re.findall(r"^```sh\n(.*?)^```", README, re.S | re.M):
        first, *rest = block.splitlines()
        typed = [f"{first} && {line}" for line in rest] if first.startswith("cd ") else [first, *rest]
        lines += [line for line in typed if f"{program} " in line]
    return lines


def copied(folder: Path) -> Path:
    """The examples, in a folder that every user may write to."""
    ignored = shutil.ignore_patterns("__pycache__", "runs", "README.md")
    shutil.copytree(REPOSITORY / "examples", folder / "examples", ignore=ignored)
    write_image(folder / "examples" / "photo.jpg")
    (folder / "examples").chmod(0o777)
    return folder / "examples"


@pytest.fixture(scope="module")
def sif() -> Path:
    """The image as one file; a skip where this machine cannot build or start it."""
    if os.geteuid() != 0 or subprocess.run([ROOTFS, "sid"], env=os.environ | {"HAVE": "1"}, timeout=60).returncode:
        pytest.skip("Apptainer runs in a node's file system, as root: make testbed")
    done = call(str(BUILD), "sif", seconds=1500)
    if done.returncode:
        pytest.skip(f"no SIF (run `make testbed`): {done.stdout[-300:]}")
    return Path(done.stdout.split()[-1])


FIRST, *LINES = commands("apptainer")
Typed = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def typed(sif: Path, tmp_path_factory: pytest.TempPathFactory) -> Typed:
    """A shell of an ordinary user who has train.sif and, by the first line, its examples."""
    folder = tmp_path_factory.mktemp("beside")
    try:
        os.link(sif, folder / "train.sif")
    except OSError:  # the cache is on another file system
        shutil.copyfile(sif, folder / "train.sif")

    def shell(line: str) -> subprocess.CompletedProcess[str]:
        return call(str(IN_NODE), "--user", str(folder), "bash", "-c", line, seconds=240)

    done = shell(FIRST)
    assert done.returncode == 0, done.stdout
    write_image(folder / "examples" / "photo.jpg")
    return shell


Ran = dict[str, subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def ran(typed: Typed) -> Ran:
    """All other lines for Apptainer, one after the other."""
    return {line: typed(line) for line in LINES}


@pytest.mark.parametrize("line", LINES)
def test_a_line_for_apptainer_works_beside_the_sif(ran: Ran, line: str) -> None:
    assert ran[line].returncode == 0, ran[line].stdout
    warned = [said for said in ran[line].stdout.splitlines() if "WARNING" in said and "nv files" not in said]
    assert warned == []


def test_the_lines_train_predict_export_and_run_a_foreign_script(ran: Ran, typed: Typed) -> None:
    assert len(ran) == 5
    made = typed("cd examples && ls runs/my_dataset/best.json runs/my_model/best.json my_model_of_stripes/model.json")
    assert made.returncode == 0, made.stdout
    said = "".join(done.stdout for done in ran.values())
    assert re.search(r"^photo\.jpg\t(lying|standing)\t[01]\.\d+$", said, re.M)
    assert "mean loss 0.00" in said


@pytest.mark.parametrize("line", commands("docker"))
def test_a_line_for_docker_works_with_the_folder_mounted(image: Image, tmp_path: Path, line: str) -> None:
    folder, words = copied(tmp_path), line.rpartition(" train train ")[2].split()
    assert '-v "$PWD:/workspace" train train --config' in line
    ended = image.run("train", *words, options=(mounted(folder, "/workspace"),), seconds=240)
    assert (ended.code, ended.lines("WARNING")) == (0, []), ended.output
    assert (folder / "runs" / "my_model" / "best.json").exists()
