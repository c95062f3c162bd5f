"""Facts of a run become what people read: the banner, a bar or a few lines while it trains, and the summary."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

from tqdm import tqdm

from train.evaluation import figures
from train.evaluation.scores import Result

QUIET_S: Final = 10.0  # between two lines, where there is no terminal
REDRAW_S: Final = 0.1


def rows(facts: Mapping[str, object]) -> str:
    """One fact per line, names aligned."""
    return "\n".join(f"{name:<14} {value}" for name, value in facts.items())


def many(number: int, noun: str) -> str:
    """1 rank, 2 ranks."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def duration(seconds: float) -> str:
    """4.2 s, 3 min 20 s, 2 h 05 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def summary(
    *,
    result: Result | None,
    classes: Sequence[str],
    steps: int,
    seconds: float,
    images: int,
    checkpoint: Path | None,
) -> str:
    """What came out, how fast, and where it is."""
    speed = f", {images / seconds:,.0f} images/s" if seconds > 0 else ""
    told = figures.facts(result, classes) if result else {"accuracy": "-"}
    told |= {"training": f"{many(steps, 'step')} in {duration(seconds)}{speed}"}
    return rows(told | ({"checkpoint": str(checkpoint)} if checkpoint else {}))


class Progress:
    """What rank 0 shows while training; on the other ranks it takes everything and shows nothing."""

    def __init__(
        self,
        *,
        main: bool,
        terminal: bool,
        total: int,
        step: int,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # One stream for lines and bar: two pipes to the parent would come out in any order.
        self._out = out or (sys.stderr if terminal else sys.stdout)
        self._clock, self._main, self._total = clock, main, total
        self._quiet_until = clock() + QUIET_S
        self._bar: tqdm[Any] | None = None
        if main and terminal:
            form = "{percentage:3.0f}%|{bar}| step {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
            self._bar = tqdm(total=total, initial=step, file=self._out, bar_format=form, mininterval=REDRAW_S)

    def say(self, text: str) -> None:
        """Whole lines, above the bar."""
        if not self._main:
            return
        if self._bar is not None:
            self._bar.clear()
        self._out.write(text + "\n")
        self._out.flush()
        if self._bar is not None:
            self._bar.refresh()

    def step(self) -> None:
        """One optimizer step is done."""
        if self._bar is not None:
            self._bar.update()

    def back(self, step: int) -> None:
        """What follows `step` is done once more."""
        if self._bar is not None:
            self._bar.n = step
            self._bar.refresh()

    def measured(self, *, step: int, epoch: int, epochs: int, loss: float, images_per_s: float) -> None:
        """The figures of a log point: beside the bar, or on a line from time to time."""
        figures = f"epoch {epoch}/{epochs}, loss {loss:.3f}, {images_per_s:,.0f} images/s"
        if self._bar is not None:
            self._bar.set_postfix_str(figures, refresh=False)
        elif self._clock() >= self._quiet_until:
            self._quiet_until = self._clock() + QUIET_S
            self.say(f"step {step}/{self._total}, {figures}")

    def evaluated(self, *, step: int, epoch: int, epochs: int, figures: str, loss: float | None) -> None:
        """The held-out images were measured: `figures` says with what result, `loss` is that of training."""
        self._quiet_until = self._clock() + QUIET_S
        trained = "" if loss is None else f", training loss {loss:.3f}"
        self.say(f"epoch {epoch}/{epochs}, step {step}/{self._total}: {figures}{trained}")

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
