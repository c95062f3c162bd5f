"""Whoever uses the weights of a run that diverged is told so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from images import write_image
from jobs import after, built, forget_accelerate, trained

from entrypoint import ExitCode, Failure
from entrypoint.run_errors import RunErrors
from train import __main__ as front
from train.inference import export
from train.run import record
from train.trainer import Trainer

CPU = {"ENTRYPOINT_DEVICE": "cpu"}
SAID = "this run ended with exit code 90: training diverged at or before step 6. Its weights may be useless"


def spoil(trainer: Trainer) -> None:
    with torch.no_grad():
        next(trainer.state.network.parameters()).fill_(float("nan"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that diverged, with checkpoints of finite weights; its worker has written its exit file."""
    folder = tmp_path_factory.mktemp("runs") / "diverged"
    with pytest.MonkeyPatch.context() as patch, built(folder, "checkpoint.every_steps=2") as trainer:
        after(5, spoil, patch)
        with pytest.raises(Failure) as caught:
            trainer.fit()
    RunErrors.in_run(folder).write_exit(code=caught.value.code, step=6, cause=caught.value.what)
    return folder


@pytest.mark.parametrize("name", [".", "checkpoints/step-00000004"])
def test_a_prediction_says_it_once(run: Path, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forget_accelerate()
    image = write_image(tmp_path / "photo.png", 9)
    assert front.run_command(["predict", str(run / name), str(image)], CPU) == 0
    assert capsys.readouterr().err.count(f"WARNING: {SAID}") == 1
    forget_accelerate()


def test_an_export_its_card_and_its_predictions_say_it(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert front.run_command(["export", str(run), "--output", str(tmp_path / "model")], {}) == 0
    assert capsys.readouterr().err.count(f"WARNING: {SAID}") == 1
    assert SAID in (tmp_path / "model/README.md").read_text()
    image = write_image(tmp_path / "photo.png", 9)
    assert front.run_command(["predict", str(tmp_path / "model"), str(image)], CPU) == 0
    assert f"WARNING: {SAID}" in capsys.readouterr().err


def test_a_caution_of_another_kind_is_refused(run: Path, tmp_path: Path) -> None:
    assert front.run_command(["export", str(run), "--output", str(tmp_path / "model")], {}) == 0
    description = tmp_path / "model" / export.DESCRIPTION_FILE
    for forged in ({"caution": 5}, []):
        description.write_text(json.dumps(json.loads(description.read_text()) | {"checkpoint": forged}))
        with pytest.raises(Failure, match="cannot be read back"):
            export.load_exported(tmp_path / "model")


def test_an_evaluation_says_it_and_keeps_it_with_the_scores(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert front.run_command(["eval", str(run), "--json"], CPU) == 0
    out, err = capfd.readouterr()
    assert err.count(SAID) == 1
    assert json.loads(out)["notes"][0].startswith(SAID)


def test_a_new_run_from_its_weights_says_it(run: Path, tmp_path: Path) -> None:
    with built(tmp_path, f"model.weights={run}") as trainer:
        assert [note for note in trainer.notes if SAID in note]


def test_a_later_start_that_was_refused_does_not_hide_it(tmp_path: Path) -> None:
    starts = [
        {"step": 0, "world_size": 1, "ended": {"code": 90, "cause": "training diverged at or before step 6"}},
        {"step": 4, "ended": {"code": 65, "cause": "the configuration is not the one that this run began with"}},
    ]
    tmp_path.joinpath("run.json").write_text(json.dumps({"starts": starts}))
    RunErrors.in_run(tmp_path).write_exit(code=65, step=None, cause="the configuration is not the one")
    assert SAID in str(record.describe_divergence(tmp_path))


def test_other_runs_say_nothing(tmp_path: Path) -> None:
    trained(tmp_path)
    assert record.describe_divergence(tmp_path) is None
    for code in (ExitCode.OK, ExitCode.STOPPED, ExitCode.IO):
        RunErrors.in_run(tmp_path).write_exit(code=code, step=8, cause="finished")
        assert record.describe_divergence(tmp_path / "checkpoints/step-00000008") is None
