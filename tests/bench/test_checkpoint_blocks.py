"""Blocks of our own steps, in this process: a checkpoint is in the block that asks for one, and committed then."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from jobs import built

from bench import checkpoint_blocks
from bench.checkpoint_blocks import CheckpointBlocks
from train.checkpoint import store
from train.trainer import Trainer


def test_only_a_block_that_asks_for_a_checkpoint_commits_one(tmp_path: Path) -> None:
    with built(tmp_path) as trainer:
        trainer.begin()
        with trainer.checkpointer.finishing():
            blocks = CheckpointBlocks(trainer)
            assert blocks.run(2, save=False)["save_s"] == 0
            assert not store.list_checkpoints(trainer.folder / "checkpoints")
            assert blocks.run(2, save=True)["save_s"] > 0
        assert list(store.list_checkpoints(trainer.folder / "checkpoints")) == [3]


def test_all_of_a_save_counts_as_standing_still_the_looks_before_the_copy_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = iter(range(100))
    monkeypatch.setattr(checkpoint_blocks, "time", SimpleNamespace(perf_counter=lambda: float(next(now_s))))
    monkeypatch.setattr(Trainer, "save", lambda trainer: next(now_s))
    with built(tmp_path) as trainer:
        trainer.begin()
        with trainer.checkpointer.finishing():
            assert CheckpointBlocks(trainer).run(1, save=True)["save_s"] == 2.0


def test_so_does_what_the_next_update_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(trainer: Trainer) -> None:
        trainer.checkpointer.waited = 1000.0

    monkeypatch.setattr(Trainer, "save", save)
    with built(tmp_path) as trainer:
        trainer.begin()
        with trainer.checkpointer.finishing():
            assert 1000 < CheckpointBlocks(trainer).run(1, save=True)["save_s"] < 1010
