"""How far a rank has come."""

from __future__ import annotations

from pathlib import Path

from jobs import ALONE, trained
from processes import python

from train.run.seat import Seat


def test_there_is_no_step_before_there_is_a_job(tmp_path: Path) -> None:
    assert Seat(world=ALONE, folder=tmp_path).step is None


def test_the_step_is_the_jobs(tmp_path: Path) -> None:
    todo, _ = trained(tmp_path, "train.max_steps=2")
    assert Seat(world=ALONE, folder=tmp_path, job=todo).step == 2


def test_a_rank_knows_its_seat_without_torch() -> None:
    script = "import sys, train.worker; sys.exit('torch' in sys.modules)"
    assert python("-c", script).returncode == 0
