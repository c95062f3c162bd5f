"""How far a rank has come."""

from __future__ import annotations

from pathlib import Path

from jobs import ALONE, trained
from processes import python

from train.rank_context import RankContext


def test_there_is_no_step_before_there_is_a_job(tmp_path: Path) -> None:
    assert RankContext(world=ALONE, folder=tmp_path).step is None


def test_the_step_is_the_jobs(tmp_path: Path) -> None:
    trainer = trained(tmp_path, "train.max_steps=2")
    assert RankContext(world=ALONE, folder=tmp_path, trainer=trainer).step == 2


def test_a_rank_knows_its_seat_without_torch() -> None:
    script = "import sys, train.worker; sys.exit('torch' in sys.modules)"
    assert python("-c", script).returncode == 0
