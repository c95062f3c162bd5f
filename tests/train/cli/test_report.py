"""`train report` from its words to its files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from made_up_runs import make_run

from entrypoint import Failure
from train import __main__ as front
from train.cli import report
from train.report import read


def test_the_report_of_a_run_lies_in_its_folder(capsys: pytest.CaptureFixture[str]) -> None:
    make_run(Path("runs/one"))
    assert front.run_command(["report", "runs/one"], {}) == 0
    page, beside = capsys.readouterr().out.splitlines()
    assert page == "report         runs/one/report/report.html"
    assert beside.startswith("beside it      report.md, curves-loss.png, ")
    assert Path("runs/one/report/curves-loss.png").exists()


def test_the_report_of_several_lies_here_and_says_its_cautions(capsys: pytest.CaptureFixture[str]) -> None:
    for ranks in (1, 2):
        make_run(Path(f"runs/r{ranks}"), ranks=ranks)
    assert front.run_command(["report", "runs/r1", "runs/r2"], {}) == 0
    assert capsys.readouterr().out.startswith("caution: Only 2 numbers of processes")
    assert Path("report/scaling-speed-up.png").exists()


def test_output_says_otherwise_and_the_run_is_left_alone() -> None:
    before = sorted(os.listdir(make_run(Path("runs/one"))))
    assert front.run_command(["report", "runs/one", "--output", "elsewhere"], {}) == 0
    assert sorted(os.listdir("runs/one")) == before
    assert Path("elsewhere/report.html").exists()


def test_a_name_that_is_no_text_stops_nothing() -> None:
    folder = make_run(Path(os.fsdecode(b"\xff.json")))
    shown = subprocess.run([sys.executable, "-m", "train", "report", str(folder)], capture_output=True, timeout=60)
    assert shown.returncode == 0
    assert (folder / "report/report.html").read_text().count("<h1>Run") == 1


def test_without_a_run_it_says_what_to_write() -> None:
    with pytest.raises(Failure, match="needs a run"):
        report.handle([], {})


def test_neither_torch_nor_numpy_is_imported_to_start_it() -> None:
    script = "import sys; from train.cli import report; print({'torch', 'numpy', 'matplotlib'} & {*sys.modules})"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert shown.stdout == "set()\n"


def test_torch_is_not_imported_to_make_it() -> None:
    make_run(Path("run"))
    script = (
        "import sys; from train import __main__; __main__.run_command(['report', 'run'], {}); "
        "print('torch' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (shown.stdout.splitlines()[-1], shown.stderr) == ("False", "")


def test_a_folder_of_runs_stands_for_all_of_them() -> None:
    for name in ("b", "a"):
        make_run(Path(f"runs/{name}"))
    Path("runs/notes").mkdir()
    Path("runs/notes.txt").touch()
    runs, missing = read.load_runs(["runs", "runs/a"])
    assert ([run.name for run in runs], missing) == (["a", "b"], [])
    assert front.run_command(["report", "runs"], {}) == 0
    assert Path("report/report.html").exists()


def test_a_folder_without_a_run_is_named() -> None:
    Path("runs/notes").mkdir(parents=True)
    with pytest.raises(Failure, match="runs is not a run's folder"):
        read.load_runs(["runs"])
