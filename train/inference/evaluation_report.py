"""The report of `train eval` says how good a checkpoint is, as text and as JSON."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from entrypoint import join_lines, pluralize
from train.checkpoint.store import EMA_GROUP, MODEL_GROUP
from train.evaluation import results
from train.evaluation.results import EvaluationResult
from train.logging import progress
from train.tasks import TASKS

WEIGHTS_DESCRIPTIONS: Final = {EMA_GROUP: "averaged (EMA)", MODEL_GROUP: "not averaged"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationReport:
    """One evaluation.

    weights: EMA_GROUP or MODEL_GROUP. standing: the checkpoint's position in its run, such as "the
    best". measured: a description of the images. split, all: which images of the data these are.
    notes: caveats about the metrics. left_out: unreadable images. confusion: rows by label; None
    for very many classes.
    """

    checkpoint: str
    step: int
    weights: str
    standing: str | None
    measured: str
    split: str
    all: bool
    notes: tuple[str, ...]
    world_size: int
    device: str
    precision: str
    data: str
    loader: str
    left_out: int
    classes: tuple[str, ...]
    result: EvaluationResult
    confusion: list[list[int]] | None

    def as_text(self) -> str:
        """The report as text, with a table by class if it fits a terminal."""
        outputs = TASKS[self.result.task].describe_outputs(self.classes)
        facts = {
            "checkpoint": self.checkpoint,
            "weights": f"of step {self.step}{f' ({self.standing})' if self.standing else ''}, "
            + WEIGHTS_DESCRIPTIONS[self.weights],
            "measured": self.measured,
            "computed": f"by {pluralize(self.world_size, 'rank')} on {self.device}, {self.precision}",
            "data": f"{self.data}: {outputs}, loader: {self.loader}",
        }
        if self.left_out:
            facts["left out"] = f"{pluralize(self.left_out, 'image')} that cannot be read"
        metric_rows = results.metric_rows(self.result, self.classes, "image" if self.all else f"{self.split} image")
        if self.confusion is None or len(self.classes) > results.MAX_TABLE_CLASSES:
            return progress.format_rows(facts | metric_rows)
        metric_rows.pop("weak classes", None)  # the table shows them
        table = results.format_confusion_table(self.result, self.classes, self.confusion)
        return join_lines([progress.format_rows(facts | metric_rows), "", table])

    def as_json(self) -> str:
        """One line of JSON. The metrics are top-level keys, not inside `result`."""
        facts = {field.name: getattr(self, field.name) for field in fields(self)}
        del facts["result"], facts["confusion"]
        return results.result_to_json(self.result, self.confusion, facts)
