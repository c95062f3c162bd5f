"""Limits of the system on processes, threads and open files."""

from __future__ import annotations

import errno
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from processes import unmeasured

from entrypoint import errors

ROOT = Path(__file__).parents[2]
MET = {
    "fork": (BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), "ulimit -u"),
    "a thread": (RuntimeError("can't start new thread"), "ulimit -u"),
    "gloo's threads": (RuntimeError("Resource temporarily unavailable"), "ulimit -u"),
    "a file": (OSError(errno.EMFILE, os.strerror(errno.EMFILE), "model.safetensors"), "ulimit -n"),
    "memory": (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "ulimit -v"),
    "a library's memory": (RuntimeError("unable to mmap 4096 bytes: Cannot allocate memory (12)"), "ulimit -v"),
    "a large file": (OSError(errno.EFBIG, os.strerror(errno.EFBIG)), "ulimit -f"),
    "a library's file": (RuntimeError("unable to open: Too many open files (24)"), "ulimit -n"),
}
OTHERS = (
    RuntimeError("shapes differ"),
    FileNotFoundError(errno.ENOENT, "No such file"),
    ValueError("Too many open files"),
)


@pytest.mark.parametrize(("error", "option"), MET.values(), ids=MET)
def test_a_limit_that_was_met_is_a_want_of_resources_with_the_option_that_lifts_it(
    error: Exception, option: str
) -> None:
    failure = errors.resource_limit_failure(error)
    assert failure
    assert (failure.code, failure.found) == (71, str(error))
    assert option in failure.fix


@pytest.mark.parametrize("error", OTHERS, ids=repr)
def test_another_error_is_no_limit(error: Exception) -> None:
    assert errors.resource_limit_failure(error) is None


@pytest.mark.slow
@pytest.mark.parametrize("option", ["-n 20", "-n 28", "-n 31", "-n 34", "-v 1000000", "-v 3000000", "-f 1", "-f 50"])
def test_a_limit_of_the_shell_is_met_with_71_or_not_at_all(option: str, tmp_path: Path) -> None:
    """What is short, and in which process, differs with the machine; a scheduler must not try again."""
    words = ("data.samples=80", "data.image_size=8", "train.global_batch_size=16", "train.max_steps=2", "run.name=run")
    train = shlex.join([sys.executable, "-m", "train", "--device", "cpu", "--procs-per-node", "2", *words])
    line = ["bash", "-c", f"ulimit {option} && exec {train}"]
    environ = {**unmeasured(), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(ROOT)}  # none is left half-written
    ended = subprocess.run(line, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=180, check=False)
    assert ended.returncode in (0, 71), ended.stderr
    assert ended.returncode == 0 or "ERROR[71]" in ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr
