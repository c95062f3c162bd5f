"""The test split is measured once, at the end of a run, with the weights that the validation images chose."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import flip
from images import write_classes
from inference import evaluate_run
from jobs import TINY, built, refused, steps_of, trained
from processes import python
from runs import TEN_STEPS

from entrypoint import ExitCode, Failure
from train.cli import check
from train.config import load
from train.config.batches import StepCounts
from train.config.load import keep_last_overrides
from train.evaluation import results
from train.evaluation.results import TEST_FILE, read_final_score
from train.logging.metrics_logger import METRICS_FILE, read_events
from train.trainer import Trainer

TEST = "data.test_fraction=0.2"


def events(folder: Path) -> list[dict[str, Any]]:
    return list(read_events(folder / METRICS_FILE))


def measured_again(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What `train eval --split test` says of a checkpoint."""
    capsys.readouterr()
    evaluate_run(checkpoint, split="test")
    output: dict[str, Any] = json.loads(capsys.readouterr().out)
    return output


@pytest.fixture
def first_stays_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "is_better", lambda metric, new, old: old is None)


@pytest.mark.usefixtures("first_stays_best")
@pytest.mark.parametrize("average", ["null", "0.9"])
def test_the_best_checkpoints_weights_are_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], average: str
) -> None:
    trainer = trained(tmp_path, TEST, f"train.ema_decay={average}")
    score, saved = read_final_score(tmp_path), json.loads((tmp_path / TEST_FILE).read_text())
    assert score == trainer.final_score
    assert (saved["step"], saved["trained_steps"], saved["samples"]) == (3, trainer.state.step, 16)
    again = measured_again(tmp_path / saved["checkpoint"], capsys)
    assert again["measured"] == "the 16 test images of 80 images of synthetic"
    assert {name: again[name] for name in ("loss", "accuracy", "samples")} == {
        name: saved[name] for name in ("loss", "accuracy", "samples")
    }
    assert again["notes"] == []


@pytest.mark.usefixtures("first_stays_best")
def test_the_network_keeps_the_weights_of_the_last_step(tmp_path: Path) -> None:
    trainer = trained(tmp_path, TEST)
    saved = torch.cat([tensor.flatten().double() for tensor in trainer.state.network.state_dict().values()])
    plain = trained(tmp_path / "plain", TEST)
    assert torch.equal(saved, torch.cat([t.flatten().double() for t in plain.state.network.state_dict().values()]))
    with built(tmp_path, TEST) as again:
        resumed = torch.cat([t.flatten().double() for t in again.state.network.state_dict().values()])
    assert torch.equal(saved, resumed)


def test_without_validation_images_the_last_steps_weights_are_measured(tmp_path: Path) -> None:
    trainer = trained(tmp_path, TEST, "data.val_fraction=0")
    assert trainer.final_score is not None
    assert trainer.final_score.step == trainer.state.step


def test_a_finished_run_is_not_measured_again(tmp_path: Path) -> None:
    trained(tmp_path, TEST)
    before = [(tmp_path / name).read_bytes() for name in (TEST_FILE, METRICS_FILE)]
    assert trained(tmp_path, TEST).is_finished
    assert [(tmp_path / name).read_bytes() for name in (TEST_FILE, METRICS_FILE)] == before


def test_a_run_that_trains_on_is_measured_at_its_new_end(tmp_path: Path) -> None:
    trained(tmp_path, TEST, "train.epochs=1")
    trainer = trained(tmp_path, TEST, "train.epochs=2")
    assert trainer.final_score is not None
    assert trainer.final_score.trained_steps == trainer.state.step
    assert steps_of(events(tmp_path), "test") == [3, 6]


def test_a_run_that_was_stopped_before_the_measurement_is_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "measure_test_split", lambda trainer: None)
        assert not trained(tmp_path, TEST).is_finished
    assert trained(tmp_path, TEST).is_finished
    assert len(steps_of(events(tmp_path), "test")) == 1


def test_a_kill_before_the_file_was_written_leaves_one_event(tmp_path: Path) -> None:
    trained(tmp_path, TEST)
    (tmp_path / TEST_FILE).unlink()
    trained(tmp_path, TEST)
    assert len(steps_of(events(tmp_path), "test")) == 1


def test_a_test_split_changes_nothing_that_is_chosen(tmp_path: Path) -> None:
    """The same training and validation images, with and without a test split of further images."""
    plain = trained(tmp_path / "plain", "data.samples=64", "data.val_fraction=0.25")
    tested = trained(tmp_path / "tested", "data.samples=80", "data.val_fraction=0.2", TEST)
    assert plain.state.result == tested.state.result
    assert plain.final_score is None
    assert not (tmp_path / "plain" / TEST_FILE).exists()


def test_a_folder_test_beside_train_and_val_is_measured_though_it_lacks_a_class(tmp_path: Path) -> None:
    for split, counts in {
        "train": {"a": 16, "b": 16},
        "val": {"a": 4, "b": 4},
        "test": {"b": 5},
    }.items():
        write_classes(tmp_path / "data" / split, **counts)
    settings = ("data.name=folder", f"data.root={tmp_path / 'data'}", "data.classes=10", "data.image_size=8")
    trainer = trained(tmp_path / "run", *settings)
    assert trainer.final_score is not None
    result = trainer.final_score.result
    assert (result.samples, trainer.dataset.num_validation) == (5, 8)
    assert result.recall is not None
    assert result.recall[0] is None


def test_a_test_fraction_beside_a_folder_test_is_refused(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        write_classes(tmp_path / "data" / split, a=4, b=4)
    failure = refused(tmp_path / "run", "data.name=folder", f"data.root={tmp_path / 'data'}", "data.classes=10", TEST)
    assert failure.code == ExitCode.USAGE
    assert f"leave data.test_fraction out: {tmp_path / 'data' / 'test'} is the test split" in failure.fix


def previewed(folder: Path) -> str:
    """What `train check` says of the run in `folder`."""
    words = keep_last_overrides([*TINY, TEST, f"run.output_dir={folder.parent}", f"run.name={folder.name}"])
    steps = StepCounts(per_epoch=3, total=6, dropped=0)
    try:
        preview = check.preview_resume(load.load_config(None, words), folder, steps=steps)
    except Failure as failure:
        return check.describe_refusal(failure)
    assert preview is not None
    return preview


@pytest.mark.usefixtures("first_stays_best")
@pytest.mark.parametrize("damage", [flip, Path.unlink], ids=["flipped", "missing"])
def test_a_run_whose_best_checkpoint_is_damaged_ends_once_the_fix_was_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "measure_test_split", lambda trainer: None)
        trainer = trained(tmp_path, TEST)
    assert "train would measure the test split with the weights of step 3" in previewed(tmp_path)
    best = trainer.checkpointer.path(3)
    damage(best / "model.safetensors")
    with pytest.raises(Failure) as caught:
        trained(tmp_path, TEST)
    failure = caught.value
    assert (failure.code, failure.fix.partition(",")[0]) == (ExitCode.DATA, f"rm -r {best}")
    assert failure.fix in previewed(tmp_path)
    assert previewed(tmp_path).startswith("would be refused (65)")

    shutil.rmtree(best)
    assert "train would measure the test split with the weights of step 6" in previewed(tmp_path)
    console = io.StringIO()
    with built(tmp_path, TEST, out=console) as again:
        again.fit()
    assert f"warning: {best} is gone: the test split is measured with the weights of step 6" in console.getvalue()
    score = read_final_score(tmp_path)
    assert again.is_finished
    assert score is not None
    assert (score.step, score.checkpoint) == (6, "checkpoints/step-00000006")
    assert previewed(tmp_path).startswith("is finished")


def test_a_run_without_a_test_split_has_none_to_measure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = trained(tmp_path)
    assert trainer.checkpointer.newest is not None
    with pytest.raises(Failure, match="no test split to measure"):
        measured_again(trainer.checkpointer.newest, capsys)


def test_any_number_of_ranks_measures_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ten.yaml").write_text(TEN_STEPS)
    settings = (TEST, "eval.batch_size=50", "train.max_steps=4")
    ended = python("-m", "train", "--config", "ten.yaml", "--procs-per-node", "2", *settings, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "192 for the test at the end" in ended.stdout
    saved = json.loads((tmp_path / "runs/run" / TEST_FILE).read_text())
    assert f"{saved['accuracy']:.2%}" in next(line for line in ended.stdout.splitlines() if line.startswith("test "))
    output = measured_again(tmp_path / "runs/run", capsys)
    assert (output["accuracy"], output["samples"]) == (saved["accuracy"], 192)
    assert output["loss"] == pytest.approx(saved["loss"], rel=1e-6)
