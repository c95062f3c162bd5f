"""`RunningMean` averages the training loss and the other `AVERAGED` values between two log points.

To log one more value, add an entry to `AVERAGED`. The module also measures the time spent in training.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from train.data.mixing import LabelMix
from train.tasks import TargetScale

MAX_KEPT_LOSSES: Final = 4096  # micro batches whose own loss is kept between two readings


def count_correct(_loss: Tensor, logits: Tensor, labels: Tensor, mix: LabelMix | None = None) -> Tensor:
    """The number [] of correct predictions. A mixed image counts with the share of the label that was predicted."""
    predicted = logits.argmax(dim=1)
    if mix is None:
        return (predicted == labels).sum()
    return ((predicted == labels) * mix.share + (predicted == mix.other) * (1 - mix.share)).sum()


@dataclass(frozen=True, slots=True, kw_only=True)
class AveragedValue:
    """One value of a training log line, averaged over all samples since the last one.

    measure: takes the mean loss [], the logits [n, classes], the labels [n] of a micro batch and how they mix; returns
        the value [] of these n samples, on the same device.
    is_mean: whether `measure` returns the mean over the samples; otherwise it returns their sum.
    """

    measure: Callable[[Tensor, Tensor, Tensor, LabelMix | None], Tensor]
    is_mean: bool


# Of a classification. Every task has as many values, of the same kinds, and the loss is the first. With a value more or
# less, older checkpoints can still be resumed: only their unfinished log window starts over.
AVERAGED: Final[Mapping[str, AveragedValue]] = {
    "loss": AveragedValue(measure=lambda loss, _logits, _labels, _mix: loss, is_mean=True),
    "accuracy": AveragedValue(measure=count_correct, is_mean=False),
}


def classification_values(target: TargetScale | None) -> Mapping[str, AveragedValue]:
    """Loss and accuracy."""
    return AVERAGED


def multi_label_values(target: TargetScale | None) -> Mapping[str, AveragedValue]:
    """The loss, and the share of the samples' labels that are predicted as they are (probability 0.5)."""

    def count_correct_labels(_loss: Tensor, logits: Tensor, labels: Tensor, _mix: LabelMix | None) -> Tensor:
        return ((logits > 0) == (labels > 0.5)).double().mean(dim=1).sum()

    return {"loss": AVERAGED["loss"], "label_accuracy": AveragedValue(measure=count_correct_labels, is_mean=False)}


def regression_values(target: TargetScale | None) -> Mapping[str, AveragedValue]:
    """The loss, and the absolute error in the numbers' unit."""
    assert target is not None  # whoever reads numbers computes their scale
    mean, std = target.mean, target.std

    def sum_errors(_loss: Tensor, outputs: Tensor, labels: Tensor, _mix: LabelMix | None) -> Tensor:
        return (outputs.double().flatten() * std + mean - labels).abs().sum()

    return {"loss": AVERAGED["loss"], "mae": AveragedValue(measure=sum_errors, is_mean=False)}


NUM_SUMS: Final = len(AVERAGED) + 1  # of each rank; the last is the number of samples
MicroBatchValues = tuple[Tensor, ...]  # a tensor [] for each of AVERAGED


def measure_micro_batch(
    loss: Tensor,
    logits: Tensor,
    labels: Tensor,
    averaged: Mapping[str, AveragedValue] = AVERAGED,
    mix: LabelMix | None = None,
) -> MicroBatchValues:
    """Measure each of `averaged`. loss: the mean []; logits [n, classes]; labels [n]; mix: how the labels mix."""
    with torch.no_grad():
        return tuple(value.measure(loss.detach(), logits, labels, mix) for value in averaged.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """Means over the samples of all ranks since `RunningMean.clear`.

    means: by name, as in the task's `averaged`. The loss is NaN or infinite if any loss was. Without samples all
    means are NaN.
    extra_sums: the sums over all ranks of the extra values.
    """

    means: Mapping[str, float]
    samples: int
    extra_sums: tuple[float, ...] = ()

    @property
    def loss(self) -> float:
        """The mean loss."""
        return self.means["loss"]


class RunningMean:
    """Sums over micro batches. A NaN or inf loss propagates into the sum, so no separate flag is needed.

    The values stay on the device until they are read, and are then added on the CPU in order. So a step computes no
    addition, and the sums have the same bits wherever a checkpoint was saved in between.
    """

    def __init__(
        self, device: torch.device, sums: Sequence[float] = (0.0,) * NUM_SUMS, names: Sequence[str] = (*AVERAGED,)
    ) -> None:
        """sums: of an earlier start, from the checkpoint. names: of the values, as in the task's `averaged`."""
        self._device, self._names = device, names
        self._sums = [*sums]
        self._waiting: list[tuple[MicroBatchValues, int]] = []
        self._losses: deque[float] = deque(maxlen=MAX_KEPT_LOSSES)

    def sums(self) -> list[float]:
        """This rank's sums: one for each of AVERAGED, then the number of samples."""
        self._fetch()
        return [*self._sums]

    def add(self, values: MicroBatchValues, samples: int) -> None:
        """Add the values of one or several micro batches. One host sync in MAX_KEPT_LOSSES calls.

        Of 0 samples only the loss is kept: another rank counts them.
        """
        self._waiting.append((values, samples))
        if len(self._waiting) >= MAX_KEPT_LOSSES:
            self._fetch()

    def read(self, all_reduce_sum: Callable[[Tensor], Tensor], extra: Sequence[float] = ()) -> StepMetrics:
        """The means over all ranks. `all_reduce_sum` sums over ranks in place.

        extra: the same number of values on each rank, to be summed in the same all-reduce.
        """
        numbers = torch.tensor([*self.sums(), *extra], dtype=torch.float64, device=self._device)
        totals = all_reduce_sum(numbers).tolist()
        *sums, samples = totals[:NUM_SUMS]
        means = {name: total / samples if samples else math.nan for name, total in zip(self._names, sums, strict=True)}
        return StepMetrics(means=means, samples=int(samples), extra_sums=tuple(totals[NUM_SUMS:]))

    def losses(self) -> list[float]:
        """The mean losses that this rank has added since `clear`; at most the last MAX_KEPT_LOSSES."""
        self._fetch()
        return [*self._losses]

    def clear(self) -> None:
        """Set all sums to zero."""
        self._sums = [0.0] * NUM_SUMS
        self._waiting.clear()
        self._losses.clear()

    def _fetch(self) -> None:
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        columns = [torch.stack(column).tolist() for column in zip(*(values for values, _ in waiting), strict=True)]
        for index, averaged in enumerate(AVERAGED.values()):
            for value, (_, samples) in zip(columns[index], waiting, strict=True):
                if samples:
                    self._sums[index] += value * samples if averaged.is_mean else value
        self._sums[-1] += sum(samples for _, samples in waiting)
        self._losses.extend(columns[0])


class TrainingStopwatch:
    """Measures the seconds spent in training, without evaluations and saves."""

    def __init__(self, seconds: float = 0.0, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._since, self._before = clock, clock(), seconds

    @property
    def seconds(self) -> float:
        """Seconds so far, including earlier starts of the run."""
        return self._before + self._clock() - self._since

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count what happens inside."""
        self._before = self.seconds
        try:
            yield
        finally:
            self._since = self._clock()
