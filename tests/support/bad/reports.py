"""What `train report` is given that is no run and no bench, and places where it may not write."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bad.case import Case, through_train

report = partial(Case, door=through_train)


def run(folder: Path) -> None:
    """A run's folder with nothing in it but one line."""
    (folder / "run").mkdir()
    (folder / "run/metrics.jsonl").write_text('{"event": "train", "step": 1, "loss": 1.0}\n')


def linked(folder: Path) -> None:
    run(folder)
    (folder / "elsewhere").mkdir()
    (folder / "run/report").symlink_to(folder / "elsewhere")


def theirs(folder: Path) -> None:
    run(folder)
    (folder / "run/report").mkdir()
    (folder / "run/report/thesis.md").write_text("mine")


CASES = [
    report(id="report-alone", line=("report",), code=64, says=("needs a run",), fix="train report RUN"),
    report(id="report-option", line=("report", "--outptu", "x"), code=64, says=("--outptu",), fix="write --output"),
    report(
        id="report-of-nothing",
        line=("report", "runs/x"),
        code=66,
        says=("not a run's folder", "exist"),
        fix="train where",
    ),
    report(
        id="report-of-a-folder",
        prepare=lambda folder: (folder / "empty").mkdir(),
        line=("report", "empty"),
        code=66,
        says=("not a run's folder", "without them"),
        fix="train where",
    ),
    report(
        id="report-of-no-file", line=("report", "b.json"), code=66, says=("b.json cannot be read",), fix="--output DIR"
    ),
    report(
        id="report-of-no-bench",
        prepare=lambda folder: (folder / "b.json").write_text("[" * 100_000),
        line=("report", "b.json"),
        code=65,
        says=("holds no bench", "rows and series"),
        fix="bench.json",
    ),
    report(
        id="report-through-a-link",
        prepare=linked,
        line=("report", "run"),
        code=77,
        says=("run/report is a symbolic link", "elsewhere"),
        fix="--output DIR",
    ),
    report(
        id="report-over-the-users-own",
        prepare=theirs,
        line=("report", "run"),
        code=73,
        says=("holds files that are no report", "thesis.md"),
        fix="--output DIR",
    ),
    report(
        id="report-into-a-file",
        prepare=run,
        line=("report", "run", "--output", "run/metrics.jsonl"),
        code=73,
        says=("cannot write run/metrics.jsonl",),
        fix="--output DIR",
    ),
]
