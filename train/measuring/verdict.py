"""What `train eval` measured becomes the text that people read, or one JSON object for programs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from train.evaluation import figures
from train.evaluation.scores import Result
from train.record import progress

AVERAGED, TRAINED = "ema", "model"  # groups of tensors in a checkpoint
WEIGHTS: Final = {AVERAGED: "averaged (EMA)", TRAINED: "not averaged"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One evaluation.

    weights: AVERAGED or TRAINED. standing: of the checkpoint in its run, as "the best". measured: what, in words; all:
    not the held-out side alone. notes: what makes the numbers other than they look. left_out: images that cannot be
    read. confusion: rows by label; None for very many classes.
    """

    checkpoint: str
    step: int
    weights: str
    standing: str | None
    measured: str
    all: bool
    notes: tuple[str, ...]
    world_size: int
    device: str
    precision: str
    data: str
    loader: str
    left_out: int
    classes: tuple[str, ...]
    result: Result
    confusion: list[list[int]] | None

    def as_text(self) -> str:
        """What was measured and how well; by class where that fits a terminal."""
        about = {
            "checkpoint": self.checkpoint,
            "weights": f"of step {self.step}{f' ({self.standing})' if self.standing else ''}, {WEIGHTS[self.weights]}",
            "measured": self.measured,
            "computed": f"by {progress.many(self.world_size, 'rank')} on {self.device}, {self.precision}",
            "data": f"{self.data}: {len(self.classes)} classes, loader: {self.loader}",
        }
        if self.left_out:
            about["left out"] = f"{progress.many(self.left_out, 'image')} that cannot be read"
        told = figures.facts(self.result, self.classes, "image" if self.all else "held-out image")
        if self.confusion is None or len(self.classes) > figures.SHOWN:
            return progress.rows(about | told)
        told.pop("weak classes", None)  # the table shows them
        return f"{progress.rows(about | told)}\n\n{figures.table(self.result, self.classes, self.confusion)}"

    def as_json(self) -> str:
        """One line. The scores stand beside the rest, not inside `result`."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        del own["result"], own["confusion"]
        return figures.as_json(self.result, self.confusion, own)
