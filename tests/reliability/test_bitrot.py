"""Damage to checkpoints is seen: the smaller size of `make bitrot`."""

from __future__ import annotations

from pathlib import Path

import bitrot
from checkpoints import saved


def test_every_one_of_500_flipped_bits_and_all_other_damage_is_seen() -> None:
    done = list(bitrot.run(500, seed=1))
    assert [(trial.row, trial.lines) for trial in done if not trial.ok] == []
    assert sum(trial.expected for trial in done if trial.row.startswith("flip a bit")) == 500


def test_what_is_whole_is_not_called_damaged(tmp_path: Path) -> None:
    assert not bitrot.detected(tmp_path, saved(tmp_path, 10, 20))
