"""This table holds every metric of an evaluation: how it is computed, compared and written.

To add a metric, add one entry to `METRICS`; if `Counts` lacks what it needs, extend `Counts` and the task that counts
(`Classification.measure`). torch is not imported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from train.tasks import CLASSIFICATION, MULTI_LABEL, REGRESSION, TASKS

TOP_K: Final = 5
NOT_MEASURED: Final = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What an evaluation counted over all ranks; the sequences have one number per class.

    loss: the sum over samples, in nats. top5_correct: samples whose class has one of the five
    largest logits. correct: predicted correctly. predicted: how often a class was predicted.
    support: samples of the class. average_precision: None for a label that no sample has; only
    where a sample has several labels.
    """

    samples: int
    loss: float
    top5_correct: float
    correct: Sequence[float]
    predicted: Sequence[float]
    support: Sequence[float]
    average_precision: Sequence[float | None] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSums:
    """Sums over the samples of an evaluation of numbers, over all ranks.

    loss: as in training. absolute, squared: of the errors, in the numbers' unit. variation: of the
    squared distances of the numbers from their mean.
    """

    samples: int
    loss: float
    absolute: float
    squared: float
    variation: float


def macro_f1(counts: Counts) -> float:
    """The mean F1 over the classes that occur, each counting the same: scikit-learn's average="macro".

    A class without samples and predictions is left out; one that was never predicted counts as 0. Of several labels per
    sample scikit-learn counts such a label as 0 too: its F1 would fall with each label that this data happens to lack.
    """
    sums = zip(counts.correct, counts.predicted, counts.support, strict=True)
    f1 = [2 * correct / (predicted + support) for correct, predicted, support in sums if predicted + support]
    return math.fsum(f1) / len(f1) if f1 else math.nan


def mean_average_precision(counts: Counts) -> float:
    """The mean of the average precision over the labels that a sample has: scikit-learn's average="macro"."""
    precisions = [value for value in counts.average_precision if value is not None]
    return math.fsum(precisions) / len(precisions) if precisions else math.nan


def r_squared(sums: ErrorSums) -> float:
    """1 - squared errors / squared distances from the mean: scikit-learn's r2_score. NaN if all numbers are equal."""
    return 1 - sums.squared / sums.variation if sums.variation else math.nan


def recall_by_class(counts: Counts) -> tuple[float | None, ...]:
    """The share of each class's samples that was predicted correctly; None for one without samples."""
    pairs = zip(counts.correct, counts.support, strict=True)
    return tuple(correct / support if support else None for correct, support in pairs)


def balanced_accuracy(counts: Counts) -> float:
    """The mean recall over the classes that have samples: scikit-learn's balanced_accuracy_score."""
    recalls = [recall for recall in recall_by_class(counts) if recall is not None]
    return math.fsum(recalls) / len(recalls) if recalls else math.nan


def wilson_interval(share: float, samples: int) -> tuple[float, float]:
    """The 95 % interval of a share that was counted on so many samples.

    E. B. Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22, 1927. Unlike
    +- 1.96 standard errors it holds for shares near 0 and 1 too.
    """
    z = 1.959964  # the 97.5th percentile of the normal distribution
    center, factor = share + z * z / (2 * samples), 1 + z * z / samples
    half = z * math.sqrt(share * (1 - share) / samples + z * z / (4 * samples * samples))
    return max(0.0, (center - half) / factor), min(1.0, (center + half) / factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One number that an evaluation computes.

    name: in eval.metric, metrics.jsonl, checkpoints and `train eval --json`. label: for people.
    tasks: whose evaluations compute it. compute: takes Counts, or ErrorSums for numbers; returns NaN
    where the metric is undefined, which is written as null.
    in_units: in the unit of the labels, and so written with four significant digits.
    is_proportion: the share of samples with a property, so that their number gives its uncertainty.
    is_share: at most 1, and drawn in percent; otherwise it is drawn with the loss, 0 or more, in nats.
    in_percent: how a share is written. min_classes: with fewer classes it says nothing.
    always_shown: in each epoch's line; all checkpoints must hold it.
    shown_beside_accuracy: in that line where it is far from the accuracy.
    """

    name: str
    label: str
    compute: Callable[[Any], float]
    tasks: tuple[str, ...] = (CLASSIFICATION,)
    higher_is_better: bool = True
    is_share: bool = True
    is_proportion: bool = False
    in_percent: bool = True
    in_units: bool = False
    min_classes: int = 2
    always_shown: bool = False
    shown_beside_accuracy: bool = False

    def format(self, value: float | None, digits: int = 4) -> str:
        """43.21% or 0.4321; a value of a record may be NaN."""
        if value is None or not math.isfinite(value):
            return NOT_MEASURED
        if self.in_units:
            return f"{value:.4g}"
        return f"{value:.2%}" if self.in_percent else f"{value:.{digits}f}"

    def format_interval(self, value: float | None, samples: int | None) -> str:
        """84.2 to 89.0 %: the 95 % interval of a proportion of so many samples; empty for other metrics."""
        if not self.is_proportion or not samples or value is None or not 0 <= value <= 1:
            return ""
        low, high = wilson_interval(value, samples)
        return f"{100 * low:.1f} to {100 * high:.1f}%"

    def is_better(self, value: float, other: float) -> bool:
        """Whether `value` is strictly better."""
        return value > other if self.higher_is_better else value < other

    def rank_key(self, value: float) -> float:
        """A key by which the best value is sorted first."""
        return -value if self.higher_is_better else value

    def accepts_target(self, target: float) -> bool:
        """Whether some results reach `target` and others do not."""
        return target > 0 and (target <= 1 or not self.is_share)


def _table(*entries: Metric) -> dict[str, Metric]:
    return {entry.name: entry for entry in entries}


# The first one is the default of eval.metric, and the first of each task its default.
METRICS: Final[Mapping[str, Metric]] = _table(
    Metric(
        name="accuracy",
        label="accuracy",
        compute=lambda counts: sum(counts.correct) / counts.samples,
        is_proportion=True,
        always_shown=True,
    ),
    Metric(
        name="map",
        label="mAP",
        compute=mean_average_precision,
        tasks=(MULTI_LABEL,),
        always_shown=True,
    ),
    Metric(
        name="mae",
        label="MAE",
        compute=lambda sums: sums.absolute / sums.samples,
        tasks=(REGRESSION,),
        higher_is_better=False,
        is_share=False,
        in_percent=False,
        in_units=True,
        always_shown=True,
    ),
    Metric(
        name="r2",
        label="R²",
        compute=r_squared,
        tasks=(REGRESSION,),
        in_percent=False,
        always_shown=True,
    ),
    Metric(
        name="top5_accuracy",
        label="top-5",
        compute=lambda counts: counts.top5_correct / counts.samples,
        is_proportion=True,
        min_classes=TOP_K + 1,
    ),
    Metric(
        name="macro_f1",
        label="macro F1",
        compute=macro_f1,
        tasks=(CLASSIFICATION, MULTI_LABEL),
        in_percent=False,
        shown_beside_accuracy=True,
    ),
    Metric(
        name="balanced_accuracy",
        label="balanced acc.",
        compute=balanced_accuracy,
    ),
    Metric(
        name="loss",
        label="loss",
        compute=lambda counts: counts.loss / counts.samples,
        tasks=tuple(TASKS),
        higher_is_better=False,
        is_share=False,
        in_percent=False,
        always_shown=True,
    ),
)
DEFAULT_METRIC: Final = next(iter(METRICS.values()))


def metrics_of(task: str) -> dict[str, Metric]:
    """The metrics that an evaluation of this task computes."""
    return {name: metric for name, metric in METRICS.items() if task in metric.tasks}


def find_metric(name: str) -> Metric:
    """The entry of `name`; a plain share for a metric of another version, whose runs are read too."""
    return METRICS.get(name) or Metric(name=name, label=name, compute=lambda counts: math.nan)
