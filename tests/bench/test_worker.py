"""The command lines of a measured training's ranks and of their parent."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import ranks, worker


def test_it_takes_the_settings_of_a_training_and_where_the_bench_is() -> None:
    arguments = worker.build_parser().parse_args(["--pace", "1:x", "--warm-up", "3", "optim.lr=1", "run.name=x"])
    assert (arguments.pace, arguments.warm_up, arguments.overrides) == ("1:x", 3, ["optim.lr=1", "run.name=x"])


def test_without_a_bench_nothing_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        worker.build_parser().parse_args([])
    assert "--pace" in capsys.readouterr().err


def test_a_launch_that_is_refused_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = ranks.main(["--logs", str(tmp_path), "--device", "cpu", "--procs-per-node", "0", "--", "x=1"], {})
    assert code == 64
    assert "--procs-per-node=0" in capsys.readouterr().err
