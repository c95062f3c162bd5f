"""Several labels and numbers, from training to the exported model, on any number of ranks."""

from __future__ import annotations

import csv
import json
import math
import re
from ast import literal_eval
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from inference import evaluate_run, export_run, run_command
from jobs import TINY, built, refused, trained
from label_tables import rows, write_table
from PIL import Image
from processes import python
from runs import Run

from entrypoint import Failure
from train import tasks
from train.config import load
from train.config.load import keep_last_overrides
from train.config.resolved import resolve
from train.config.schema import OptimConfig
from train.inference.predict import encode_table
from train.logging.metrics_logger import METRICS_FILE, read_events
from train.metrics import METRICS, metrics_of
from train.report import saved_evaluation
from train.tasks.base import Prediction
from train.tasks.labels import ENCODERS
from train.tasks.multi_label import MultiLabel
from train.tasks.registry import TASK_CLASSES
from train.tasks.regression import Regression

TASKS = ("multi_label", "regression")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 images: how bright they are is a number, and dark, bright and striped are labels."""
    folder = tmp_path_factory.mktemp("images")
    numbers = np.random.default_rng(0)
    brightness, tags = [], []
    for number in range(100):
        level, striped = int(numbers.integers(20, 236)), number % 2 == 0
        pixels = np.full((8, 8, 3), level, np.uint8)
        pixels[::2] += 20 * striped
        Image.fromarray(pixels).save(folder / f"{number:03d}.png")
        brightness.append(f"{level / 10:.1f}")
        tags.append(";".join(["bright" if level > 128 else "dark", *(["striped"] if striped else [])]))
    return write_table(folder, rows(brightness, tags), "path,level,tags", images=0)


def settings(table: Path, task: str, *others: str) -> tuple[str, ...]:
    column = {"multi_label": "tags", "regression": "level"}[task]
    data = (f"data.root={table}", "data.name=table", f"data.task={task}", f"data.columns.label={column}")
    return (*data, "data.classes=10", "data.augment=none", *others)  # the default claims no number of classes


@pytest.mark.parametrize("task", TASKS)
def test_a_training_learns_the_task(table: Path, tmp_path: Path, task: str) -> None:
    words = settings(table, task, "optim.name=adamw", "train.epochs=12", "optim.lr=0.02")
    result = trained(tmp_path / "run", *words).state.result
    assert result is not None
    assert (result.task, result.samples) == (task, 20)
    if task == "multi_label":
        assert (result.values["map"] or 0) > 0.9
    else:
        assert (result.values["r2"] or 0) > 0.5


@pytest.mark.parametrize(
    ("task", "logged", "measured"),
    [
        ("multi_label", {"loss", "label_accuracy"}, {"map", "macro_f1", "loss", "average_precision", "thresholds"}),
        ("regression", {"loss", "mae"}, {"mae", "r2", "loss"}),
    ],
)
def test_metrics_jsonl_holds_the_metrics_of_the_task(
    table: Path, tmp_path: Path, task: str, logged: set[str], measured: set[str]
) -> None:
    trained(tmp_path / "run", *settings(table, task, "train.epochs=1"))
    events = {event["event"]: event for event in read_events(tmp_path / "run" / METRICS_FILE)}
    assert logged <= events["train"].keys()
    assert measured == events["eval"].keys() - {"event", "step", "time", "epoch", "samples", "task"}


@pytest.mark.parametrize("task", TASKS)
def test_a_run_resumes_with_its_best_result(table: Path, tmp_path: Path, task: str) -> None:
    first = trained(tmp_path / "run", *settings(table, task, "train.epochs=1"))
    with built(tmp_path / "run", *settings(table, task, "train.epochs=2")) as trainer:
        assert trainer.state.step == first.state.step
        assert trainer.state.best == first.state.best
        assert trainer.config.eval.metric == tasks.TASKS[task].default_metric


def test_weights_of_samples_act_on_every_task() -> None:
    weights, labels = torch.tensor([2.0, 0.0]), torch.tensor([[1.0], [0.0]])
    outputs = torch.tensor([[0.5], [3.0]])
    several = MultiLabel(classes=("a",))
    weighted = several.mean_loss(outputs, {"label": labels, "weight": weights})
    assert torch.isclose(weighted, several.mean_loss(outputs[:1], {"label": labels[:1]}))
    target = tasks.TargetScale(mean=0.0, std=2.0)
    numbers = Regression(classes=("age",), target=target, optim=OptimConfig(loss="l1"))
    batch = {"label": torch.tensor([2.0, 0.0]), "weight": weights}
    assert float(numbers.mean_loss(outputs, batch)) == pytest.approx(0.5)


@pytest.mark.parametrize(("distance", "loss"), [("l1", 2.0), ("l2", 4.0), ("huber", 1.5), ("auto", 4.0)])
def test_the_distance_is_that_of_optim_loss(table: Path, tmp_path: Path, distance: str, loss: float) -> None:
    with built(tmp_path / "run", *settings(table, "regression", f"optim.loss={distance}")) as trainer:
        target = trainer.dataset.target
        assert target is not None
        label = torch.tensor([target.mean + 2 * target.std])
        batch = {"image": torch.zeros(1, 1), "label": label}
        assert float(trainer.task.loss(lambda images: images, batch).loss) == pytest.approx(loss, rel=1e-5)


def test_a_metric_of_another_task_is_refused(table: Path, tmp_path: Path) -> None:
    failure = refused(tmp_path / "run", *settings(table, "regression", "eval.metric=macro_f1"))
    assert (failure.code, failure.expected, failure.fix) == (
        64,
        "one of mae, r2, loss",
        "set eval.metric=mae, or leave it out",
    )


@pytest.mark.parametrize(
    ("task", "setting"),
    [
        ("regression", "optim.label_smoothing=0.1"),
        ("multi_label", "optim.class_weights=balanced"),
        ("regression", "eval.threshold=0.3"),
    ],
)
def test_a_key_that_does_nothing_for_the_task_is_refused(table: Path, tmp_path: Path, task: str, setting: str) -> None:
    failure = refused(tmp_path / "run", *settings(table, task, setting))
    assert failure.what == f"{setting.partition('=')[0]} does not go with data.task {task}"


@pytest.mark.parametrize(("task", "loss"), [("classification", "l1"), ("regression", "bce"), ("multi_label", "l1")])
def test_a_loss_of_another_task_is_refused(task: str, loss: str) -> None:
    config = load.load_config(None, [f"optim.loss={loss}"])
    with pytest.raises(Failure, match=f"optim.loss {loss} does not go with data.task {task}") as caught:
        resolve(config, config, task)
    assert caught.value.code == 64


def test_a_classification_keeps_its_config() -> None:
    config = load.load_config(None, ["eval.metric=macro_f1", "optim.label_smoothing=0.1"])
    with_a_rate = replace(config, optim=replace(config.optim, lr=0.1))
    assert resolve(config, config, "classification").requested == with_a_rate


def test_each_tasks_default_metric_is_its_first() -> None:
    for task in tasks.TASKS.values():
        assert next(iter(metrics_of(task.name))) == task.default_metric
        assert METRICS[task.default_metric].always_shown


def test_each_entry_has_its_class_and_its_labels() -> None:
    assert TASK_CLASSES.keys() == ENCODERS.keys() == tasks.TASKS.keys()


@pytest.mark.parametrize("task", TASKS)
def test_an_exported_model_predicts_what_the_run_predicts(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], task: str
) -> None:
    words = settings(table, task, *(["eval.threshold=auto"] if task == "multi_label" else []))
    trained(tmp_path / "run", *words)
    export_run(tmp_path / "run", tmp_path / "export")
    image = table.parent / "000.png"
    capsys.readouterr()
    assert [run_command("predict", tmp_path / name, image, "--json") for name in ("run", "export")] == [0, 0]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == lines[1]
    values = json.loads(lines[0])
    assert values.keys() == {"path", "labels", "probabilities"} if task == "multi_label" else {"path", "name", "value"}
    card = (tmp_path / "export" / "README.md").read_text()
    code = card.partition("```python\n")[2].partition("```")[0].replace("photo.jpg", str(image))
    answer = literal_eval(python("-c", code, cwd=tmp_path).stdout)
    if task == "multi_label":
        assert sorted(answer) == sorted(values["labels"])
    else:
        assert answer == pytest.approx(values["value"], rel=1e-4)


def predicted_labels(probabilities: tuple[float, ...], thresholds: tuple[float, ...]) -> Prediction:
    outputs = torch.tensor([probabilities], dtype=torch.float64).logit()
    (prediction,) = MultiLabel(classes=("x", "y", "z")[: len(thresholds)]).predict(
        outputs, [Path("a")], thresholds, top=1
    )
    assert prediction is not None
    return prediction


def predicted_number(value: float) -> Prediction:
    task = Regression(classes=("age",), target=tasks.TargetScale(mean=1.0, std=2.0))
    (prediction,) = task.predict(torch.tensor([[(value - 1) / 2]]), [Path("a")], None, top=1)
    assert prediction is not None
    return prediction


def test_an_image_has_the_labels_of_at_least_their_threshold() -> None:
    prediction = predicted_labels((0.5, 0.9, 0.2), (0.5, 0.95, 0.1))
    assert prediction.as_text() == "a\tx\t0.5000\tz\t0.2000"
    assert prediction.strongest == "y 90.0%"
    assert json.loads(prediction.as_json())["labels"] == ["x", "z"]


def test_a_number_is_printed_in_its_unit() -> None:
    assert predicted_number(61.25).as_text() == "a\t61.25"


# On several ranks

TRAINING = ("train.reproducible=bitwise", "train.micro_batch_size=4", "eval.batch_size=3")


@pytest.mark.parametrize("task", TASKS)
def test_two_ranks_train_and_measure_what_one_does(table: Path, tmp_path: Path, task: str) -> None:
    words = keep_last_overrides([*TINY, *settings(table, task), *TRAINING])
    two = ("--device", "cpu", "--procs-per-node", "2", "run.output_dir=.", "run.name=two")
    ended = python("-m", "train", *two, *words, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    trained(tmp_path / "one", *words)
    runs = [Run(folder=tmp_path / name) for name in ("one", "two")]
    evaluations = [
        [
            {key: value for key, value in event.items() if key != "time"}
            for event in read_events(run.folder / METRICS_FILE)
            if event["event"] == "eval"
        ]
        for run in runs
    ]
    assert len(evaluations[0]) == 2
    assert evaluations[0] == evaluations[1]
    weights = [run.weights(10) for run in runs]
    assert all(np.array_equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.parametrize(
    ("task", "ranks"),
    [
        ("multi_label", 3),
        pytest.param("multi_label", 1, marks=pytest.mark.slow),
        *(pytest.param("regression", ranks, marks=pytest.mark.slow) for ranks in (1, 3)),
    ],
)
def test_any_number_of_ranks_measures_what_the_training_did(table: Path, tmp_path: Path, task: str, ranks: int) -> None:
    trained(tmp_path / "run", *settings(table, task, "eval.batch_size=3"))
    measured = python(
        "-m", "train", "eval", str(tmp_path / "run"), "--json", "--device", "cpu", "--procs-per-node", str(ranks)
    )
    assert measured.returncode == 0, measured.stderr
    values, best = json.loads(measured.stdout), json.loads((tmp_path / "run" / "best.json").read_text())
    for name in metrics_of(task):
        assert math.isclose(values[name], best[name], rel_tol=1e-9), name
    assert (values["samples"], values["world_size"], values["confusion"]) == (20, ranks, None)


def test_a_test_set_may_lack_labels_of_the_training(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path / "run", *settings(table, "multi_label"))
    kept = [line for line in table.read_text().splitlines() if "bright" not in line]
    others = table.with_name("dark.csv")
    others.write_text("\n".join(kept) + "\n")
    capsys.readouterr()
    evaluate_run(tmp_path / "run", f"data.root={others}", split="all")
    values = json.loads(capsys.readouterr().out)
    assert (values["samples"], values["average_precision"][0]) == (len(kept) - 1, None)
    assert any("2 of the training's 3 classes are measured" in note for note in values["notes"])


def test_labels_of_another_task_are_refused(table: Path, tmp_path: Path) -> None:
    trained(tmp_path / "run", *settings(table, "multi_label"))
    with pytest.raises(Failure, match="another task than the model was trained on") as caught:
        evaluate_run(tmp_path / "run", "data.task=regression", "data.columns.label=level")
    assert caught.value.code == 65


def test_a_table_of_predicted_labels_has_the_probability_of_each() -> None:
    table = encode_table([predicted_labels((0.5, 0.25), (0.5, 0.5))]).decode()
    assert table == '\ufeff"path","labels","probability of x","probability of y"\n"a","x",0.5,0.25\n'


def test_a_table_of_predicted_numbers_has_the_column_of_the_labels() -> None:
    table = encode_table([predicted_number(31.5)]).decode()
    assert table == '\ufeff"path","age"\n"a",31.5\n'


@pytest.mark.parametrize("task", TASKS)
def test_the_test_split_is_measured_at_the_end_and_again(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], task: str
) -> None:
    threshold = ["eval.threshold=auto"] if task == "multi_label" else []
    trainer = trained(tmp_path / "run", *settings(table, task, "data.test_fraction=0.2", *threshold))
    score = trainer.final_score
    assert score is not None
    assert (score.result.task, score.result.samples) == (task, 20)
    assert trainer.state.best is not None
    assert score.result.thresholds == trainer.state.best.thresholds  # the validation images chose them
    assert "not measured" not in score.describe("loss")
    capsys.readouterr()
    evaluate_run(tmp_path / "run", split="test")
    again = json.loads(capsys.readouterr().out)
    for name, value in score.result.values.items():
        assert again[name] == pytest.approx(value), name


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_finished_run_is_measured_with_thresholds_that_an_evaluation_chooses_and_it_says_so(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], split: Literal["validation", "test"]
) -> None:
    trained(tmp_path / "run", *settings(table, "multi_label", "data.test_fraction=0.2"))
    scores = {}
    for threshold in ("auto", "0.3"):
        capsys.readouterr()
        evaluate_run(tmp_path / "run", f"eval.threshold={threshold}", split=split)
        scores[threshold] = json.loads(capsys.readouterr().out)
    assert scores["auto"]["macro_f1"] >= scores["0.3"]["macro_f1"]
    assert scores["0.3"]["thresholds"] == [0.3] * len(scores["0.3"]["classes"])
    assert len({*scores["auto"]["thresholds"]}) > 1
    warned = ["chosen the thresholds on these same images" in "; ".join(each["notes"]) for each in scores.values()]
    assert warned == [True, False]


def test_an_evaluation_of_numbers_refuses_a_threshold(table: Path, tmp_path: Path) -> None:
    trained(tmp_path / "run", *settings(table, "regression", "train.epochs=1"))
    with pytest.raises(Failure, match="does not go with data") as caught:
        evaluate_run(tmp_path / "run", "eval.threshold=auto")
    assert caught.value.code == 64


def read_rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8-sig") as text:
        return list(csv.DictReader(text))


@pytest.mark.parametrize("task", TASKS)
def test_an_evaluation_for_the_report_has_rows_and_galleries_of_the_task(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], task: str
) -> None:
    trained(tmp_path / "run", *settings(table, task))
    capsys.readouterr()
    evaluate_run(tmp_path / "run", per_image=tmp_path / "images.csv", for_report=True)
    result = json.loads(capsys.readouterr().out)
    rows = read_rows(tmp_path / "images.csv")
    saved = saved_evaluation.read(tmp_path / "run" / "evaluation.json")
    assert saved is not None
    assert len(rows) == saved.samples == 20
    assert re.fullmatch(r"\d{3}\.png", saved.galleries[0].images[0].name)  # relative to the table
    truth = {line["path"]: line for line in read_rows(table)}
    if task == "multi_label":
        assert all({*row["labels"].split("|")} == {*truth[Path(row["path"]).name]["tags"].split(";")} for row in rows)
        assert np.mean([float(row["loss"]) for row in rows]) == pytest.approx(result["loss"], rel=1e-4)
        assert [label.average_precision for label in saved.labels] == result["average_precision"]
        assert len(saved.galleries[1].images) == 9
    else:
        numbers = [(float(row["number"]), float(truth[Path(row["path"]).name]["level"])) for row in rows]
        assert all(number == pytest.approx(true) for number, true in numbers)
        assert np.mean([abs(float(row["error"])) for row in rows]) == pytest.approx(result["mae"], rel=1e-4)
        assert saved.numbers is not None
        assert len(saved.numbers.true) == 20
