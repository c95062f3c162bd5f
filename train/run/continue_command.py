"""The command that continues a finished run, from the one that was typed.

It needs no torch: the parent process records what was typed.
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
from train.config.schema import RunConfig
from train.files import one_line

TYPED_COMMAND_VARIABLE: Final = "ENTRYPOINT_TYPED"  # the parent process sets it
RESUME_KEY: Final = "checkpoint.resume"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """Where a finished run stands. stopped_early: it has reached eval.target."""

    config: RunConfig
    steps: StepCounts
    step: int
    stopped_early: bool


def typed_command(argv: Sequence[str], path: str | None, *, isolated: bool = False) -> str:
    """What was typed, quoted for a shell. A program that `path` (PATH) leads to is named without its folder.

    isolated: whether Python was started with -I, as the image's command and entrypoint.isolated do, and nobody by hand.
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
    """The whole command, since `make run` or a job script may have typed it."""
    overrides = overrides_to_train_on(run)
    replaced_keys = {override.partition("=")[0] for override in overrides} | {RESUME_KEY}
    words = [word for word in shlex.split(command) if word.partition("=")[0] not in replaced_keys]
    return one_line(shlex.join([*words, *overrides]))


def overrides_to_train_on(run: FinishedRun) -> list[str]:
    """The settings without which the run would end here again, or start over."""
    train = run.config.train
    steps = overrides_to_continue(run.steps, run.step, epochs=train.epochs, max_steps=train.max_steps)
    resume = [f"{RESUME_KEY}=auto"] if run.config.checkpoint.resume == "never" else []
    return [*(["eval.target=null"] if run.stopped_early else []), *steps, *resume]


def program_of(command: str) -> str:
    """`train`, or however it was typed: the words before the first argument."""
    words = shlex.split(command)
    if words[:3] == ["python", "-m", "train"]:
        return "python -m train"
    return shlex.join(words[:1])
