"""What `train eval` says."""

from __future__ import annotations

import json
from dataclasses import replace

from train.evaluation.results import EvaluationResult
from train.inference.evaluation_report import EvaluationReport

RESULT = EvaluationResult.from_json(
    {"accuracy": 0.7, "loss": 0.9, "samples": 30, "top5_accuracy": 1.0, "macro_f1": 0.5, "recall": (0.95, 0.2, None)}
)
VERDICT = EvaluationReport(
    checkpoint="runs/x/checkpoints/step-00000007",
    step=7,
    weights="ema",
    standing="the best",
    measured="the 31 validation images of 150 images of pets",
    split="validation",
    all=False,
    notes=("3 of these 31 images were trained on",),
    world_size=2,
    device="cpu",
    precision="fp32",
    data="synthetic",
    loader="memory",
    left_out=1,
    classes=("cat", "dog", "emu"),
    result=RESULT,
    confusion=[[19, 1, 0], [8, 2, 0], [0, 0, 0]],
)


def test_people_read_what_was_measured_and_how_well() -> None:
    text = VERDICT.as_text()
    assert "weights        of step 7 (the best), averaged (EMA)" in text
    assert "measured       the 31 validation images of 150 images of pets" in text
    assert "computed       by 2 ranks on cpu, fp32" in text
    assert "left out       1 image that cannot be read" in text
    assert "accuracy       70.00% of 30 validation images, loss 0.9000" in text


def test_weights_of_one_step_and_of_no_run_are_told_so() -> None:
    plain = replace(VERDICT, weights="model", standing=None)
    assert "weights        of step 7, not averaged\n" in plain.as_text()


def test_all_images_are_not_called_validation_images() -> None:
    text = replace(VERDICT, all=True, measured="all 31 images of test").as_text()
    assert "measured       all 31 images of test" in text
    assert "validation" not in text


def test_few_classes_get_a_table_and_many_a_line_of_the_worst() -> None:
    many = replace(
        VERDICT,
        classes=tuple(map(str, range(21))),
        result=replace(RESULT, recall=(0.0, *[0.9] * 20)),
        confusion=[[0] * 21] * 21,
    )
    assert "dog     20.0%   8  2  0" in VERDICT.as_text()
    assert "weak classes" not in VERDICT.as_text()
    assert "weak classes   0 0.0%" in many.as_text()
    assert len(many.as_text().splitlines()) < 12


def test_nothing_is_said_of_images_that_were_all_read() -> None:
    assert "left out" not in replace(VERDICT, left_out=0).as_text()


def test_programs_read_one_object_with_everything() -> None:
    output = json.loads(VERDICT.as_json())
    assert (output["accuracy"], output["recall"], output["weights"]) == (0.7, [0.95, 0.2, None], "ema")
    assert output["confusion"] == VERDICT.confusion
    assert (output["measured"], output["all"]) == (VERDICT.measured, False)
    assert (output["standing"], output["notes"]) == ("the best", [*VERDICT.notes])
    assert output["classes"] == ["cat", "dog", "emu"]
