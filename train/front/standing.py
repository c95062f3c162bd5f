"""From a run's folder to what a start would do there: nothing, go on, or be refused. No torch; nothing is written."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from entrypoint import ExitCode, Failure
from train.checkpoint import manifest, shelf
from train.checkpoint.manifest import Damaged
from train.evaluation import stopping
from train.evaluation.scores import Result
from train.files import lease
from train.front import links
from train.record import claim, record
from train.settings import batches, changes
from train.settings.batches import Steps
from train.settings.config import Run, RunConfig

STATE: Final = "state.json"  # of a checkpoint: all but its tensors
UNKNOWN: Final = "a number that the start knows"
MOST: Final = 1 << 62  # steps: what a training refuses too
OVER: Final = "start over with checkpoint.resume=never"
GOES_ON: Final = "to go on, or checkpoint.resume=never to start over"
ODD: Final = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a start would do, in words. refused: it would end at once, with an error."""

    said: str
    refused: bool = False


def look(
    config: RunConfig, folder: Path, *, steps: Steps | None, data: Mapping[str, Any] | None = None
) -> Standing | None:
    """What `train` would do with the run in `folder`; None where there is none.

    Of the newest checkpoint its list and its state are read, and compared with their hashes; of its tensors, which may
    be large, the size. Their hashes are left to the start, as is what only its ranks know.

    Args:
        steps: that the configuration asks for; None where only the start can count them.
        data: its classes, and how many images each side has, where that is known.
    """
    try:
        if unusable := _unusable(config, folder):
            return unusable
        held_by = claim.refuse_living(folder)
        links.refuse(folder)
        there = shelf.steps(folder / "checkpoints")
        if not there:
            found = Standing(said="would begin") if held_by else None
        elif config.checkpoint.resume == "never":
            found = Standing(said=f"would begin anew: what is in {folder} moves to before-N there")
        else:
            found = _of_newest(config, folder, there, steps, data or {})
        return replace(found, said=f"{found.said}; first {_waits(held_by)}") if found and held_by else found
    except Failure as failure:
        what, *facts = str(failure).splitlines()
        return _refused(int(failure.code), [what.partition("] ")[2], *map(str.strip, facts)])


def _of_newest(
    config: RunConfig, folder: Path, there: Mapping[int, Path], steps: Steps | None, data: Mapping[str, Any]
) -> Standing:
    """Raises Failure where a start would, as far as that is known here."""
    for path in reversed([*there.values()]):
        try:
            told = _state(path)
            changes.refuse_changes(told["config"], asdict(config))
            changes.refuse_other_data(told.get("data"), data, folder)
            return _unchanged(config, folder, told, steps)
        except Damaged:
            continue
        except ODD as error:
            words = [
                f"{path} does not hold the state of a training: {type(error).__name__}",
                f"fix: delete it, or {OVER}",
            ]
            return _refused(65, words)
    return _refused(65, [f"no checkpoint in {folder}/checkpoints is whole", f"fix: {OVER}"])


def _unusable(config: RunConfig, folder: Path) -> Standing | None:
    """What a start would do where it cannot write; None where it can, as far as permissions say."""
    if os.path.lexists(folder) and not os.path.isdir(folder):
        return _refused(ExitCode.OUTPUT, [f"{folder} is no folder", "fix: set another run.name, or move it away"])
    places = (place for place in (folder, folder / "checkpoints") if os.path.isdir(place))
    place = next((place for place in places if not os.access(place, os.W_OK | os.X_OK)), None)
    if place is None:
        return None
    if place == folder and config.run.output_dir == Run().output_dir:
        elsewhere = "train begins anew in a temporary folder, or is refused (73) where several tasks start ranks"
        return Standing(said=f"would not go on: {folder} cannot be written; {elsewhere}")
    return _refused(ExitCode.OUTPUT, [f"{place} cannot be written", "fix: set run.output_dir to a folder of your own"])


def _waits(held_by: str) -> str:
    return (
        f"{held_by} holds the folder: train would wait up to {lease.STALE_S:.0f} s for a sign of life, and be refused "
        f"({int(ExitCode.OUTPUT)}) if there is one"
    )


def _refused(code: int, words: Sequence[str]) -> Standing:
    return Standing(said=f"would be refused ({code}): {'; '.join(words)}", refused=True)


def _state(path: Path) -> Any:
    """What a checkpoint tells beside its tensors.

    Raises:
        Damaged, Failure: as `shelf.complete`.
    """
    contents = shelf.complete(path)
    if STATE not in contents.files:
        raise Damaged(f"{STATE} is not in it")
    expected = contents.files[STATE]
    data = manifest.read(path, STATE, limit=expected.size)
    manifest.compare(STATE, expected, manifest.entry(data))
    return json.loads(data)


def _unchanged(config: RunConfig, folder: Path, told: Mapping[str, Any], steps: Steps | None) -> Standing:
    """Where the same training stands. Raises one of ODD for what no training tells; Failure for one past its end."""
    state, before, step = told["state"], told["config"]["eval"], told["state"]["step"]
    if type(step) is not int or not 0 <= step < MOST:
        raise ValueError(step)
    last = Result(**state["result"]) if state.get("result") else None
    held = stopping.still_held(config.eval, int(state.get("held", 0)), last, before.get("target"))
    steps, wanted = steps or _recorded(config, folder), config.train
    if steps is not None:
        stopping.refuse_past(told, config, steps)
    at = f"step {step:,} of {UNKNOWN if steps is None else format(steps.total, ',')}"
    longer = batches.longer(steps, step, epochs=wanted.epochs, max_steps=wanted.max_steps) if steps else []
    if stopping.reached(config.eval, held):
        longer.insert(0, "eval.target=null")
        at += f": {config.eval.metric} has reached eval.target {config.eval.target:g}"
    if longer:
        return Standing(said=f"is finished ({at}): train would do nothing; add {' '.join(longer)} {GOES_ON}")
    return Standing(said=f"would go on from {at}")


def _recorded(config: RunConfig, folder: Path) -> Steps | None:
    """By what the last start has counted, where nothing can be counted before a start."""
    facts = (record.read_run(folder) or {}).get("training")
    per_epoch = facts.get("steps_per_epoch") if isinstance(facts, dict) else None
    if type(per_epoch) is not int or not 0 < per_epoch < MOST:
        return None
    total = batches.total(per_epoch, epochs=config.train.epochs, max_steps=config.train.max_steps)
    return Steps(per_epoch=per_epoch, total=total, dropped=0)
