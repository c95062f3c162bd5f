"""The last batches before a run diverged become errors/diverged.json: which samples, which files, on which ranks."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from entrypoint import Failure
from train import files
from train.run import exit_file
from train.run.job import Job

LISTED: Final = 100  # steps


def leave(todo: Job, losses: Sequence[float], found: str) -> None:
    """Write what is known of the steps since the last log point. All ranks call it; never fails.

    losses: this rank's mean losses since then, the last ones: of each micro batch, or on rank 0 of each step.
    """
    steps = since(todo.state.step, todo.config.log.every_steps)
    takes = 1 if todo.exact else todo.batches.accumulation
    told = todo.runtime.gathered(by_step(losses, steps, takes))
    told = told[:1] * len(told) if todo.exact else told
    if todo.runtime.is_main:
        batches = [_batch(todo, step, [mine.get(step) for mine in told]) for step in listed(steps, told)]
        bad = next((batch for batch in batches if batch["ranks"]), None)
        facts = {"found": found, "first_bad_step": bad["step"] if bad else None, "files": _files(todo, bad)}
        with suppress(OSError, Failure):
            (todo.folder / exit_file.ERRORS_FOLDER).mkdir(exist_ok=True)
            text = json.dumps(facts | {"batches": batches}, ensure_ascii=False) + "\n"
            files.write_atomic(
                todo.folder / exit_file.ERRORS_FOLDER / exit_file.DIVERGED_FILE, text.encode(errors="backslashreplace")
            )


def since(step: int, every: int) -> range:
    """The steps since the log point before, counted from 0; `step` are done."""
    return range(max(step - 1, 0) // every * every, step)


def listed(steps: range, told: Sequence[Mapping[int, float]]) -> range:
    """Those around the first with a bad loss, or else the last ones: `log.every_steps` may be many."""
    bad = [step for mine in told for step, loss in mine.items() if not math.isfinite(loss)]
    first = max(steps.start, min(bad, default=steps.stop) - LISTED // 2)
    return range(first, min(first + LISTED, steps.stop))


def by_step(losses: Sequence[float], steps: Sequence[int], takes: int) -> dict[int, float]:
    """The mean loss of each of these steps, as far back as `losses` reach: `takes` of them are one step."""
    known = min(len(losses) // takes, len(steps))
    means = [sum(losses[at : at + takes]) / takes for at in range(len(losses) - known * takes, len(losses), takes)]
    return dict(zip(steps[len(steps) - known :], means, strict=True))


def _batch(todo: Job, step: int, losses: Sequence[float | None]) -> dict[str, Any]:
    """One global batch. step: counted from 1, as in metrics.jsonl. ranks: whose loss was not finite."""
    known = [loss for loss in losses if loss is not None]
    mean = sum(known) / len(known) if known else math.nan
    return {
        "step": step + 1,
        "loss": mean if math.isfinite(mean) else None,
        "ranks": [rank for rank, loss in enumerate(losses) if loss is not None and not math.isfinite(loss)],
        "samples": todo.course.global_batch(step).tolist(),
    }


def _files(todo: Job, bad: dict[str, Any] | None) -> dict[int, str]:
    """The files of the first bad step's ranks, where samples are files."""
    if bad is None or todo.loader.paths is None:
        return {}
    share, samples = todo.batches.global_ // todo.batches.world, bad["samples"]
    shares = [samples[rank * share : (rank + 1) * share] for rank in bad["ranks"]]
    return {sample: str(todo.loader.paths[sample]) for part in shares for sample in part}
