"""The parent of a measured run's ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from train.bench import __main__ as parent


def test_a_launch_that_is_refused_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = parent.run(["--logs", str(tmp_path), "--device", "cpu", "--procs-per-node", "0", "--", "x=1"], {})
    assert code == 64
    assert "--procs-per-node=0" in capsys.readouterr().err
