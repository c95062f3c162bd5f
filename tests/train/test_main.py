"""The command `train` up to the point where workers start."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import bare_python

from train import __main__ as front

CPU = ("--device", "cpu")


@pytest.fixture(autouse=True)
def _in_a_fresh_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# More lines: tests/support/bad/commands.py.
BAD_LINES: dict[str, tuple[Sequence[str], int, str]] = {
    "no-number": (["--procs-per-node", "two"], 64, "--procs-per-node=two"),
    "no-time-limit": (["--time-limit", "soon"], 64, "--time-limit soon"),
    "no-time-limit-to-check": (["check", "--time-limit", "0"], 64, "--time-limit 0"),
    "misspelt-training": (["trian"], 64, "fix: write `train --config FILE`\n"),
    "no-choice": (["eval", "runs/r", "--split", "tset"], 64, "fix: write --split test\n"),
    "nothing-like-a-choice": (["eval", "runs/r", "--split", "x"], 64, "fix: use one of: validation, test, all\n"),
    "data-check-without-data": (["data", "check", "data.name=folder", "data.root=none"], 66, "data.root"),
    "report-of-nothing": (["report"], 64, "`train report` needs a run"),
    "report-of-what-is-not-there": (["report", "runs/none"], 66, "runs/none is not a run's folder"),
    "command-second": (["optim.lr=1", "check"], 64, "`check` is not section.key=value"),
    "folder-as-file": (["--config", "."], 64, "--config ."),
    "micro-remainder": ([*CPU, "train.micro_batch_size=100"], 64, "train.micro_batch_size=64 or 128"),
    "no-classes": ([*CPU, "data.name=folder", "data.root=."], 66, "data.root"),
    "bad-value": (["train.precision=no"], 64, "train.precision"),
    "python-tag": (["train.epochs=!!python/name:os.system"], 77, "train.epochs"),
    "json-of-a-training": (["--json"], 64, "--json belongs to `train eval`"),
    "eval-with-another-option": (["eval", "runs/x", "--profile-lines"], 64, "see `train eval --help`"),
    "lines-of-a-check": (["check", "--profile-lines"], 64, "--profile-lines belongs to a training"),
    "option-twice": ([*CPU, "--device", "cuda"], 64, "found: `--device cpu` and `--device cuda`"),
    "file-twice": (["--config", "a.yaml", "--config=b.yaml"], 64, "found: `--config a.yaml` and `--config b.yaml`"),
    "option-twice-alike": (["check", "--time-limit", "5", "--time-limit", "5"], 64, "--time-limit is given twice"),
    "option-of-eval-twice": (["eval", "r", "--per-image", "a.csv", "--per-image", "b.csv"], 64, "--per-image b.csv"),
    "option-of-predict-twice": (["predict", "r", "a.png", "--top", "1", "--top", "2"], 64, "--top is given twice"),
    "option-of-export-twice": (["export", "r", "--output", "a", "--output", "b"], 64, "--output is given twice"),
    "option-of-bench-twice": (["bench", "comm", "--pairs", "3", "--pairs", "4"], 64, "--pairs is given twice"),
}


@pytest.mark.parametrize(("argv", "code", "text"), BAD_LINES.values(), ids=BAD_LINES.keys())
def test_a_bad_command_line_ends_with_its_code_a_fix_and_nothing_written(
    argv: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert front.run_command(argv, {}) == code
    shown = capsys.readouterr().err
    assert shown.startswith(f"ERROR[{code}]")
    assert text in shown
    assert "\n  fix: " in shown
    assert "Traceback" not in shown
    assert list(tmp_path.iterdir()) == []


NESTED_COMMANDS = {
    ("data", name): name[:2] + name[3:] for name in ("check", "fetch", "profile", "show", "pack", "index")
} | {("weights", "fetch"): "fech", ("bench", "scaling"): "scalin"}


@pytest.mark.parametrize(("command", "misspelt"), NESTED_COMMANDS.items(), ids=" ".join)
def test_a_misspelt_command_of_a_command_is_answered_with_the_nearest_one(
    command: tuple[str, str], misspelt: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert front.run_command([command[0], misspelt], {}) == 64
    error, fix = capsys.readouterr().err.splitlines()
    assert error.startswith(f"ERROR[64] `train {command[0]} {misspelt}` is no ")
    assert re.match(rf"  fix: write `?(.*train {command[0]} )?{command[1]}\b", fix)


def test_the_name_of_a_folder_is_answered_with_the_settings_that_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    assert front.run_command(["check", "photos"], {}) == 64
    assert "fix: write data.name=folder data.root=photos to train on the images in it\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variable", "value"), [("ENTRYPOINT_DEVICE", "tpu"), ("ENTRYPOINT_PROCS_PER_NODE", "x"), ("RANK", "0")]
)
def test_a_bad_variable_is_named(variable: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run_command([], {variable: value}) in (64, 76)
    assert variable in capsys.readouterr().err


def test_a_limit_of_the_system_is_no_bug_of_ours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(front.training.load, "load_config", raising(BlockingIOError(errno.EAGAIN, "no more")))
    assert front.run_command(CPU, {}) == 71
    assert capsys.readouterr().err.startswith("ERROR[71] ")


def test_a_bug_of_ours_shows_where(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(front.training.load, "load_config", lambda *_: {}["x"])
    assert front.run_command(CPU, {}) == 70
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code"), [("out of memory", 71), ("invalid device ordinal", 78), ("invalid argument", 70)]
)
def test_what_cuda_says_in_this_process_is_no_bug_where_it_is_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, code: int
) -> None:
    error = torch.AcceleratorError(f"CUDA error: {words}")
    monkeypatch.setattr(front.training.load, "load_config", raising(error))
    assert front.run_command(CPU, {}) == code
    assert ("Traceback" in capsys.readouterr().err) == (code == 70)


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise error

    return fail


def test_ctrl_c_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front.training.load, "load_config", raising(KeyboardInterrupt()))
    assert front.run_command(CPU, {}) == 130


def test_torch_is_not_imported() -> None:
    script = (
        "import sys; from train import __main__; __main__.run_command(['check'], {}); print('torch' in sys.modules)"
    )
    assert bare_python("-c", script, CUDA_VISIBLE_DEVICES="").stdout.splitlines()[-1] == "False"


def test_numpy_is_not_imported() -> None:
    script = "import sys; from train import __main__; print('numpy' in sys.modules)"
    assert bare_python("-c", script).stdout == "False\n"


def test_the_version_names_what_decides_results() -> None:
    shown = bare_python("-m", "train", "--version").stdout
    assert "train-image " in shown
    assert "torch " in shown


def test_help_has_examples() -> None:
    shown = bare_python("-m", "train", "-h")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "train check --config cfg.yaml" in shown.stdout


def test_a_reader_that_goes_away_is_no_failure() -> None:
    """As in `train check | head -1`, with a pipe whose reader is gone before the first byte."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "train", "check", *CPU]
    with os.fdopen(write_end, "wb") as nobody:
        done = subprocess.run(command, stdout=nobody, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
