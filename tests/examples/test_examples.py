"""The examples do what their first lines say, copied to where nothing of this project lies."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from images import write_image
from processes import TIMEOUT_S, unmeasured
from runs import Run

from train.logging.metrics_logger import METRICS_FILE, read_events

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))

# PyTorch's DDP never frees its process group, whose threads can abort a process that ends (pytorch/pytorch, pull
# request 179291: seen once in some hundred runs of foreign.py). `train` itself ends without finalizing Python.
GLOO_ABORT = "terminate called without an active exception"


def commands(script: Path) -> list[str]:
    """The command lines in a script's first text."""
    first = script.read_text().split('"""')[1]
    return re.findall(r"^    ((?:train|entrypoint) .*)$", first, re.MULTILINE)


CPU = [(script.name, line) for script in SCRIPTS for line in commands(script) if "--device cpu" in line]


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A folder with the examples, and with the commands that are typed in it."""
    shutil.copytree(EXAMPLES, tmp_path / "copied", ignore=shutil.ignore_patterns("__pycache__", "runs"))
    return tmp_path / "copied"


def typed(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Type a command there, as in a shell whose PATH has it."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        shlex.split(line),
        cwd=folder,
        env={**unmeasured(), "PATH": path},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_every_example_says_how_it_is_run_alone_and_as_two(script: Path) -> None:
    assert len([line for line in commands(script) if "--procs-per-node 2" in line]) == 1
    assert len(commands(script)) == 2


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_every_example_is_short(script: Path) -> None:
    code = [line for line in script.read_text().split('"""', 2)[2].splitlines() if line.strip()]
    assert len(code) <= 30


@pytest.mark.slow
@pytest.mark.parametrize(("name", "line"), CPU, ids=[name for name, _ in CPU])
def test_the_command_of_an_example_works_as_two_processes(name: str, line: str, copied: Path) -> None:
    ended = typed(line, copied)
    if GLOO_ABORT in ended.stderr:
        ended = typed(line, copied)
    assert ended.returncode == 0, ended.stderr
    assert "WARNING" not in ended.stdout + ended.stderr
    if name == "foreign.py":
        assert re.search(r"2 processes on cpu, mean loss 0\.00", ended.stdout)
    else:
        world = Run(folder=copied / "runs" / Path(name).stem).record["world"]
        assert world["world_size"] == 2


@pytest.mark.parametrize(("name", "least"), [("my_dataset", 0.9), ("my_model", 0.4)])
def test_an_example_alone_learns_and_its_model_answers(name: str, least: float, copied: Path) -> None:
    ended = typed(f"train --config {name}.yaml --device cpu", copied)
    assert ended.returncode == 0, ended.stderr
    events = list(read_events(copied / "runs" / name / METRICS_FILE))
    assert max(event["accuracy"] for event in events if event["event"] == "eval") > least
    write_image(copied / "image.png")
    answer = typed(f"train predict runs/{name} image.png --device cpu --config {name}.yaml", copied)
    assert (answer.returncode, answer.stdout.count("\n")) == (0, 1), answer.stderr
