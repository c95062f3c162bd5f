"""Sums on the device, and training time."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from train.data.batch import Batch
from train.logging.running_mean import RunningMean, TrainingStopwatch
from train.tasks.base import StepLoss
from train.tasks.classification import Classification
from train.tasks.multi_label import MultiLabel

CPU = torch.device("cpu")
CLASSES = Classification(classes=("a", "b"))


def step_loss(loss: float, samples: int = 3) -> StepLoss:
    """Of a micro batch, in which two predictions are correct."""
    return StepLoss(loss=torch.tensor(loss), samples=samples, values={"accuracy": torch.tensor(2)})


def averaged(*losses: float) -> RunningMean:
    means = RunningMean(CPU, CLASSES.averaged)
    for loss in losses:
        means.add(step_loss(loss))
    return means


def test_means_are_over_samples() -> None:
    means = averaged(1.0, 3.0).read(lambda total: total)
    assert (means.loss, means.samples) == (2.0, 6)
    assert means.means["accuracy"] == pytest.approx(2 / 3)


def test_ranks_are_summed_before_the_division() -> None:
    means = averaged(1.0).read(lambda total: total.mul_(4))
    assert (means.loss, means.samples) == (1.0, 12)


def test_other_numbers_are_summed_in_the_same_exchange() -> None:
    exchanges: list[int] = []
    means = averaged(1.0).read(lambda total: (exchanges.append(len(total)), total.mul_(4))[1], [7.0, math.nan, 0.5])
    assert (means.loss, means.extra_sums[0], means.extra_sums[2]) == (1.0, 28.0, 2.0)
    assert exchanges == [6]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_one_bad_loss_is_still_seen_at_the_next_reading(bad: float) -> None:
    means = averaged(1.0, bad, 1.0).read(lambda total: total)
    assert not math.isfinite(means.loss)


def test_sums_do_not_depend_on_where_they_were_read_between() -> None:
    losses = [1 / (1 + number) for number in range(50)]
    at_once, first = averaged(*losses), averaged(*losses[:20])
    rest = RunningMean(CPU, CLASSES.averaged, first.sums())
    for loss in losses[20:]:
        rest.add(step_loss(loss))
    assert rest.sums() == at_once.sums()


def test_more_micro_batches_than_are_remembered_all_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train.logging.running_mean.MAX_KEPT_LOSSES", 4)
    means = averaged(*[1.0] * 9, 3.0)
    assert means.sums() == [36.0, 20.0, 30.0]
    assert means.losses()[-1] == 3.0


def test_values_of_no_samples_keep_only_their_loss() -> None:
    mean = averaged(1.0)
    before = mean.sums()
    mean.add(step_loss(math.inf, samples=0))
    assert mean.sums() == before
    assert mean.losses() == [1.0, math.inf]


def test_without_samples_there_are_no_means_and_still_exchanges_other_numbers() -> None:
    averages = averaged(1.0)
    averages.clear()
    means = averages.read(lambda total: total.mul_(2), [7.0])
    assert (means.samples, means.extra_sums) == (0, (14.0,))
    assert math.isnan(means.loss)
    assert math.isnan(means.means["accuracy"])


class WithMore(MultiLabel):
    """A task that somebody gave one more value: how many labels its samples have."""

    averaged = (*MultiLabel.averaged, "labels")

    def sum_values(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        return {**super().sum_values(outputs, batch), "labels": batch["label"].sum()}


class WithNone(MultiLabel):
    """A task that averages nothing but the loss."""

    averaged = ()

    def sum_values(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        return {}


@pytest.mark.parametrize(("task", "expected"), [(WithMore, {"label_accuracy": 0.75, "labels": 1.5}), (WithNone, {})])
def test_a_task_may_average_any_number_of_values(task: type[MultiLabel], expected: dict[str, float]) -> None:
    batch = {"image": torch.tensor([[1.0, -1.0], [1.0, -1.0]]), "label": torch.tensor([[1.0, 0.0], [1.0, 1.0]])}
    running = RunningMean(CPU, task.averaged)
    for _ in range(2):
        running.add(task(classes=("a", "b")).loss(lambda images: images, batch))
    means = running.read(lambda total: total, [7.0])
    assert means.means == {"loss": pytest.approx(means.loss), **expected}
    assert (means.samples, means.extra_sums, len(running.sums())) == (4, (7.0,), len(expected) + 2)


def test_pauses_and_earlier_starts_are_told_apart() -> None:
    now = [0.0]
    watch = TrainingStopwatch(100.0, clock=lambda: now[0])
    now[0] = 5.0
    with watch.paused():
        now[0] = 50.0
    now[0] = 52.0
    assert watch.seconds == 107.0
