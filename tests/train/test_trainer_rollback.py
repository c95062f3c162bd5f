"""A loss that jumps takes the run back to its last checkpoint, once, and its end is that of a run without the jump."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import late_reader
import pytest
from jobs import TINY, built, steps_of
from processes import python

from entrypoint import ExitCode, Failure
from train import fault_injection
from train.checkpoint import store
from train.config.load import keep_last_overrides
from train.logging.metrics_logger import METRICS_FILE, read_events

# Four steps an epoch; a reading after each step.
LONG = ("train.epochs=5", "log.every_steps=1", "checkpoint.every_steps=2", "train.spike=rollback")


def train(folder: Path, *settings: str, fault: str = "") -> tuple[str, int]:
    """What was said, and the step at which the state stands."""
    said = io.StringIO()
    with built(folder, *LONG, *settings, out=said) as trainer:
        trainer.faults.waiting = fault_injection.parse_faults(fault, 0).waiting
        try:
            trainer.fit()
        finally:
            (folder / "said").write_text(said.getvalue())
        return said.getvalue(), trainer.state.step


def events(folder: Path) -> Sequence[dict[str, object]]:
    return list(read_events(folder / METRICS_FILE))


def hashes(folder: Path) -> dict[str, str]:
    """Of the last checkpoint's tensors."""
    found = store.newest_checkpoint(folder / "checkpoints")
    assert found is not None
    return {name: entry.sha256 for name, entry in found.contents.files.items() if name.endswith(".safetensors")}


def test_the_run_goes_back_and_ends_with_the_bits_of_one_without_a_jump(tmp_path: Path) -> None:
    train(tmp_path / "plain")
    said, at = train(tmp_path / "jumped", fault="loss:0:10:x1e3")
    assert ("the loss jumped to" in said, "back by 1 step " in said, at) == (True, True, 20)
    assert hashes(tmp_path / "jumped") == hashes(tmp_path / "plain")
    assert steps_of(events(tmp_path / "jumped"), "train") == list(range(1, 21))
    assert steps_of(events(tmp_path / "jumped"), "rollback") == [10]


def test_a_second_jump_ends_with_90_also_after_a_restart(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="diverged") as twice:
        train(tmp_path, fault="loss:0:10:x1e3,loss:0:16:x1e3")
    assert (twice.value.code, "for the second time" in str(twice.value)) == (ExitCode.DIVERGED, True)
    with pytest.raises(Failure, match="diverged"):
        train(tmp_path, "train.epochs=9", fault="loss:0:30:x1e3")


def test_without_a_checkpoint_there_is_nothing_to_go_back_to(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="no checkpoint to go back to") as caught:
        train(tmp_path, "checkpoint.every_steps=null", "data.val_fraction=0", fault="loss:0:10:x1e3")
    assert caught.value.code == ExitCode.DIVERGED


def test_a_jump_between_log_points_is_in_no_checkpoint(tmp_path: Path) -> None:
    train(tmp_path, "log.every_steps=2", "checkpoint.every_steps=1", fault="loss:0:12:x1e3")
    assert steps_of(events(tmp_path), "rollback") == [12]


@pytest.mark.parametrize(("policy", "warned"), [("warn", 1), ("none", 0)])
def test_other_policies_go_on(tmp_path: Path, policy: str, warned: int) -> None:
    said, at = train(tmp_path, f"train.spike={policy}", fault="loss:0:10:x1e3")
    assert (said.count("warning: the loss jumped"), at) == (warned, 20)
    assert steps_of(events(tmp_path), "spike") == [11] * warned


def test_the_checkpoint_remembers(tmp_path: Path) -> None:
    train(tmp_path, fault="loss:0:10:x1e3")
    found = store.newest_checkpoint(tmp_path / "checkpoints")
    assert found is not None
    assert json.loads((found.path / "state.json").read_text())["state"]["rollbacks"] == 1


def test_no_rank_is_left_reading_a_checkpoint_that_is_replaced(tmp_path: Path) -> None:
    settings = keep_last_overrides(["run.output_dir=.", *TINY, *LONG, "train.epochs=3"])
    script = [sys.executable, late_reader.__file__, *settings]
    environ = {"FAULT": "loss:0:10:x1e3", "PYTHONPATH": ""}
    words = ("-m", "entrypoint", "run", "--procs-per-node", "2", "--device", "cpu", "--", *script)
    ended = python(*words, environ=environ, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "warning: the loss jumped" in ended.stdout
