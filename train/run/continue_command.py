"""This module derives the command that continues a finished run from the command that was typed.

It needs no torch: the parent process records the typed command.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Final

from entrypoint import config_words
from train.config import schema
from train.config.batches import StepCounts, overrides_to_continue
from train.config.load import drop_key, overridden_keys
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


def words_for_own_code(config: RunConfig, command: str) -> list[str]:
    """The words with which `train predict`, `eval` and `export` run the user's own model or data of this run.

    They run no code that only the run's folder names (77). command: the command that was typed.
    """
    names = {"model.name": config.model.name, "data.name": config.data.name}
    factories = {key: name for key, name in names.items() if schema.is_factory(name)}
    words = config_words(shlex.split(command))
    settings = [word for word in words if "=" in word and word[0] != "-"]
    if not factories:
        return []
    if len(settings) == len(words) or overridden_keys(settings, factories):
        return [f"{key}={name}" for key, name in factories.items()]
    return [word for word in words if word not in settings or word.startswith("data.")]
