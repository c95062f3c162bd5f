"""Blocks of our own steps, in this process: a checkpoint is in the block that asks for one, and committed then."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from jobs import opened

from train.bench import saves
from train.bench.saves import Blocks
from train.checkpoint import store
from train.logging.metrics import MetricsLogger
from train.run import now, saving
from train.run.job import Job
from train.run.now import Now, Saving
from train.run.signals import Watch


def test_only_a_block_that_asks_for_a_checkpoint_commits_one(tmp_path: Path) -> None:
    with opened(tmp_path) as todo:
        metrics = MetricsLogger(tmp_path, main=True, step=0, tensorboard=False, warn=print)
        kept = now.begin(todo, Watch(), time.monotonic)
        with kept.writer:
            blocks = Blocks(todo, kept, metrics)
            assert blocks.timed(2, save=False)["save_s"] == 0
            assert not store.list_checkpoints(todo.checkpoints)
            assert blocks.timed(2, save=True)["save_s"] > 0
        metrics.close()
        assert list(store.list_checkpoints(todo.checkpoints)) == [3]


def test_all_of_a_save_counts_as_standing_still_the_looks_before_the_copy_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = iter(range(100))
    monkeypatch.setattr(saves, "time", SimpleNamespace(perf_counter=lambda: float(next(now_s))))
    monkeypatch.setattr(saving, "save", lambda todo, kept, metrics: next(now_s))
    with opened(tmp_path) as todo:
        metrics = MetricsLogger(tmp_path, main=True, step=0, tensorboard=False, warn=print)
        kept = now.begin(todo, Watch(), time.monotonic)
        with kept.writer:
            assert Blocks(todo, kept, metrics).timed(1, save=True)["save_s"] == 2.0
        metrics.close()


def test_so_does_what_the_next_update_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(todo: Job, kept: Now, metrics: MetricsLogger) -> None:
        kept.saving = Saving(step=1, evaluated=0, stalled=0.0, waited=1000.0)

    monkeypatch.setattr(saving, "save", save)
    monkeypatch.setattr(saving, "settle", lambda todo, kept, metrics: None)
    with opened(tmp_path) as todo:
        metrics = MetricsLogger(tmp_path, main=True, step=0, tensorboard=False, warn=print)
        kept = now.begin(todo, Watch(), time.monotonic)
        with kept.writer:
            assert 1000 < Blocks(todo, kept, metrics).timed(1, save=True)["save_s"] < 1010
        metrics.close()
