"""This module formats a run's banner, progress bar, epoch lines and summary.

It also estimates the remaining time and computes the time, the speed and the loss of each epoch.
"""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO

from tqdm import tqdm

from entrypoint import PrintableText, pluralize, to_printable
from train.evaluation import results
from train.evaluation.results import EvaluationResult

PACE_WINDOW_S: Final = 60.0  # the pace of the last minute, or of the last two log points if they are further apart


class TimeLeftEstimator:
    """Estimates the remaining time from recent log points.

    The time of evaluations and saves between the log points counts, because more of them will follow.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._points: deque[tuple[int, float]] = deque()

    def add(self, step: int, time_s: float) -> None:
        """Add a log point. time_s: of any clock."""
        self._points.append((step, time_s))
        while len(self._points) > 2 and time_s - self._points[1][1] >= PACE_WINDOW_S:
            self._points.popleft()

    def clear(self) -> None:
        """Forget all log points, because steps are repeated."""
        self._points.clear()

    @property
    def left(self) -> float | None:
        """Seconds to the last step. None before the second log point: the first includes the start."""
        if len(self._points) < 2:
            return None
        (first, first_s), (last, last_s) = self._points[0], self._points[-1]
        return (self._total - last) * (last_s - first_s) / (last - first) if last > first else None


def format_rough_duration(seconds: float) -> str:
    """40 s, 12 min, 2 h 05 min or 3 d 4 h: an estimate is no more precise."""
    minutes = round(seconds / 60)
    if seconds < 59.5:
        return f"{max(1, round(seconds))} s"
    if minutes < 60:
        return f"{minutes} min"
    hours = round(minutes / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochStats:
    """Time, speed and loss of one epoch, or of the part of it that this start has trained.

    seconds: of training, without evaluations and saves; None for a part. loss: None if it is not finite (fp16
    skips such steps). All are None if no step was done.
    """

    seconds: float | None
    images_per_s: float | None
    loss: float | None


class EpochStatsCounter:
    """Computes an EpochStats at the end of each epoch.

    A reading is the mean loss over all samples since the last log point, and may come between two log points. Log
    points and ends of epochs need not coincide. So losses are summed over the run, and an epoch's loss is a
    difference of two sums.
    """

    def __init__(self, step: int, seconds: float, *, batch: int, loss: float = 0.0, samples: float = 0.0) -> None:
        """Start at `step`, `seconds` of training into the run.

        batch: images a step. loss, samples: the sum, and of how many images, since the last log point.
        """
        self._batch, self._opened = batch, step - round(samples) // batch
        self._before, self._window = 0.0, loss / batch
        self._step, self._seconds, self._sum = step, seconds, self._window

    def read(self, step: int, loss: float, samples: int) -> None:
        """Add a reading: the mean loss of all `samples` since the last log point, up to `step`."""
        steps = samples // self._batch
        if step - steps != self._opened:
            self._before, self._opened = self._before + self._window, step - steps
        self._window = loss * steps

    def close(self, step: int, seconds: float, *, epoch: int) -> EpochStats:
        """Return the stats since the last call, and begin the next epoch. epoch: steps of a complete epoch."""
        steps, took, summed = step - self._step, seconds - self._seconds, self._before + self._window
        loss = (summed - self._sum) / max(1, steps)
        if not math.isfinite(summed):
            self._before = self._window = summed = 0.0
        self._step, self._seconds, self._sum = step, seconds, summed
        return EpochStats(
            seconds=took if steps == epoch else None,
            images_per_s=steps * self._batch / took if steps and took > 0 else None,
            loss=loss if steps and math.isfinite(loss) else None,
        )


NO_ROWS: Final[Mapping[str, str]] = {}
LINE_INTERVAL_S: Final = 10.0  # between two lines, if the output is no terminal
BAR_REDRAW_INTERVAL_S: Final = 0.1
MIN_BAR_COLUMNS: Final = 6  # the minimum width of the bar itself


def format_rows(facts: Mapping[str, object]) -> PrintableText:
    """One fact per line, names aligned."""
    return PrintableText("\n".join(f"{to_printable(name):<14} {to_printable(value)}" for name, value in facts.items()))


def format_duration(seconds: float) -> str:
    """4.2 s, 3 min 20 s, 2 h 05 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def format_summary(
    *,
    result: EvaluationResult | None,
    classes: Sequence[str],
    steps: int,
    seconds: float,
    images: int,
    checkpoint: Path | None,
    consumed: Mapping[str, str] = NO_ROWS,
    best: str | None = None,
) -> PrintableText:
    """The summary of a run: its result, its speed, what it consumed, and its checkpoint.

    best: an earlier evaluation that was better.
    """
    speed = f", {images / seconds:,.0f} images/s" if seconds > 0 else ""
    rows = results.metric_rows(result, classes) if result else {"accuracy": "-"}
    rows |= {"best": best} if best else {}
    rows |= {"training": f"{pluralize(steps, 'step')} in {format_duration(seconds)}{speed}"}
    return format_rows({**rows, **consumed} | ({"checkpoint": str(checkpoint)} if checkpoint else {}))


class Progress:
    """Shows rank 0's progress: a bar on a terminal, a line from time to time elsewhere. Other ranks show nothing."""

    def __init__(
        self,
        *,
        main: bool,
        terminal: bool,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        columns: int | None = None,
    ) -> None:
        """columns: the width of the terminal; None to read it."""
        # One stream for lines and bar: the output of two pipes to the parent would come in any order.
        self._out = out or (sys.stderr if terminal else sys.stdout)
        self._clock, self._main, self._terminal = clock, main, terminal
        self._total = 0
        self._quiet_until = 0.0
        self._time_left = TimeLeftEstimator(0)
        self._last: Sequence[str] = ()
        self._columns = self._room = 0
        self._max_columns = columns
        self._bar: tqdm[Any] | None = None

    def start(self, *, step: int, total: int) -> None:
        """Training starts after `step` of `total` steps."""
        self._total, self._time_left = total, TimeLeftEstimator(total)
        self._quiet_until = self._clock() + LINE_INTERVAL_S
        if self._main and self._terminal:
            self._columns = self._max_columns or shutil.get_terminal_size().columns
            width = self._columns - 1
            self._room = width - len(f"100%|| step {total}/{total}") - MIN_BAR_COLUMNS
            self._bar = tqdm(
                total=total,
                initial=step,
                file=self._out,
                bar_format="{percentage:3.0f}%|{bar}| step {n_fmt}/{total_fmt}{postfix}",
                mininterval=BAR_REDRAW_INTERVAL_S,
                ncols=width,
            )

    def say(self, text: str) -> None:
        """Print a line, or lines that are PrintableText, above the bar."""
        if not self._main:
            return
        if self._bar is not None:
            self._bar.clear()
        self._out.write(to_printable(text) + "\n")
        self._out.flush()
        if self._bar is not None:
            self._bar.refresh()

    def step(self) -> None:
        """One optimizer step is done."""
        if self._bar is not None:
            self._bar.update()

    def rewind(self, step: int) -> None:
        """The steps after `step` are trained again."""
        self._time_left.clear()
        if self._bar is not None:
            self._bar.n = step
            self._bar.refresh()

    def log_point(self, values: Mapping[str, Any], *, step: int, epoch: int, epochs: int) -> None:
        """Show a log point beside the bar, or on a line from time to time. values: as metrics.jsonl gets them."""
        self._time_left.add(step, self._clock())
        seconds_left = self._time_left.left
        texts = [f"loss {values['loss']:.3f}", f"{values['images_per_s']:,.0f} images/s"]
        self._last = fit_beside_bar(texts, self._room)
        texts += [] if seconds_left is None else [f"{format_rough_duration(seconds_left)} left"]
        if (
            self._bar is not None
        ):  # without the epoch, which could be wrong until the next log point: the step counter goes on
            self._bar.set_postfix_str(", ".join(fit_beside_bar(texts, self._room)), refresh=False)
        elif self._clock() >= self._quiet_until:
            self._quiet_until = self._clock() + LINE_INTERVAL_S
            self.say(f"step {step}/{self._total}, epoch {epoch}/{epochs}, {', '.join(texts)}")

    def epoch(
        self, *, step: int, epoch: int, epochs: int, is_complete: bool, stats: EpochStats, metrics_text: str | None
    ) -> None:
        """Print the line of an epoch, or of the part of one that training ends with.

        metrics_text: of the evaluation, if there was one. is_complete: whether the epoch ends with this step.
        """
        self._quiet_until = self._clock() + LINE_INTERVAL_S
        parts = metrics_text.split(", ") if metrics_text else []
        parts += [] if stats.loss is None else [f"train loss {stats.loss:.3f}"]
        parts += [] if stats.seconds is None else [format_duration(stats.seconds)]
        parts += [] if stats.images_per_s is None else [f"{stats.images_per_s:,.0f} images/s"]
        label = f"epoch {epoch}/{epochs}" if is_complete else f"step {step}/{self._total}, in epoch {epoch}/{epochs}"
        # The terminal shows the speed beside the bar too, and metrics.jsonl has all: what does not fit is left out.
        while self._columns and len(parts) > 1 and len(f"{label}: {', '.join(parts)}") > self._columns:
            parts.pop()
        self.say(f"{label}: {', '.join(parts)}")

    def close(self) -> None:
        """Leave the bar as it is, without the remaining time."""
        if self._bar is not None:
            self._bar.set_postfix_str(", ".join(self._last), refresh=False)
            self._bar.close()
            self._bar = None


def fit_beside_bar(parts: Sequence[str], room: int) -> Sequence[str]:
    """As many of the parts as fit beside the bar, joined by commas. The first parts are dropped first."""
    kept = list(parts)
    while kept and sum(len(part) + 2 for part in kept) > room:
        del kept[0]
    return kept
