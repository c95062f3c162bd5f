"""Where a start's loop begins."""

from __future__ import annotations

from pathlib import Path

from jobs import opened, trained

from train.run import now
from train.run.signals import Watch


def test_a_new_run_has_saved_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as todo:
        current = now.begin(todo, Watch(), lambda: 7.0)
    assert (current.saved, current.loss, current.skipped, current.saved_at) == (None, None, 0, 7.0)


def test_a_resumed_run_counts_on_and_knows_its_checkpoint(tmp_path: Path) -> None:
    trained(tmp_path)
    with opened(tmp_path) as todo:
        current = now.begin(todo, Watch(), lambda: 7.0)
    assert current.saved == tmp_path / "checkpoints" / "step-00000008"
    assert current.stopwatch.seconds == todo.state.seconds > 0
