"""The scripts of bench/ for a machine with GPUs, on null GPUs."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import null_gpu
import pytest
from null_gpu_trainings import LIMIT_S

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(null_gpu.missing_runtime() is not None, reason=str(null_gpu.missing_runtime())),
    pytest.mark.timeout(1000),
]


def run_script(stand_in: Path, folder: Path, name: str, *words: str, gpus: int) -> subprocess.CompletedProcess[str]:
    """A script of bench/ on null GPUs, whose `train` is this checkout's."""
    train = folder / "bin" / "train"
    train.parent.mkdir()
    train.write_text(f'#!/bin/sh\nexec {null_gpu.python(stand_in)} -m train "$@"\n')
    train.chmod(0o755)
    environ = {"PATH": f"{train.parent}:{os.environ['PATH']}", "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    environ |= {"PYTHON": null_gpu.python(stand_in), "LIMIT_S": f"{LIMIT_S:.0f}"} | null_gpu.environment(stand_in, gpus)
    script = Path(__file__).parents[2] / "bench" / name
    return subprocess.run([script, *words], cwd=folder, env=environ, capture_output=True, text=True, timeout=LIMIT_S)


def test_the_script_for_one_gpu_trains_and_measures_its_rows(stand_in: Path, tmp_path: Path) -> None:
    done = run_script(stand_in, tmp_path, "gpu.sh", "out", "--quick", "--rows", "3", gpus=1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 steps in" in (tmp_path / "out/first.txt").read_text()
    rows = json.loads((tmp_path / "out/bench.json").read_text())["rows"]
    missing = {row["row"]: row["missing"] for row in rows if row["value"] is None}
    assert missing == {"14 DataParallel": "needs two GPUs"}
    assert {"3a", "3b", "14", "11a"} <= {row["row"] for row in rows}


def test_the_script_for_several_gpus_sees_each_end_that_it_expects(stand_in: Path, tmp_path: Path) -> None:
    done = run_script(stand_in, tmp_path, "gpus.sh", gpus=2)
    assert done.returncode == 0, done.stdout
    assert len(re.findall(r"exit code (\d+), expected \1,", done.stdout)) == 8
