"""`python -m bench`: its benchmarks exist, and its errors have exit codes."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from bench import __main__ as command
from entrypoint import ExitCode


@pytest.mark.parametrize("name", command.BENCH.benches)
def test_each_benchmark_can_be_run(name: str) -> None:
    assert callable(importlib.import_module(f"bench.{name}").run)


def test_all_of_them_are_in_all() -> None:
    assert [*command._import_benches(command.BENCH, "all")] == [*command.BENCH.benches]


def test_without_the_peers_which_are_not_installed_it_says_where_they_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(command.PEERS_ARGUMENT, "default", str(tmp_path / "peers"))
    assert command.run(["start", "--device", "cpu"], {}) == ExitCode.NO_INPUT
    assert f"no folder {tmp_path}/peers" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "`python -m bench` needs a name"),
        (["steps"], "`python -m bench steps` is no bench"),
        (["all,step"], "`python -m bench all` is no bench"),
        (["step", "--rows", "99"], "99: rows are 1, 3"),
        (["all", "--peers"], "--peers"),
    ],
    ids=["no name", "no bench", "all and one", "no row", "no folder"],
)
def test_a_wrong_command_line_is_refused(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(words, {}) == ExitCode.USAGE
    assert says in capsys.readouterr().err


def test_a_bug_has_a_traceback_and_its_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "run_command", lambda *_: 1 / 0)
    assert command.run(["step"], {}) == ExitCode.BUG
    assert "ZeroDivisionError" in capsys.readouterr().err
