"""How a run that is over is said to go on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from train.config import load
from train.config.batches import StepCounts, count_total_steps
from train.config.schema import RunConfig
from train.evaluation.early_stopping import EarlyStop
from train.run import continue_command
from train.run.continue_command import FinishedRun


def command_of(command: str, *settings: str, step: int = 40, early_stops: tuple[EarlyStop, ...] = ()) -> str:
    """How a run of eight steps an epoch continues."""
    config = load.load_config(None, ["train.epochs=5", *settings])
    total = count_total_steps(8, epochs=config.train.epochs, max_steps=config.train.max_steps)
    steps = StepCounts(per_epoch=8, total=total, dropped=0)
    run = FinishedRun(config=config, steps=steps, step=step, early_stops=early_stops)
    return continue_command.continue_command(run, command)


def test_the_whole_command_is_named() -> None:
    assert command_of("train --config my.yaml") == "train --config my.yaml train.epochs=10"


def test_what_was_typed_for_the_same_key_is_replaced() -> None:
    assert command_of("train train.epochs=5 run.name=a") == "train run.name=a train.epochs=10"


@pytest.mark.parametrize("typed", ["train checkpoint.resume=never", "train --config begins-anew.yaml"])
def test_a_run_that_was_begun_anew_is_not_begun_anew_once_more(typed: str) -> None:
    command = command_of(typed, "checkpoint.resume=never")
    assert "resume=never" not in command
    assert command.endswith("train.epochs=10 checkpoint.resume=auto")


def test_more_epochs_count_from_those_that_are_done() -> None:
    assert command_of("train", step=400) == "train train.epochs=55"


@pytest.mark.parametrize("step", [4, 16], ids=["in-its-warm-up", "later"])
def test_a_target_reached_early_leaves_the_schedule_as_it_is(step: int) -> None:
    reached = EarlyStop(description="accuracy reached eval.target 0.5", override="eval.target=null")
    command = command_of("train", "eval.target=0.5", step=step, early_stops=(reached,))
    assert command == "train eval.target=null"


def test_a_value_for_the_shell_stays_one() -> None:
    assert "'run.name=a b'" in command_of("train 'run.name=a b'")


def test_what_would_end_the_line_does_not() -> None:
    assert "\n" not in command_of("train 'run.name=a\nb'")


WITH_OWN_MODEL = replace(RunConfig(), model=replace(RunConfig().model, name="my_model:make"))


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("train --config my.yaml train.epochs=2", ["--config", "my.yaml"]),
        ("train --config=my.yaml data.root=here", ["--config=my.yaml", "data.root=here"]),
        ("train --device cpu model.name=my_model:make", ["model.name=my_model:make"]),
        ("train --config my.yaml model.name=my_model:make", ["model.name=my_model:make"]),
    ],
)
def test_code_of_ones_own_is_named_as_the_training_named_it(command: str, words: list[str]) -> None:
    assert continue_command.words_for_own_code(WITH_OWN_MODEL, command) == words
    assert continue_command.words_for_own_code(RunConfig(), command) == []
