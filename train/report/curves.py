"""Runs become their curves: loss, accuracy, learning rate and speed by epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from train.plotting import panels
from train.plotting.panels import Panel, Series
from train.report import drawn, figures
from train.report.document import Section, Words
from train.report.reading import Run, whole

MARKED: Final = 8  # restarts that a picture has room for


def section(runs: Sequence[Run]) -> Section:
    """The curves of one run, or of several over each other."""
    shown = one(runs[0]) if len(runs) == 1 else several(runs)
    if not any(math.isfinite(y) for panel in shown for series in panel.series for y in series.y):
        return Section(title="Curves", blocks=[Words(text="No log point was reached yet: there is nothing to draw.")])
    return Section(title="Curves", blocks=drawn.pictures("curves", shown, of=", ".join(run.name for run in runs)))


def one(run: Run) -> list[Panel]:
    """Training beside held-out images."""
    x, marks = _axis([run]), restarts(run)
    loss = [curve(run, "train", "loss", name="train loss", colour=0), _held_out(run, "loss", "val loss", 1)]
    scores = [curve(run, "train", "accuracy", name="train accuracy", colour=0, scale=100)]
    told = {key: name for key, name in figures.scores(run).items() if key != "loss"}
    scores += [_held_out(run, key, name, at, 100) for at, (key, name) in enumerate(told.items(), 1)]
    rate = [curve(run, "train", "lr", name="learning rate", colour=0)]
    speed = [curve(run, "train", "images_per_s", name="images/s", colour=0)]
    return [
        Panel(title="Loss", x=x, y="nats", series=loss, marks=marks),
        Panel(title="Scores", x=x, y="%", series=scores, marks=marks),
        Panel(title="Learning rate", x=x, y="", series=rate, marks=marks, from_zero=True),
        Panel(title="Speed, all ranks together", x=x, y="images/s", series=speed, marks=marks, from_zero=True),
    ]


def several(runs: Sequence[Run]) -> list[Panel]:
    """The same curve of each."""
    x, many = _axis(runs), len(runs) > panels.MOST
    per_epoch = x == "epoch"

    def each(kind: str, key: str, scale: float = 1.0) -> list[Series]:
        dots = kind == "eval" and not many
        return [curve(run, kind, key, run.name, at, scale, per_epoch, dots) for at, run in enumerate(runs)]

    return [
        Panel(title="Train loss", x=x, y="nats", series=each("train", "loss")),
        Panel(title="Val loss", x=x, y="nats", series=each("eval", "loss")),
        Panel(title="Val accuracy", x=x, y="%", series=each("eval", "accuracy", 100)),
        Panel(
            title="Speed, all ranks together", x=x, y="images/s", series=each("train", "images_per_s"), from_zero=True
        ),
    ]


def curve(
    run: Run,
    kind: str,
    key: str,
    name: str,
    colour: int,
    scale: float = 1.0,
    per_epoch: bool = True,
    dots: bool = False,
) -> Series:
    """One value of one kind of event, by epoch where the length of one is known (and wanted)."""
    steps, values = run.column(kind, key)
    length = (run.steps_per_epoch if per_epoch else None) or 1
    return Series(
        name=name,
        x=[step / length for step in steps],
        y=[value * scale for value in values],
        style="points" if dots else "line",
        colour=colour,
    )


def restarts(run: Run) -> Mapping[float, str]:
    """Where later starts went on, with their number of ranks; none where there are too many to be told apart."""
    later = [start for start in run.starts if start["step"] > 0 and not start.get("idle")]
    if len(later) > MARKED:
        return {}
    length = run.steps_per_epoch or 1
    return {start["step"] / length: f"goes on, {_ranks(whole(start.get('world_size')))}" for start in later}


def _held_out(run: Run, key: str, name: str, colour: int, scale: float = 1.0) -> Series:
    return curve(run, "eval", key, name, colour, scale, dots=True)


def _axis(runs: Sequence[Run]) -> str:
    """Epochs are the same amount of work for any global batch."""
    return "epoch" if all(run.steps_per_epoch for run in runs) else "step"


def _ranks(count: int | None) -> str:
    return f"{count} rank{'s' * (count != 1)}" if count else "ranks not recorded"
