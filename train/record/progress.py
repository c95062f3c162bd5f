"""Facts of a run become what people read: the banner, a bar or a few lines while it trains, and the summary."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

from tqdm import tqdm

from train.evaluation import figures
from train.evaluation.scores import Result
from train.record.lap import Figures
from train.record.pace import Pace, rough

NOTHING: Final[Mapping[str, str]] = {}
QUIET_S: Final = 10.0  # between two lines, where there is no terminal
REDRAW_S: Final = 0.1
BAR: Final = 6  # columns that the bar itself has at least


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
    consumed: Mapping[str, str] = NOTHING,
    best: str | None = None,
) -> str:
    """What came out, how fast, what that took, and where it is. best: an earlier evaluation that was better."""
    speed = f", {images / seconds:,.0f} images/s" if seconds > 0 else ""
    told = figures.facts(result, classes) if result else {"accuracy": "-"}
    told |= {"best": best} if best else {}
    told |= {"training": f"{many(steps, 'step')} in {duration(seconds)}{speed}"}
    return rows({**told, **consumed} | ({"checkpoint": str(checkpoint)} if checkpoint else {}))


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
        columns: int | None = None,
    ) -> None:
        """columns: of the terminal; None: what it has."""
        # One stream for lines and bar: two pipes to the parent would come out in any order.
        self._out = out or (sys.stderr if terminal else sys.stdout)
        self._clock, self._main, self._total = clock, main, total
        self._quiet_until = clock() + QUIET_S
        self._pace = Pace(total)
        self._last: Sequence[str] = ()
        self._columns = self._room = 0
        self._bar: tqdm[Any] | None = None
        if main and terminal:
            self._columns = columns or shutil.get_terminal_size().columns
            width = self._columns - 1
            self._room = width - len(f"100%|| step {total}/{total}") - BAR
            form = "{percentage:3.0f}%|{bar}| step {n_fmt}/{total_fmt}{postfix}"
            self._bar = tqdm(
                total=total, initial=step, file=self._out, bar_format=form, mininterval=REDRAW_S, ncols=width
            )

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
        self._pace.clear()
        if self._bar is not None:
            self._bar.n = step
            self._bar.refresh()

    def measured(self, *, step: int, epoch: int, epochs: int, loss: float, images_per_s: float) -> None:
        """The figures of a log point: beside the bar, or on a line from time to time."""
        self._pace.add(step, self._clock())
        left = self._pace.left
        figures = [f"loss {loss:.3f}", f"{images_per_s:,.0f} images/s"]
        self._last = fitting(figures, self._room)
        figures += [] if left is None else [f"{rough(left)} left"]
        if self._bar is not None:  # without the epoch: steps go on beside it until the next log point
            self._bar.set_postfix_str(", ".join(fitting(figures, self._room)), refresh=False)
        elif self._clock() >= self._quiet_until:
            self._quiet_until = self._clock() + QUIET_S
            self.say(f"step {step}/{self._total}, epoch {epoch}/{epochs}, {', '.join(figures)}")

    def epoch(self, *, step: int, epoch: int, epochs: int, whole: bool, figures: Figures, measured: str | None) -> None:
        """The one line of an epoch. measured: what came out of the held-out images, where they were looked at.

        whole: it ends with this step. Where a training ends inside an epoch, its last line says that.
        """
        self._quiet_until = self._clock() + QUIET_S
        said = [measured] if measured else []
        said += [] if figures.loss is None else [f"train loss {figures.loss:.3f}"]
        said += [] if figures.seconds is None else [duration(figures.seconds)]
        speed = "" if figures.images_per_s is None else f", {figures.images_per_s:,.0f} images/s"
        at = f"epoch {epoch}/{epochs}" if whole else f"step {step}/{self._total}, in epoch {epoch}/{epochs}"
        line = f"{at}: {', '.join(said)}"
        # A terminal shows the speed beside the bar too: a line for it alone would be lost between the epochs.
        self.say(line if self._columns and len(line + speed) > self._columns else line + speed)

    def close(self) -> None:
        """Leave the bar as it stands. No time is left any more."""
        if self._bar is not None:
            self._bar.set_postfix_str(", ".join(self._last), refresh=False)
            self._bar.close()
            self._bar = None


def fitting(figures: Sequence[str], room: int) -> Sequence[str]:
    """As many of them as fit beside the bar, each after a comma; the first ones are missed least."""
    kept = list(figures)
    while kept and sum(len(one) + 2 for one in kept) > room:
        del kept[0]
    return kept
