"""When a run has reached what it was made for."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import built, steps_of, trained

from entrypoint import ExitCode, Failure
from train.config.schema import EvalConfig
from train.evaluation import early_stopping, results
from train.evaluation.results import EvaluationResult
from train.logging.metrics_logger import METRICS_FILE, read_events

TARGET = EvalConfig(target=0.9, patience=2)


def measured(accuracy: float) -> EvaluationResult:
    return EvaluationResult.from_json({"accuracy": accuracy, "loss": 1.0, "samples": 100})


def held(*accuracies: float, config: EvalConfig = TARGET) -> int:
    times = 0
    for accuracy in accuracies:
        times = early_stopping.count_target_streak(config, times, measured(accuracy))
    return times


def test_evaluations_at_the_target_are_counted() -> None:
    assert held(0.9, 0.95) == 2


def test_one_below_the_target_starts_the_count_again() -> None:
    assert held(0.95, 0.95, 0.89, 0.95) == 1


def test_without_a_target_nothing_is_held() -> None:
    assert held(1.0, 1.0, config=EvalConfig()) == 0


def test_a_loss_reaches_its_target_from_above() -> None:
    assert early_stopping.count_target_streak(EvalConfig(metric="loss", target=1.5), 0, measured(0.1)) == 1
    assert early_stopping.count_target_streak(EvalConfig(metric="loss", target=0.5), 0, measured(0.1)) == 0


def overrides_of(config: EvalConfig, *, streak: int = 0, stale: int = 0) -> list[str]:
    stops = early_stopping.find_early_stops(config, target_streak=streak, stale_evaluations=stale)
    return [stop.override for stop in stops]


@pytest.mark.parametrize(("times", "over"), [(1, []), (2, ["eval.target=null"]), (3, ["eval.target=null"])])
def test_the_run_ends_after_patience_evaluations(times: int, over: list[str]) -> None:
    assert overrides_of(TARGET, streak=times) == over


def test_a_target_that_was_taken_away_ends_nothing() -> None:
    assert overrides_of(EvalConfig(), streak=5) == []


@pytest.mark.parametrize(("stale", "over"), [(2, []), (3, ["eval.early_stop=null"])])
def test_the_run_ends_after_so_many_evaluations_without_improvement(stale: int, over: list[str]) -> None:
    assert overrides_of(EvalConfig(early_stop=3), stale=stale) == over


def test_both_reasons_to_end_are_named() -> None:
    config = EvalConfig(target=0.9, early_stop=2)
    assert overrides_of(config, streak=1, stale=2) == ["eval.target=null", "eval.early_stop=null"]


def test_without_early_stop_no_number_of_evaluations_ends_the_run() -> None:
    assert overrides_of(EvalConfig(), stale=1000) == []


@pytest.mark.parametrize(("accuracy", "before", "times"), [(0.95, 0.9, 3), (0.95, 0.5, 1), (0.5, 0.5, 0)])
def test_what_was_held_is_judged_by_the_target_of_today(accuracy: float, before: float, times: int) -> None:
    assert early_stopping.restore_target_streak(TARGET, 3, measured(accuracy), before) == times


def test_a_run_ends_at_its_target_and_is_finished(tmp_path: Path) -> None:
    trainer = trained(tmp_path, "eval.target=0.0", "eval.patience=1")
    assert (trainer.state.step, trainer.steps.total) == (4, 8)
    assert trainer.checkpointer.newest == tmp_path / "checkpoints" / "step-00000004"


def test_a_run_that_ended_at_its_target_does_nothing_when_it_is_started_again(tmp_path: Path) -> None:
    trained(tmp_path, "eval.target=0.0")
    before = (tmp_path / METRICS_FILE).read_text()
    trainer = trained(tmp_path, "eval.target=0.0")
    assert trainer.state.step == 4
    assert (tmp_path / METRICS_FILE).read_text() == before


def test_a_run_that_ended_at_its_target_goes_on_without_it(tmp_path: Path) -> None:
    trained(tmp_path, "eval.target=0.0")
    assert trained(tmp_path).state.step == 8


def test_patience_is_counted_over_a_restart(tmp_path: Path) -> None:
    settings = ("train.epochs=4", "eval.target=0.0", "eval.patience=3", "optim.schedule=constant")
    trained(tmp_path, *settings, "train.epochs=2")
    assert trained(tmp_path, *settings).state.step == 12


@pytest.fixture
def first_stays_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "is_better", lambda metric, new, old: old is None)


@pytest.mark.usefixtures("first_stays_best")
def test_a_run_ends_when_its_metric_no_longer_improves(tmp_path: Path) -> None:
    trainer = trained(tmp_path, "train.epochs=6", "eval.early_stop=2")
    assert (trainer.state.step, trainer.steps.total) == (12, 24)
    assert (trainer.state.best_step, trainer.is_finished) == (4, True)
    (event,) = (event for event in read_events(tmp_path / METRICS_FILE) if event["event"] == "early_stop")
    del event["time"]
    assert event == {
        "event": "early_stop",
        "step": 12,
        "epoch": 3,
        "metric": "accuracy",
        "evaluations": 2,
        "best_step": 4,
    }


@pytest.mark.usefixtures("first_stays_best")
def test_a_run_that_ended_early_does_nothing_when_it_is_started_again(tmp_path: Path) -> None:
    trained(tmp_path, "train.epochs=6", "eval.early_stop=1")
    before = (tmp_path / METRICS_FILE).read_text()
    assert trained(tmp_path, "train.epochs=6", "eval.early_stop=1").state.step == 8
    assert (tmp_path / METRICS_FILE).read_text() == before


@pytest.mark.usefixtures("first_stays_best")
def test_evaluations_without_improvement_are_counted_over_a_restart(tmp_path: Path) -> None:
    settings = ("eval.early_stop=4", "optim.schedule=constant")
    trained(tmp_path, *settings, "train.epochs=3")
    assert trained(tmp_path, *settings, "train.epochs=9").state.step == 20


def test_a_run_that_improves_is_trained_to_its_end(tmp_path: Path) -> None:
    trainer = trained(tmp_path, "eval.metric=loss", "eval.early_stop=2", "train.epochs=3")
    assert trainer.state.step == 12


def test_a_checkpoint_of_an_older_version_has_counted_nothing(tmp_path: Path) -> None:
    with built(tmp_path) as trainer:
        tensors, values = trainer.state.snapshot()
        del values["stale"]
        trainer.state.stale_evaluations = 3
        trainer.state.restore(tensors, values)
        assert trainer.state.stale_evaluations == 0


def test_an_average_of_the_weights_is_what_is_measured(tmp_path: Path) -> None:
    with built(tmp_path, "train.ema_decay=0.99", "eval.every_epochs=2") as trainer:
        average = trainer.state.ema
        assert average is not None
        for tensor in average.tensors.values():
            tensor.zero_()
        average.update = lambda step: None  # type: ignore[method-assign]
        trainer.fit()
        assert trainer.state.result is not None
        assert trainer.state.result.values["loss"] == pytest.approx(0.6931, abs=1e-3)  # two classes, all logits 0


def test_every_evaluation_is_written_once(tmp_path: Path) -> None:
    trained(tmp_path, "eval.target=0.0", "eval.patience=2")
    assert steps_of(list(read_events(tmp_path / METRICS_FILE)), "eval") == [4, 8]


UNFIT = {
    "nothing-to-compare": (EvalConfig(target=0.5), 0, 10, "validation images"),
    "nothing-to-improve": (EvalConfig(early_stop=3), 0, 10, "eval.early_stop needs validation images"),
    "always-right": (EvalConfig(metric="top5_accuracy"), 100, 5, "more than 5 classes"),
}


@pytest.mark.parametrize(("config", "validation_images", "classes", "text"), UNFIT.values(), ids=UNFIT.keys())
def test_what_cannot_be_measured_is_refused(
    config: EvalConfig, validation_images: int, classes: int, text: str
) -> None:
    with pytest.raises(Failure, match=text) as caught:
        early_stopping.refuse_unusable_metric(config, validation_images=validation_images, classes=classes)
    assert caught.value.code == ExitCode.USAGE


@pytest.mark.parametrize(
    "config", [EvalConfig(), EvalConfig(metric="loss", target=0.3), EvalConfig(metric="top5_accuracy", target=0.9)]
)
def test_what_can_be_measured_is_not(config: EvalConfig) -> None:
    early_stopping.refuse_unusable_metric(config, validation_images=1, classes=6)
