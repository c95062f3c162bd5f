"""What a real training leaves is what a report reads: one run in this process, and its whole report."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from jobs import ALONE, TINY, forget_accelerate

from train.measuring import chosen
from train.report import comparing, contents, figures, reading
from train.report.document import Document
from train.report.reading import Run
from train.run import session
from train.run.bell import Bell
from train.run.seat import Seat
from train.settings import schema, variables
from train.using import card, facts


def start(folder: Path) -> None:
    """Train in this process, or find that it was done."""
    config = schema.load(None, [*TINY, f"run.output_dir={folder.parent}", f"run.name={folder.name}"])
    environ: dict[str, str] = {"ENTRYPOINT_HOSTS": "node01", "ENTRYPOINT_LAUNCHER": "local"}
    found = variables.take_out(environ, download=False)
    forget_accelerate()
    try:
        session.run(config, Seat(world=ALONE, folder=folder), environ, Bell(), found=found, argv=["train"], now=0.0)
    finally:
        forget_accelerate()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Eight steps, read back."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    start(folder)
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


def told(folder: Path) -> tuple[dict[str, str], str, str, str]:
    """What the report and the card say of where it was trained, and how it ended."""
    run, found = reading.read(folder), chosen.choose(str(folder))
    about = facts.of(chosen.configured(found, None, ())[0], found)
    values = {name: read(run) for name, read in comparing.SAME.items()}
    return values, figures.place(run), figures.status(run), card.text(about, "model")


def test_a_start_of_a_finished_run_on_another_machine_changes_no_word_of_the_training(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run.folder, folder)
    recorded = json.loads((folder / "run.json").read_text())
    recorded["training"] |= {"device": "NVIDIA H100", "precision": "bf16"}
    recorded["world"]["world_size"] = recorded["starts"][0]["world_size"] = 8
    (folder / "run.json").write_text(json.dumps(recorded | {"versions": {"torch": "2.0"}}))
    before = told(folder)
    start(folder)
    assert told(folder) == before
    assert (before[0]["device"], before[1]) == ("NVIDIA H100", "8 ranks on 1 node")
    assert all(word in before[3] for word in ("NVIDIA H100", "bf16", "| torch | 2.0 |"))
