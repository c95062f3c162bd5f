"""The final score of a run: its best checkpoint's weights, measured once on the test split.

No rank and no setting chooses by it. The run folder keeps it in `test.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from train import files
from train.evaluation.results import EvaluationResult
from train.metrics import metrics_of

TEST_FILE: Final = "test.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalScore:
    """What was measured. step: of the weights. trained_steps: of the run, when it was measured."""

    step: int
    trained_steps: int
    checkpoint: str
    result: EvaluationResult

    def to_json(self) -> dict[str, Any]:
        """One flat object, as `best.json`."""
        facts = {"step": self.step, "trained_steps": self.trained_steps, "checkpoint": self.checkpoint}
        return facts | self.result.to_json()

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> FinalScore:
        """Read the object of `to_json`.

        Raises:
            KeyError, TypeError: no run wrote the object.
        """
        return cls(
            step=int(saved["step"]),
            trained_steps=int(saved["trained_steps"]),
            checkpoint=str(saved["checkpoint"]),
            result=EvaluationResult.from_json(saved),
        )

    def describe(self, chosen: str) -> str:
        """The metrics always shown and the chosen one, for the last lines of a run."""
        metrics = metrics_of(self.result.task)
        shown = [metric for name, metric in metrics.items() if metric.always_shown or name == chosen]
        values = [f"{metric.label} {metric.format(self.result.values.get(metric.name))}" for metric in shown]
        return (
            f"{', '.join(values)} on {self.result.samples:,} images that chose nothing (weights of step {self.step:,})"
        )


def read_final_score(run_folder: Path) -> FinalScore | None:
    """The score in `test.json`; None if it is missing or unreadable."""
    try:
        return FinalScore.from_json(files.read_json(run_folder / TEST_FILE))
    except (OSError, *files.MALFORMED_ERRORS):
        return None
