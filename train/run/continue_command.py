"""This module derives the command that continues a finished run from the command that was typed.

It needs no torch: the parent process records the typed command.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from entrypoint import redact_words
from train.config.batches import StepCounts, overrides_to_continue
from train.config.load import drop_key
from train.config.schema import RunConfig
from train.evaluation.early_stopping import EarlyStop
from train.files import one_line

TYPED_COMMAND_VARIABLE: Final = "ENTRYPOINT_TYPED"  # the parent process sets it
RESUME_KEY: Final = "checkpoint.resume"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """A finished run and its last step. early_stops: why it ended before its last planned step."""

    config: RunConfig
    steps: StepCounts
    step: int
    early_stops: tuple[EarlyStop, ...] = ()


def typed_command(argv: Sequence[str], path: str | None, *, isolated: bool = False) -> str:
    """The typed command, quoted for a shell. A program on `path` (PATH) is named without its folder.

    isolated: whether Python was started with -I. The image's command and entrypoint.isolated do so, a user does not.
    """
    program, words = argv[0], redact_words(argv[1:])
    if Path(program).name == "__main__.py":
        if isolated and shutil.which("train", path=path):
            return shlex.join(["train", *words])
        return shlex.join(["python", "-m", "train", *words])
    name = Path(program).name
    is_on_path = Path(program).is_absolute() and shutil.which(name, path=path) == program
    return shlex.join([name if is_on_path else program, *words])


def continue_command(run: FinishedRun, command: str) -> str:
    """The complete command, because `make run` or a job script may have typed the first one."""
    overrides = overrides_to_train_on(run)
    replaced_keys = {override.partition("=")[0] for override in overrides} | {RESUME_KEY}
    words = shlex.split(command)
    for key in replaced_keys:
        words = [shorter for word in words if (shorter := drop_key(word, key)) is not None]
    return one_line(shlex.join([*words, *overrides]))


def overrides_to_train_on(run: FinishedRun) -> list[str]:
    """The settings without which the run would end here again, or start over."""
    train = run.config.train
    steps = overrides_to_continue(run.steps, run.step, epochs=train.epochs, max_steps=train.max_steps)
    resume = [f"{RESUME_KEY}=auto"] if run.config.checkpoint.resume == "never" else []
    return [*(stop.override for stop in run.early_stops), *steps, *resume]


def program_of(command: str) -> str:
    """The program as it was typed: `train`, or `python -m train`."""
    words = shlex.split(command)
    if words[:3] == ["python", "-m", "train"]:
        return "python -m train"
    return shlex.join(words[:1])
