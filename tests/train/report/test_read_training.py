"""What a real training leaves is what a report reads: one run in this process, and its whole report."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from jobs import ALONE, TINY, forget_accelerate

from entrypoint import Handover
from train import session
from train.config import environment, load
from train.inference import checkpoints, model_card
from train.inference.model_code import ModelCode
from train.rank_context import RankContext
from train.report import compare, page
from train.report import read as reading
from train.report.document import Report
from train.report.read import RecordedRun


def start(folder: Path) -> None:
    """Train in this process, or find that it was done."""
    config = load.load_config(None, [*TINY, f"run.output_dir={folder.parent}", f"run.name={folder.name}"])
    environ = Handover(hosts=("node01",), launcher="local").to_environ()
    found = environment.remove_conflicting_variables(environ, download=False)
    forget_accelerate()
    try:
        session.train_on_rank(
            config, RankContext(world=ALONE, folder=folder), environ, variables=found, argv=["train"], started_at=0.0
        )
    finally:
        forget_accelerate()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    """Eight steps, read back."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    start(folder)
    return reading.load_run(folder)


@pytest.fixture(scope="module")
def report(run: RecordedRun) -> Report:
    """Its report."""
    return page.build_report([run], [], anyway=False, byline="now")


def test_every_value_that_runs_are_compared_by_is_recorded(run: RecordedRun) -> None:
    told = {name: read(run) for name, read in compare.MUST_MATCH.items()}
    assert reading.NOT_RECORDED not in str(told)
    assert compare.find_differences([run, run]).alike


def test_nothing_is_missing_but_gpus(run: RecordedRun, report: Report) -> None:
    assert run.missing == ()
    assert report.cautions() == []
    assert str(report).lower().count("not measured") == 1


def test_the_curves_and_the_matrix_are_there(report: Report) -> None:
    names = ["curves-loss", "curves-scores", "curves-learning-rate", "curves-speed", "confusion"]
    assert [picture.name for picture in report.pictures()] == names


def told(folder: Path) -> tuple[dict[str, str], str, str, str]:
    """What the report and the card say of where it was trained, and how it ended."""
    run, found = reading.load_run(folder), checkpoints.choose_checkpoint(str(folder))
    about = model_card.collect_model_facts(checkpoints.load_config(found, None, ())[0], found)
    values = {name: read(run) for name, read in compare.MUST_MATCH.items()}
    card = model_card.render_card(about, "model", ModelCode(imports=(), lines=()))
    return values, reading.describe_world(run), reading.describe_status(run), card


def test_a_start_of_a_finished_run_on_another_machine_changes_no_word_of_the_training(
    run: RecordedRun, tmp_path: Path
) -> None:
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
