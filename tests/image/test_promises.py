"""The README's command for docker, on a machine without GPUs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from containers import Image, writable
from machines import REPOSITORY

pytestmark = [pytest.mark.every_run, pytest.mark.timeout(600)]  # the first one may have to build the image

README = (REPOSITORY / "README.md").read_text()


def promised(folder: Path) -> list[str]:
    """The words of the README's `docker run`, as a shell in `folder` understands them."""
    found = re.search(r"^docker run (.*?) *(#.*)?$", README, re.M)
    assert found, "the README has no `docker run`"
    words = ["bash", "-c", f'printf "%s\\n" {found[1]}']
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=30, check=True).stdout.splitlines()


def test_the_readme_promises_all_gpus_and_nothing_but_the_image_s_name(tmp_path: Path) -> None:
    words = promised(tmp_path)
    assert (words[:2], words[-1]) == (["--gpus", "all"], "train")


def test_docker_run_train_without_gpus_all_trains_the_quickstart_into_the_mounted_folder(
    image: Image, tmp_path: Path
) -> None:
    work = writable(tmp_path / "work")
    command = [image.engine, "run", "--rm", "--network=none", *image.options, *promised(work)[2:-1], image.name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert (done.returncode, "WARNING" in done.stdout + done.stderr) == (0, False), done.stdout + done.stderr
    assert list(work.glob("runs/quickstart/checkpoints/step-*/manifest.json"))
