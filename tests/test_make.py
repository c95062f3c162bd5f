"""What `make env` says, with a Python and a pip that are made up: the real ones install for minutes."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

from processes import TIMEOUT_S

ROOT = Path(__file__).parents[1]


def make(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    outer = ("MAKE", "CUDA")  # of the make that runs the tests
    environ = {name: value for name, value in os.environ.items() if not name.startswith(outer)} | variables
    line = ["make", "--directory", str(ROOT), "--no-print-directory", *words]
    return subprocess.run(line, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S)


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def environment(folder: Path) -> Path:
    """A virtual environment whose pip only says what it was asked for."""
    program(folder / "bin/python", 'echo "asked: $*"')
    for name in (".python", ".runtime"):
        (folder / name).touch()
    return folder


def test_the_first_installation_shows_what_pip_does(tmp_path: Path) -> None:
    venv = environment(tmp_path / "venv")
    (venv / ".runtime").unlink()
    done = make("env", f"VENV={venv}")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("installing the locked packages (once;")
    assert "pip install" in lines[1]
    assert "requirements.lock" in lines[1]
    assert "--quiet" not in lines[1]


def test_cuda_12_is_installed_from_its_own_lock(tmp_path: Path) -> None:
    venv = environment(tmp_path / "venv")
    (venv / ".runtime").unlink()
    assert "-r requirements-cuda12.lock" in make("env", f"VENV={venv}", "CUDA=12").stdout


def test_with_an_index_of_cpu_builds_nothing_of_cuda_is_installed(tmp_path: Path) -> None:
    venv = environment(tmp_path / "venv")
    (venv / ".runtime").unlink()
    done = make("env", f"VENV={venv}", "CPU_INDEX=https://index.example/cpu")
    asked = [line for line in done.stdout.splitlines() if line.startswith("asked: ")]
    locked = dict(re.findall(r"^([a-z0-9-]+)==([0-9.]+)", (ROOT / "requirements.lock").read_text(), re.M))
    torch = f"torch=={locked['torch']} torchvision=={locked['torchvision']}"
    assert asked[0].endswith(f"--no-deps --index-url https://index.example/cpu {torch}")
    left = set(re.findall(r"^([a-z0-9-]+)==", (venv / "cpu.lock").read_text(), re.M))
    assert {"accelerate", "nvidia-ml-py"} <= left
    assert {name for name in locked.keys() - left if "cuda" not in name and "nvidia" not in name} == {
        "torch",
        "torchvision",
        "triton",
    }
    assert f"--require-hashes -r {venv}/cpu.lock" in asked[1]


def test_what_a_site_s_modules_call_cuda_chooses_no_lock(tmp_path: Path) -> None:
    venv = environment(tmp_path / "venv")
    (venv / ".runtime").unlink()
    done = make("env", f"VENV={venv}", CUDA="/usr/local/cuda")
    assert (done.returncode, "-r requirements.lock" in done.stdout) == (0, True), done.stderr


def test_a_cuda_without_a_lock_is_refused() -> None:
    done = make("env", "CUDA=11")
    assert (done.returncode, "CUDA=11 is neither 13 nor 12" in done.stderr) == (2, True)


def test_where_all_is_installed_nothing_is_said(tmp_path: Path) -> None:
    venv = environment(tmp_path / "venv")
    state = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    (venv / ".checkout").write_text(f"{ROOT} {state}  -\n")
    done = make("env", f"VENV={venv}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_python_without_ensurepip_is_told_its_package(tmp_path: Path) -> None:
    python = program(tmp_path / "python", f'case "$2" in *ensurepip*) exit 1;; esac; exec {sys.executable} "$@"')
    done = make("env", f"VENV={tmp_path}/venv", f"PYTHON={python}")
    assert done.returncode == 2
    assert f"ERROR: {python} cannot make a virtual environment" in done.stderr
    version = ".".join(map(str, sys.version_info[:2]))
    assert f"  fix: apt-get install python{version}-venv\n" in done.stderr


def test_an_old_python_is_told_the_one_that_is_needed(tmp_path: Path) -> None:
    done = make("env", f"VENV={tmp_path}/venv", f"PYTHON={program(tmp_path / 'python', 'exit 1')}")
    assert done.returncode == 2
    assert "ERROR: Python 3.11 or newer is needed" in done.stderr
    assert "fix: apt-get install python3" in done.stderr
