"""Where a start's loop begins."""

from __future__ import annotations

from pathlib import Path

from jobs import built, trained

from train.state import LogWindow


def test_a_new_run_has_saved_nothing(tmp_path: Path) -> None:
    with built(tmp_path) as trainer:
        trainer.clock = lambda: 7.0
        trainer.begin()
        loop, checkpointer = trainer.loop, trainer.checkpointer
    assert (loop.finished_epoch, loop.skipped_steps) == (None, 0)
    assert (checkpointer.newest, checkpointer.saved_at) == (None, 7.0)


def test_a_resumed_run_counts_on_and_knows_its_checkpoint(tmp_path: Path) -> None:
    trained(tmp_path)
    with built(tmp_path) as trainer:
        trainer.clock = lambda: 7.0
        trainer.begin()
        loop = trainer.loop
    assert trainer.checkpointer.newest == tmp_path / "checkpoints" / "step-00000008"
    assert loop.stopwatch.seconds == trainer.state.seconds > 0


def test_an_epoch_goes_on_from_the_losses_that_an_earlier_start_has_added_up(tmp_path: Path) -> None:
    with built(tmp_path) as trainer:
        trainer.state.step, batch = 4, trainer.batches.global_
        trainer.state.window = LogWindow(sums=[[3.0 * batch, 0.0, batch], [5.0 * batch, 0.0, batch]], since=0.0)
        trainer.clock = lambda: 7.0
        trainer.begin()
        loop = trainer.loop
    loop.epoch_stats.read(6, 6.5, 4 * batch)  # steps 3 to 6: 3 and 5, 8 and 10
    assert loop.epoch_stats.close(6, 8.0, epoch=4).loss == 9.0
