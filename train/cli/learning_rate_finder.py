"""Trains some steps with a growing learning rate, and suggests the one at which the loss falls fastest.

The rule is that of L. N. Smith, "Cyclical Learning Rates for Training Neural Networks" (2017), section 3.3.
"""

from __future__ import annotations

import csv
import io
import math
import shutil
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Final

from entrypoint import Heartbeat, World, join_lines
from train.build import open_trainer
from train.config.schema import LogConfig, RunConfig
from train.optim.schedule import Schedule, peak_learning_rate
from train.report import plots
from train.run.folder import make_temporary_folder

MIN_RATE, MAX_RATE, NUM_STEPS = 1e-7, 10.0, 100
SMOOTHED_STEPS: Final = 7  # around each step
DIVERGED: Final = 4.0  # times the lowest smoothed loss; the sweep stops there
PICTURE_TOP: Final = 1.5  # times the first loss; what is larger is left out of the picture


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowingRate(Schedule):
    """A schedule whose rate grows exponentially from MIN_RATE to MAX_RATE, if the training is long enough."""

    def __call__(self, step: int) -> float:
        return float(MIN_RATE * (MAX_RATE / MIN_RATE) ** (step / (NUM_STEPS - 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCurve:
    """The loss of each step, with its learning rate.

    has_diverged: the largest rates made it grow. images: in a step. scale: a rate / the optim.lr that gives it.
    """

    name: str
    rates: Sequence[float]
    losses: Sequence[float]
    has_diverged: bool
    images: int
    scale: float = 1.0

    @property
    def smoothed(self) -> list[float]:
        """The mean of the losses around each step: no step's loss counts for a larger rate than its own."""
        return [fmean(self.losses[max(0, at - SMOOTHED_STEPS // 2) : at + SMOOTHED_STEPS // 2 + 1])
                for at in range(len(self.losses))]  # fmt: skip

    @property
    def lowest(self) -> int:
        """The step with the lowest smoothed loss."""
        smoothed = self.smoothed
        return min(range(len(smoothed)), key=smoothed.__getitem__)

    @property
    def steepest(self) -> int | None:
        """The step at which the smoothed loss falls fastest, before it is lowest; None if it never falls."""
        smoothed, side = self.smoothed, SMOOTHED_STEPS // 2
        slopes = {at: smoothed[at + side] - smoothed[at - side] for at in range(side, self.lowest - side + 1)}
        best = min(slopes, key=slopes.__getitem__, default=None)
        return best if best is not None and slopes[best] < 0 else None

    @property
    def suggestion(self) -> float | None:
        """The value for optim.lr, with two digits; None if no rate lowers the loss."""
        return None if self.steepest is None else float(f"{self.rates[self.steepest] / self.scale:.2g}")

    def as_csv(self) -> str:
        """A line for each step."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["learning_rate", "loss", "smoothed_loss"])
        writer.writerows(zip(self.rates, self.losses, self.smoothed, strict=True))
        return text.getvalue()

    def as_text(self) -> str:
        """The suggestion, and what it was read from."""
        end = "; there the loss had grown" if self.has_diverged else ""
        lines = [f"tried          {len(self.rates)} steps of {self.images:,} images, learning rates "
                 f"{self.rates[0]:.2g} to {self.rates[-1]:.2g}{end}"]  # fmt: skip
        if self.suggestion is None:
            return join_lines([*lines, "suggestion     none: no learning rate made the loss fall. Look at the curve"])
        lines += [f"lowest loss    at {self.rates[self.lowest]:.2g}, just before it grows"] if self.has_diverged else []
        return join_lines([*lines, f"suggestion     optim.lr={self.suggestion:g}: there the loss falls fastest"])


def has_diverged(losses: Sequence[float]) -> bool:
    """Whether the last losses are not finite, or several times as large as the lowest."""
    if not losses or not math.isfinite(losses[-1]):
        return bool(losses)
    means = [fmean(losses[at : at + SMOOTHED_STEPS]) for at in range(len(losses) - SMOOTHED_STEPS + 1)]
    return bool(means) and means[-1] > DIVERGED * min(means)


def measure_curve(config: RunConfig, world: World, environ: MutableMapping[str, str]) -> LossCurve:
    """Train on the run's images, with its model, optimizer and augmentation, in a temporary folder that is removed.

    Raises:
        Failure: as `build_trainer` and `Trainer.train_step`.
    """
    folder = make_temporary_folder(environ)
    train = replace(config.train, epochs=NUM_STEPS, max_steps=NUM_STEPS, compile=False, ema_decay=None)
    log, checkpoint = LogConfig(tensorboard=False), replace(config.checkpoint, resume="never")
    trial = replace(config, train=train, log=log, checkpoint=checkpoint)
    rates, losses = list[float](), list[float]()
    try:
        with open_trainer(trial, world, environ, Path(folder), Heartbeat()) as trainer:
            images = trainer.batches.global_
            scale = peak_learning_rate(replace(config.optim, lr=1.0), images)
            trainer.schedule = GrowingRate(name="growing", peak=MAX_RATE, warmup=0, total=NUM_STEPS, args={})
            trainer.begin()
            batches = trainer.loader.train(trainer.sampler.micro_batches(0))
            while trainer.state.step < NUM_STEPS and not has_diverged(losses):
                rates.append(trainer.schedule(trainer.state.step))
                trainer.train_step(batches)
                losses.append(fmean(trainer.loop.running_mean.losses()))
                trainer.loop.running_mean.clear()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    finite = [loss for loss in losses if math.isfinite(loss)]
    return LossCurve(
        name=config.run.name,
        rates=rates[: len(finite)],
        losses=finite,
        has_diverged=has_diverged(losses),
        images=images,
        scale=scale,
    )


def draw(curve: LossCurve) -> bytes:
    """A PNG of the loss over the learning rate."""
    top = PICTURE_TOP * curve.smoothed[0]
    losses, smoothed = ([loss if loss <= top else math.nan for loss in each] for each in (curve.losses, curve.smoothed))
    marks = {} if curve.steepest is None else {curve.rates[curve.steepest]: f"optim.lr={curve.suggestion:g}"}
    series = [
        plots.PlotSeries(name="loss of a step", x=curve.rates, y=losses, style="faint", colour=0),
        plots.PlotSeries(name=f"mean of {SMOOTHED_STEPS} steps", x=curve.rates, y=smoothed, colour=0),
    ]
    panel = plots.Panel(
        title=f"{curve.name}: loss over the learning rate",
        x="learning rate",
        y="training loss",
        series=series,
        marks=marks,
        log_x=10,
    )
    return plots.draw_panel(panel)
