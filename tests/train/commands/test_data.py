"""What `train data` prints and ends with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from images import write_classes

from train import __main__ as front

CPU = ("--device", "cpu")


def test_data_check_tells_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run(["data", "check", "data.samples=20", "data.image_size=8"], {}) == 0
    shown = capsys.readouterr()
    assert "leakage        none" in shown.out
    assert shown.err == ""


def test_data_check_ends_with_65_for_bad_data_also_as_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_classes(tmp_path / "train", ant=2, bee=2)
    write_classes(tmp_path / "val", ant=1, bee=1)
    (tmp_path / "train/ant/000.png").write_bytes(b"no image")
    assert front.run(["data", "check", "--json", "data.name=folder", f"data.root={tmp_path}"], {}) == 65
    shown = capsys.readouterr()
    assert json.loads(shown.out)["ok"] is False
    assert "\n  fix: " in shown.err


def test_data_profile_says_what_limits_a_training_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("train.inspection.stages.SECONDS", 0.0)
    tiny = ("data.samples=20", "data.image_size=8", "model.args.width=4", "train.global_batch_size=8")
    assert front.run(["data", "profile", *CPU, "--procs-per-node", "2", *tiny], {}) == 0
    assert "micro batch 4, on CPU\n" in capsys.readouterr().out
