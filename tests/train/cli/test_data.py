"""What `train data` prints and ends with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from images import write_classes
from processes import python, unmeasured

from entrypoint import ExitCode
from train import __main__ as front
from train.config import environment

CPU = ("--device", "cpu")


def test_data_check_tells_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run_command(["data", "check", "data.samples=20", "data.image_size=8"], {}) == 0
    shown = capsys.readouterr()
    assert "leakage        none" in shown.out
    assert shown.err == ""


def test_data_check_ends_with_65_for_bad_data_also_as_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_classes(tmp_path / "train", ant=2, bee=2)
    write_classes(tmp_path / "val", ant=1, bee=1)
    (tmp_path / "train/ant/000.png").write_bytes(b"no image")
    assert front.run_command(["data", "check", "--json", "data.name=folder", f"data.root={tmp_path}"], {}) == 65
    shown = capsys.readouterr()
    assert json.loads(shown.out)["ok"] is False
    assert "\n  fix: " in shown.err


def test_data_profile_says_what_limits_a_training_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.data_profile.SECONDS_PER_STAGE", 0.0)
    tiny = ("data.samples=20", "data.image_size=8", "model.args.width=4", "train.global_batch_size=8")
    assert front.run_command(["data", "profile", *CPU, "--procs-per-node", "2", *tiny], {}) == 0
    assert "micro batch 4, on CPU\n" in capsys.readouterr().out


SEEN = """
import os, sys, torch
from pathlib import Path
from entrypoint import ExitCode, Failure
def make(data):
    found = *(os.environ.get(name) for name in ("OMP_NUM_THREADS", "GOMP_SPINCOUNT")), torch.get_num_threads()
    Path("of-" + Path(sys.argv[0]).stem).write_text(str(found))
    raise Failure("enough is seen", fix="", code=ExitCode.DATA)
"""


def test_data_profile_computes_in_the_environment_of_a_rank(tmp_path: Path) -> None:
    (tmp_path / "seen.py").write_text(SEEN)
    environ = {name: value for name, value in unmeasured().items() if not name.startswith(("OMP_", "GOMP_"))}
    for command in ((), ("data", "profile")):
        words = ("--device", "cpu", "--procs-per-node", "2", "data.name=seen:make", f"run.output_dir={tmp_path}")
        done = python("-m", "train", *command, *words, env=environ, cwd=tmp_path)
        assert done.returncode == ExitCode.DATA, done.stderr
    ours, ranks = ((tmp_path / f"of-{name}").read_text() for name in ("__main__", "worker"))
    assert ours == ranks
    assert environment.GOMP_SPINCOUNT in ours
