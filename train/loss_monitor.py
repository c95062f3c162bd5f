"""The loss monitor ends a run whose loss is NaN or infinite, and notices a loss that jumps."""

from __future__ import annotations

import json
import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from entrypoint import ExitCode, Failure, RunErrors
from train.data.sampler import BatchSampler

JUMP_FACTOR: Final = 10.0  # two log points of a training that goes well differ by a few per cent
NUM_RECENT: Final = 20  # the usual loss is the median of so many log points
MIN_RECENT: Final = 5
MAX_LISTED_STEPS: Final = 100
# fp16's scaler skips single steps while it looks for its scale. So many in a row are not that search any more.
MAX_SKIPPED_STEPS: Final = 20


class LossJump(Exception):
    """A mean loss far above the usual one, read after `step`.

    With train.spike=rollback all ranks raise it at the same step: the run goes back to its last checkpoint.
    """

    def __init__(self, step: int, loss: float, usual: float) -> None:
        super().__init__(f"the loss jumped to {loss:.4g} at or before step {step} (it was about {usual:.4g})")
        self.step, self.loss, self.usual = step, loss, usual


class RecentLosses:
    """The mean losses of the last log points. A jump is one of ten times their median that is worse than guessing.

    Without the second condition, a loss that has come near 0 would jump with every hard batch.
    """

    def __init__(self, num_classes: int) -> None:
        self._guessing_loss = math.log(max(num_classes, 2))
        self._losses: deque[float] = deque(maxlen=NUM_RECENT)
        self._is_high = False

    def find_jump(self, step: int, loss: float) -> LossJump | None:
        """The jump, if `loss` is one. An infinite loss is none: the run ends for it anyway."""
        if len(self._losses) < MIN_RECENT or not math.isfinite(loss):
            return None
        usual = statistics.median(self._losses)
        is_jump = loss > max(JUMP_FACTOR * usual, self._guessing_loss)
        return LossJump(step, loss, usual) if is_jump else None

    def add(self, step: int, loss: float) -> LossJump | None:
        """Record a log point; returns a jump once, and the next one only after the loss was low again."""
        jump, was_high = self.find_jump(step, loss), self._is_high
        self._is_high = jump is not None
        if jump is None and math.isfinite(loss):
            self._losses.append(loss)
        return None if was_high else jump


def diverged_failure(step: int, evidence: str, checkpoint: Path | None) -> Failure:
    """The end of a run whose numbers are not finite any more. checkpoint: the newest committed one."""
    return Failure(
        f"training diverged at or before step {step}",
        found=evidence,
        fix="start a new run under another run.name with a lower optim.lr, a longer optim.warmup_epochs, or "
        "train.clip_grad_norm=1.0; errors/diverged.json names the last batches",
        kept=str(checkpoint) if checkpoint else None,
        code=ExitCode.DIVERGED,
    )


def write_divergence(
    folder: Path,
    *,
    evidence: str,
    steps: range,
    losses: Sequence[Mapping[int, float]],
    sampler: BatchSampler,
    paths: Sequence[str] | None,
) -> None:
    """Write errors/diverged.json into the run's folder: the last batches' samples, files and ranks. Never fails.

    losses: of each rank, the mean loss by step (counted from 0), as far back as they are known.
    paths: of the training samples, if samples are files.
    """
    batches = [
        _describe_batch(step, [rank.get(step) for rank in losses], sampler) for step in listed_steps(steps, losses)
    ]
    first_bad = next((batch for batch in batches if batch["ranks"]), None)
    bad_files: dict[int, str] = {}
    if first_bad is not None and paths is not None:
        per_rank = sampler.batches.global_ // sampler.batches.world
        samples = [first_bad["samples"][rank * per_rank : (rank + 1) * per_rank] for rank in first_bad["ranks"]]
        bad_files = {sample: str(paths[sample]) for rank_samples in samples for sample in rank_samples}
    record = {
        "found": evidence,
        "first_bad_step": first_bad["step"] if first_bad else None,
        "files": bad_files,
        "batches": batches,
    }
    RunErrors.in_run(folder).write_diverged(json.dumps(record, ensure_ascii=False) + "\n")


def _describe_batch(step: int, losses: Sequence[float | None], sampler: BatchSampler) -> dict[str, Any]:
    """One global batch. Its step counts from 1, as in metrics.jsonl; `ranks`: whose loss was not finite."""
    finished = [loss for loss in losses if loss is not None]
    mean = sum(finished) / len(finished) if finished else math.nan
    return {
        "step": step + 1,
        "loss": mean if math.isfinite(mean) else None,
        "ranks": [rank for rank, loss in enumerate(losses) if loss is not None and not math.isfinite(loss)],
        "samples": sampler.global_batch(step).tolist(),
    }


def steps_since_log_point(step: int, log_every_steps: int) -> range:
    """The steps (counted from 0) since the previous log point; `step` steps are done."""
    return range(max(step - 1, 0) // log_every_steps * log_every_steps, step)


def listed_steps(steps: range, losses: Sequence[Mapping[int, float]]) -> range:
    """The steps around the first bad loss, or the last ones: `log.every_steps` may be many."""
    bad_steps = [step for rank in losses for step, loss in rank.items() if not math.isfinite(loss)]
    first = max(steps.start, min(bad_steps, default=steps.stop) - MAX_LISTED_STEPS // 2)
    return range(first, min(first + MAX_LISTED_STEPS, steps.stop))


def losses_by_step(losses: Sequence[float], steps: Sequence[int], losses_per_step: int) -> dict[int, float]:
    """The mean loss of each of these steps, as far back as `losses` reach."""
    num_known = min(len(losses) // losses_per_step, len(steps))
    starts = range(len(losses) - num_known * losses_per_step, len(losses), losses_per_step)
    means = [sum(losses[start : start + losses_per_step]) / losses_per_step for start in starts]
    return dict(zip(steps[len(steps) - num_known :], means, strict=True))
