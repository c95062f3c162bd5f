"""bench/gpu.sh on a machine without a GPU: it says so, or what its Python lacks, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from processes import unmeasured

SCRIPT = Path(__file__).parents[1] / "bench" / "gpu.sh"


def run(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The script, started elsewhere than in the checkout."""
    environ = unmeasured() | {"PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""} | variables
    return subprocess.run([SCRIPT, *words], capture_output=True, text=True, timeout=120, env=environ, cwd=folder)


def test_without_a_gpu_it_is_refused_with_a_fix(tmp_path: Path) -> None:
    ended = run(tmp_path, "out")
    assert ended.returncode == 78, ended.stderr
    assert "no GPU can be used here" in ended.stderr
    assert list((tmp_path / "out").iterdir()) == []


def test_what_this_python_lacks_is_named(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    ended = run(tmp_path, PYTHON=str(bare))
    assert ended.returncode != 0
    assert "ERROR[66] this python lacks torch" in ended.stderr


@pytest.mark.parametrize("row", ["1", "3", "6", "10"])
def test_it_asks_for_rows_that_there_are(row: str) -> None:
    from train.bench import step

    assert row in step.ROWS
    assert f"{row}," in SCRIPT.read_text() or f",{row} " in SCRIPT.read_text()
