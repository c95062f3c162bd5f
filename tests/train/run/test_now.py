"""Where a start's loop begins."""

from __future__ import annotations

from pathlib import Path

from jobs import opened, trained

from train.run import now
from train.run.signals import Watch
from train.run.state import Window


def test_a_new_run_has_saved_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as todo:
        current = now.begin(todo, Watch(), lambda: 7.0)
    assert (current.saved, current.epoch, current.skipped, current.saved_at) == (None, None, 0, 7.0)


def test_a_resumed_run_counts_on_and_knows_its_checkpoint(tmp_path: Path) -> None:
    trained(tmp_path)
    with opened(tmp_path) as todo:
        current = now.begin(todo, Watch(), lambda: 7.0)
    assert current.saved == tmp_path / "checkpoints" / "step-00000008"
    assert current.stopwatch.seconds == todo.state.seconds > 0


def test_an_epoch_goes_on_from_the_losses_that_an_earlier_start_has_added_up(tmp_path: Path) -> None:
    with opened(tmp_path) as todo:
        todo.state.step, batch = 4, todo.batches.global_
        todo.state.window = Window(sums=[[3.0 * batch, 0.0, batch], [5.0 * batch, 0.0, batch]], since=0.0)
        current = now.begin(todo, Watch(), lambda: 7.0)
    current.lap.read(6, 6.5, 4 * batch)  # steps 3 to 6: 3 and 5, 8 and 10
    assert current.lap.close(6, 8.0, epoch=4).loss == 9.0
