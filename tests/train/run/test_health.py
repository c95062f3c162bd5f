"""A run whose numbers are not finite ends, and is never kept as good."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from jobs import after, fit, opened

from entrypoint import ExitCode, Failure
from train.checkpoint import checkpoint
from train.record import tally
from train.run import health, now
from train.run.job import Job
from train.run.signals import Watch


def spoil(todo: Job) -> None:
    with torch.no_grad():
        next(todo.state.network.parameters()).fill_(float("nan"))


@pytest.mark.parametrize("at", [3, 4, 8], ids=["between-logs", "before-an-evaluation", "before-the-last-commit"])
def test_a_run_that_diverges_ends_with_90_and_keeps_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    after(at, spoil, monkeypatch)
    with opened(tmp_path, "checkpoint.every_steps=2") as todo, pytest.raises(Failure) as caught:
        fit(todo)
    assert caught.value.code == ExitCode.DIVERGED
    kept = checkpoint.newest(tmp_path / "checkpoints")
    assert kept is not None
    assert caught.value.kept == str(kept.path)
    assert all(tensor.isfinite().all() for tensor in checkpoint.load(kept)[0]["model"].values())


def test_a_loss_that_is_not_finite_is_seen_at_the_next_log_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    after(2, spoil, monkeypatch)
    with opened(tmp_path) as todo, pytest.raises(Failure, match="at or before step 4"):
        fit(todo)
    assert checkpoint.newest(tmp_path / "checkpoints") is None


@pytest.mark.parametrize(("skipped", "diverged"), [(19, False), (20, True)])
def test_with_fp16_only_twenty_skipped_steps_in_a_row_are_divergence(
    tmp_path: Path, skipped: int, diverged: bool
) -> None:
    with opened(tmp_path) as todo:
        todo.state.scaler = torch.amp.GradScaler("cpu")
        current = now.begin(todo, Watch(), lambda: 0.0)
        current.skipped = skipped
        current.tally.take(tally.sums(torch.tensor(float("inf")), torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64)))
        if diverged:
            with pytest.raises(Failure, match="diverged"):
                health.sound(todo, current)
        else:
            assert health.sound(todo, current) is not None
