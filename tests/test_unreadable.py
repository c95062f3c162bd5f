"""What a user may not read or write is said with its code and a fix, at the front door, before anything is started."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from shut import as_nobody

from train import __main__ as front

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="machine: only root may become another user")
TRAIN, EVAL = ("--device", "cpu", "run.output_dir=kept", "run.name=run"), ("eval", "kept/run")
# id -> (command line, what is shut, its mode, the exit code)
SHUT = {
    "config": (("check", "--config", "cfg.yaml"), "cfg.yaml", 0o600, 64),
    "data": (("check", "data.name=folder", "data.root=data"), "data", 0o700, 66),
    "run": (TRAIN, "kept/run", 0o700, 73),
    "run-cannot-be-written": (TRAIN, "kept/run", 0o755, 73),
    "place-cannot-be-written": ((*TRAIN[:-1], "run.name=new"), "kept", 0o755, 73),
    "errors": (TRAIN, "kept/run/errors", 0o700, 73),
    "eval-run": (EVAL, "kept/run", 0o700, 73),
    "eval-checkpoints": (EVAL, "kept/run/checkpoints", 0o700, 73),
    "eval-checkpoint": (EVAL, "kept/run/checkpoints/step-00000004", 0o700, 65),
}


@pytest.fixture
def workdir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Everybody may write here: pytest's own folders are root's alone."""
    folder = Path(tempfile.mkdtemp(prefix="unreadable-"))
    for name in ("data", "kept/run/checkpoints/step-00000004", "kept/run/errors"):
        (folder / name).mkdir(parents=True)
    (folder / "cfg.yaml").write_text("run: {seed: 1}\n")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o777)
    monkeypatch.chdir(folder)
    front.run_command(["check"], dict(os.environ))  # loads what a command loads: Python itself may lie in root's home
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("case", SHUT)
def test_what_is_shut_is_said(workdir: Path, case: str, capfd: pytest.CaptureFixture[str]) -> None:
    line, name, mode, code = SHUT[case]
    (workdir / name).chmod(mode)
    assert as_nobody(lambda: front.run_command(line, dict(os.environ))) == code
    error = capfd.readouterr().err
    assert f"ERROR[{code}]" in error
    assert "fix: " in error
