"""What `train` starts for each rank."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from train import __main__ as front

CPU = ("--device", "cpu")


def test_each_rank_runs_the_worker_with_what_was_given(launched: dict[str, Any], tmp_path: Path) -> None:
    Path("my.yaml").write_text("run: {name: mine}\n")
    assert front.run(["--config", "my.yaml", "optim.lr=1", *CPU, "train.epochs=2"], {"A": "b"}) == 7
    assert launched["command"][1:3] == ["-m", "train.worker"]
    assert launched["command"][5:] == ["--config", "my.yaml", "optim.lr=1", "train.epochs=2"]
    assert (launched["log_dir"], launched["foreign"]) == (Path("runs/mine/logs"), False)
    assert launched["environ"] == {"A": "b"}


def test_without_a_file_the_worker_gets_none(launched: dict[str, Any]) -> None:
    front.run(CPU, {})
    assert launched["command"] == [sys.executable, "-m", "train.worker", "--lease", "1"]


def test_the_stand_in_folder_reaches_the_workers_and_is_said(launched: dict[str, Any], tmp_path: Path) -> None:
    Path("runs").write_text("in the way")
    front.run(CPU, {"TMPDIR": str(tmp_path)})
    folder = launched["log_dir"].parents[1]
    assert launched["command"][-1] == f"run.output_dir={folder}"
    assert folder.parent == tmp_path
    assert "docker run -v" in launched["plan"].warnings[-1]


def test_the_ranks_are_told_when_the_time_is_up(launched: dict[str, Any]) -> None:
    front.run([*CPU, "--time-limit", "10"], {"SLURM_JOB_END_TIME": "1"})
    assert 590 < float(launched["environ"]["ENTRYPOINT_DEADLINE"]) - time.time() <= 601
