"""From a run that is over to the command line with which it goes on. No torch: the front door tells what was typed."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from entrypoint import redact_words
from train.config.batches import StepCounts, count_total_steps, overrides_to_continue
from train.config.schema import RunConfig
from train.files import one_line
from train.optim import schedule

VARIABLE: Final = "ENTRYPOINT_TYPED"  # the front door sets it
RESUME: Final = "checkpoint.resume"
RELATIVE: Final = 1e-6  # a learning rate is computed on two ways


@dataclass(frozen=True, slots=True, kw_only=True)
class Over:
    """Where a run stands that is over. early: it has reached eval.target; global_: samples in a batch of all ranks."""

    config: RunConfig
    steps: StepCounts
    step: int
    global_: int
    early: bool


def typed(argv: Sequence[str], path: str | None, *, isolated: bool = False) -> str:
    """What was typed, for a shell. A program that `path` leads to goes by its name alone.

    isolated: whether Python was started with -I, as the image's command and entrypoint.isolated do, and nobody by hand.
    """
    program, words = argv[0], redact_words(argv[1:])
    if Path(program).name == "__main__.py":
        if isolated and shutil.which("train", path=path):
            return shlex.join(["train", *words])
        return shlex.join(["python", "-m", "train", *words])
    name = Path(program).name
    known = Path(program).is_absolute() and shutil.which(name, path=path) == program
    return shlex.join([name if known else program, *words])


def advice(over: Over, command: str) -> str:
    """The last line: the whole command, since `make run` or a job script may have typed it."""
    more = settings(over)
    rising = " (the learning rate follows the longer schedule: it rises again)" if rises(over, more) else ""
    line = one_line(_with(command, more))
    return f"next: {line} goes on{rising}; with {RESUME}=never instead it starts over"


def settings(over: Over) -> list[str]:
    """Those without which the run would end here again, or begin anew."""
    wanted = over.config.train
    more = overrides_to_continue(over.steps, over.step, epochs=wanted.epochs, max_steps=wanted.max_steps)
    again = [f"{RESUME}=auto"] if over.config.checkpoint.resume == "never" else []
    return [*(["eval.target=null"] if over.early else []), *more, *again]


def rises(over: Over, more: Sequence[str]) -> bool:
    """Whether the next step has a higher learning rate than the last: most schedules are stretched with the run."""
    added, wanted, counted = dict(word.split("=", 1) for word in more), over.config.train, over.steps
    epochs = int(added.get("train.epochs", wanted.epochs))
    most = None if "train.max_steps" in added else wanted.max_steps
    stretched = replace(counted, total=count_total_steps(counted.per_epoch, epochs=epochs, max_steps=most))
    if stretched == counted:
        return False
    last = schedule.build_schedule(over.config.optim, counted, over.global_)(over.step - 1)
    return schedule.build_schedule(over.config.optim, stretched, over.global_)(over.step) > last * (1 + RELATIVE)


def _with(command: str, more: Sequence[str]) -> str:
    """`more` in place of what was typed for the same keys."""
    keys = {word.partition("=")[0] for word in more} | {RESUME}
    return shlex.join([*(word for word in shlex.split(command) if word.partition("=")[0] not in keys), *more])
