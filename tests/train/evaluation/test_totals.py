"""What is measured of batches, added up over ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from evaluations import as_batch, evaluate, in_batches, measure, read_together

from entrypoint import Failure
from train.config.schema import OptimConfig
from train.evaluation.totals import EvaluationTotals, Measured
from train.tasks import TargetScale
from train.tasks.base import Task
from train.tasks.classification import Classification
from train.tasks.multi_label import MultiLabel
from train.tasks.regression import Regression

generator = torch.Generator().manual_seed(0)
NUMBERS = torch.randint(-4, 5, (90, 3), generator=generator) / 4  # many are equal
TAGS = torch.randint(0, 2, (90, 3), generator=generator).float()
LABELS = torch.randint(0, 3, (90,), generator=generator)
AGES = Regression(classes=("age",), target=TargetScale(mean=10.0, std=2.0), optim=OptimConfig(loss="l2"))
TASKS = {
    "classification": (Classification(classes=("a", "b", "c")), NUMBERS, LABELS),
    "multi_label": (MultiLabel(classes=("a", "b", "c")), NUMBERS, TAGS),
    "regression": (AGES, NUMBERS[:, :1], 7.3 * TAGS[:, 0] + NUMBERS[:, 1]),
}


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("world_size", [2, 3, 20])
def test_metrics_and_rows_do_not_depend_on_which_rank_has_which_batch(name: str, world_size: int) -> None:
    """Bit by bit; of 20 ranks some have no batch."""
    task, outputs, labels = TASKS[name]
    batches = in_batches(outputs, labels, 7)
    (alone,) = read_together([measure(task, batches, details=True)])
    ranks = read_together([measure(task, batches[rank::world_size], details=True) for rank in range(world_size)])
    expected, confusion = task.metrics(alone, "auto")
    for totals in ranks:
        result, matrix = task.metrics(totals, "auto")
        assert result == expected
        assert (matrix is None) == (confusion is None)
        assert matrix is None or torch.equal(matrix, confusion)  # type: ignore[arg-type]
        assert totals.rows.keys() == alone.rows.keys()
        assert all(np.array_equal(column, alone.rows[row]) for row, column in totals.rows.items())
        assert totals.rows["sample"].tolist() == list(range(90))


def test_the_loss_does_not_depend_on_which_rank_measured_which_batch() -> None:
    def loss(*ranks: list[float]) -> float:
        measured = []
        for losses in ranks:
            measured.append(EvaluationTotals())
            for value in losses:
                batch = as_batch(torch.zeros(1, 1), torch.zeros(1))
                measured[-1].add(batch, Measured(loss=torch.tensor(value, dtype=torch.float64)))
        return read_together(measured)[0].loss

    assert loss([1e16, 1.0], [1.0]) == loss([1.0, 1e16], [1.0]) == loss([1.0, 1.0, 1e16])


def test_rows_are_kept_only_where_somebody_measures_them() -> None:
    task, outputs, labels = TASKS["classification"]
    (totals,) = read_together([measure(task, in_batches(outputs, labels, 7))])
    assert (dict(totals.rows), totals.samples) == ({}, 90)


@pytest.mark.parametrize("name", TASKS)
def test_no_sample_on_any_rank_is_refused(name: str) -> None:
    with pytest.raises(Failure) as caught:
        read_together([measure(TASKS[name][0], [])])
    assert (caught.value.what, caught.value.code) == ("no validation image could be read", 65)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("shape", [(2, 2), (2, 4), (1, 3), (2, 3, 1)])
def test_outputs_of_another_shape_are_refused(name: str, shape: tuple[int, ...]) -> None:
    task: Task = TASKS[name][0]
    with pytest.raises(Failure, match="do not fit the data") as caught:
        evaluate(task, torch.zeros(shape), TASKS[name][2][:2])
    assert caught.value.code == 65
