"""What `train eval` starts, and what it leaves behind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from entrypoint import ExitCode, Failure
from train import __main__ as front
from train.checkpoint import manifest
from train.commands import launching
from train.settings import schema

CPU = ("--device", "cpu")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint whose training was on two ranks of the CPU; without tensors."""
    config = schema.as_mapping(schema.load(None, ["launch.device=cpu", "launch.procs_per_node=2"]))
    state = json.dumps({"config": config}).encode()
    path = tmp_path / "run" / "checkpoints" / "step-00000007"
    path.mkdir(parents=True)
    (path / "state.json").write_bytes(state)
    listed = manifest.Manifest(format=1, step=7, torch="2.0", files={"state.json": manifest.entry(state)})
    (path / manifest.NAME).write_bytes(manifest.to_bytes(listed))
    return path


def test_eval_starts_the_ranks_of_the_checkpoints_configuration(launched: dict[str, Any], checkpoint: Path) -> None:
    environ = {"TMPDIR": str(checkpoint.parents[2])}
    assert front.run(["eval", "run", "--json", "eval.batch_size=9"], environ) == 7
    command, scratch = launched["command"], launched["log_dir"].parent
    assert command[1:] == [
        *("-m", "train.worker", "--evaluate", str(checkpoint), "--scratch", str(scratch), "--json", "eval.batch_size=9")
    ]
    assert launched["plan"].spawn == 2
    assert scratch.parent == checkpoint.parents[2]


@pytest.mark.parametrize(("code", "stays"), [(0, False), (75, False), (65, True)])
def test_eval_leaves_logs_only_where_it_failed(
    launched: dict[str, Any], checkpoint: Path, monkeypatch: pytest.MonkeyPatch, code: int, stays: bool
) -> None:
    monkeypatch.setattr(launching, "run_plan", lambda *arguments, **options: code)
    assert front.run(["eval", str(checkpoint)], {"TMPDIR": "."}) == code
    assert bool(list(Path().glob("train-*"))) == stays


def test_eval_that_cannot_start_leaves_nothing(
    launched: dict[str, Any], checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **options: Any) -> int:
        raise Failure("no such host", fix="name another", code=ExitCode.PEER)

    monkeypatch.setattr(launching, "run_plan", refuse)
    assert front.run(["eval", str(checkpoint)], {"TMPDIR": "."}) == 69
    assert list(Path().glob("train-*")) == []


def test_eval_says_what_was_passed_over(launched: dict[str, Any], checkpoint: Path) -> None:
    shutil.copytree(checkpoint, checkpoint.with_name("step-00000008"))  # its manifest belongs to step 7
    front.run(["eval", "run", "data.val_fraction=0.5"], {"TMPDIR": "."})
    assert launched["command"][4] == str(checkpoint)
    said = "\n".join(launched["plan"].warnings)
    assert "skipped a damaged checkpoint: step-00000008" in said
    assert "data.val_fraction differs" in said
