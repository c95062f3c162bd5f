"""From a run's folder to what a start would do there: nothing, go on, or be refused. No torch; nothing is written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from entrypoint import Failure
from train.checkpoint import manifest, shelf
from train.checkpoint.manifest import Damaged
from train.evaluation import stopping
from train.evaluation.scores import Result
from train.front import links
from train.record import record
from train.settings import changes
from train.settings.config import RunConfig

STATE: Final = "state.json"  # of a checkpoint: all but its tensors
UNKNOWN: Final = "a number that the start knows"
OVER: Final = "start over with checkpoint.resume=never"
GOES_ON: Final = "to go on, or checkpoint.resume=never to start over"
ODD: Final = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a start would do, in words. refused: it would end at once, with an error."""

    said: str
    refused: bool = False


def look(
    config: RunConfig, folder: Path, *, total: int | None, data: Mapping[str, Any] | None = None
) -> Standing | None:
    """What `train` would do with the run in `folder`; None where there is none.

    Of the newest checkpoint its list and its state are read, and compared with their hashes; not its tensors, which may
    be large. Those are left to the start, as is what only its ranks know.

    Args:
        total: steps that the configuration asks for; None where only the start can count them.
        data: its classes, and how many images each side has, where that is known.
    """
    try:
        links.refuse(folder)
        there = shelf.steps(folder / "checkpoints")
        if config.checkpoint.resume == "never":
            return Standing(said=f"would begin anew: what is in {folder} moves to before-N there") if there else None
        return _of_newest(config, folder, there, total, data or {}) if there else None
    except Failure as failure:
        what, *facts = str(failure).splitlines()
        return _refused(int(failure.code), [what.partition("] ")[2], *map(str.strip, facts)])


def _of_newest(
    config: RunConfig, folder: Path, there: Mapping[int, Path], total: int | None, data: Mapping[str, Any]
) -> Standing:
    """Raises Failure where a start would, as far as that is known here."""
    for path in reversed([*there.values()]):
        try:
            told = _state(path)
            changes.refuse_changes(told["config"], asdict(config))
            changes.refuse_other_data(told.get("data"), data)
            return _unchanged(config, folder, told, total)
        except Damaged:
            continue
        except ODD as error:
            words = [
                f"{path} does not hold the state of a training: {type(error).__name__}",
                f"fix: delete it, or {OVER}",
            ]
            return _refused(65, words)
    return _refused(65, [f"no checkpoint in {folder}/checkpoints is whole", f"fix: {OVER}"])


def _refused(code: int, words: Sequence[str]) -> Standing:
    return Standing(said=f"would be refused ({code}): {'; '.join(words)}", refused=True)


def _state(path: Path) -> Any:
    """What a checkpoint tells beside its tensors.

    Raises:
        Damaged, Failure: as `shelf.listed`.
    """
    contents = shelf.listed(path)
    if STATE not in contents.files:
        raise Damaged(f"{STATE} is not in it")
    expected = contents.files[STATE]
    data = manifest.read(path, STATE, limit=expected.size)
    manifest.compare(STATE, expected, manifest.entry(data))
    return json.loads(data)


def _unchanged(config: RunConfig, folder: Path, told: Mapping[str, Any], total: int | None) -> Standing:
    """Where the same training stands."""
    state, before, step = told["state"], told["config"]["eval"], int(told["state"]["step"])
    last = Result(**state["result"]) if state.get("result") else None
    held = stopping.still_held(config.eval, int(state.get("held", 0)), last, before.get("target"))
    steps = _recorded(config, folder) if total is None else total
    at = f"step {step:,} of {UNKNOWN if steps is None else format(steps, ',')}"
    if stopping.reached(config.eval, held):
        why = f"{config.eval.metric} has reached eval.target {config.eval.target:g}"
        return Standing(said=f"is finished ({at}: {why}): train would do nothing; add eval.target=null {GOES_ON}")
    if steps is not None and step >= steps:
        return Standing(said=f"is finished ({at}): train would do nothing; add {_longer(config, steps)} {GOES_ON}")
    return Standing(said=f"would go on from {at}")


def _longer(config: RunConfig, steps: int) -> str:
    """The setting without which a start would end there again."""
    wanted = config.train
    return "train.max_steps=null" if steps == wanted.max_steps else f"train.epochs={2 * wanted.epochs}"


def _recorded(config: RunConfig, folder: Path) -> int | None:
    """By what the last start has counted, where nothing can be counted before a start."""
    facts = (record.read_run(folder) or {}).get("training")
    per_epoch = facts.get("steps_per_epoch") if isinstance(facts, dict) else None
    if not isinstance(per_epoch, int):
        return None
    total = per_epoch * config.train.epochs
    return total if config.train.max_steps is None else min(total, config.train.max_steps)
