"""What a real training leaves is what a report reads: one run in this process, and its whole report."""

from __future__ import annotations

import pytest
from jobs import ALONE, TINY, forget_accelerate

from train.report import comparing, contents, reading
from train.report.document import Document
from train.report.reading import Run
from train.run import session
from train.run.bell import Bell
from train.run.seat import Seat
from train.settings import schema, variables


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Eight steps, read back."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    config = schema.load(None, [*TINY, f"run.output_dir={folder.parent}", "run.name=run"])
    environ: dict[str, str] = {"ENTRYPOINT_HOSTS": "node01", "ENTRYPOINT_LAUNCHER": "local"}
    found = variables.take_out(environ, download=False)
    forget_accelerate()
    try:
        session.run(config, Seat(world=ALONE, folder=folder), environ, Bell(), found=found, argv=["train"], now=0.0)
    finally:
        forget_accelerate()
    return reading.read(folder)


@pytest.fixture(scope="module")
def report(run: Run) -> Document:
    """Its report."""
    return contents.document([run], [], anyway=False, made="now")


def test_every_value_that_runs_are_compared_by_is_recorded(run: Run) -> None:
    told = {name: read(run) for name, read in comparing.SAME.items()}
    assert comparing.UNKNOWN not in str(told)
    assert comparing.likeness([run, run]).alike


def test_nothing_is_missing_but_gpus(run: Run, report: Document) -> None:
    assert run.missing == ()
    assert report.cautions() == []
    assert str(report).lower().count("not measured") == 1


def test_the_curves_and_the_matrix_are_there(report: Document) -> None:
    names = ["curves-loss", "curves-scores", "curves-learning-rate", "curves-speed", "confusion"]
    assert [picture.name for picture in report.pictures()] == names
