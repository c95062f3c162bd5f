"""How a run that is over is said to go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from train.config import load
from train.config.batches import StepCounts, count_total_steps
from train.run import goingon
from train.run.goingon import Over


def over(*settings: str, step: int = 40, early: bool = False) -> Over:
    """Eight steps an epoch."""
    config = load.load_config(None, ["train.epochs=5", *settings])
    counted = count_total_steps(8, epochs=config.train.epochs, max_steps=config.train.max_steps)
    return Over(
        config=config, steps=StepCounts(per_epoch=8, total=counted, dropped=0), step=step, global_=256, early=early
    )


def said(command: str, *settings: str, step: int = 40, early: bool = False) -> str:
    return goingon.advice(over(*settings, step=step, early=early), command).partition(";")[0]


def test_the_whole_command_is_named() -> None:
    constant = "optim.schedule=constant"
    assert said("train --config my.yaml", constant) == "next: train --config my.yaml train.epochs=10 goes on"


def test_what_was_typed_for_the_same_key_is_replaced() -> None:
    assert "train run.name=a train.epochs=10 goes on" in said("train train.epochs=5 run.name=a")


@pytest.mark.parametrize("typed", ["train checkpoint.resume=never", "train --config begins-anew.yaml"])
def test_a_run_that_was_begun_anew_is_not_begun_anew_once_more(typed: str) -> None:
    command = said(typed, "checkpoint.resume=never")
    assert "resume=never" not in command
    assert "train.epochs=10 checkpoint.resume=auto goes on" in command


def test_more_epochs_count_from_those_that_are_done() -> None:
    assert "train.epochs=55 goes on" in said("train", step=400)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "one_cycle", "step"])
def test_where_the_schedule_is_stretched_the_rate_is_said_to_rise(schedule: str) -> None:
    assert "rises again" in said("train", f"optim.schedule={schedule}")


@pytest.mark.parametrize(
    "settings", [("optim.schedule=constant",), ("optim.schedule=step", "optim.schedule_args={at_epochs: [2]}")]
)
def test_where_it_is_not_nothing_is_said_of_the_rate(settings: tuple[str, ...]) -> None:
    assert "rises" not in said("train", *settings)


@pytest.mark.parametrize("step", [4, 16], ids=["in-its-warm-up", "later"])
def test_a_target_reached_early_leaves_the_schedule_as_it_is(step: int) -> None:
    command = said("train", "eval.target=0.5", step=step, early=True)
    assert command == "next: train eval.target=null goes on"


def test_a_value_for_the_shell_stays_one() -> None:
    assert "'run.name=a b'" in said("train 'run.name=a b'")


def test_what_would_end_the_line_does_not() -> None:
    assert "\n" not in said("train 'run.name=a\nb'")


def test_a_program_goes_by_its_name_where_the_shell_finds_it(tmp_path: Path) -> None:
    program = tmp_path / "train"
    program.touch(mode=0o755)
    assert goingon.typed([str(program), "a.b=1"], str(tmp_path)) == "train a.b=1"
    assert goingon.typed([str(program), "a.b=1"], "/nowhere") == f"{program} a.b=1"


def test_what_a_command_of_ours_started_goes_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "train").touch(0o755)
    module = ["/any/where/train/__main__.py", "a.b=1"]
    assert goingon.typed(module, str(tmp_path), isolated=True) == "train a.b=1"


def test_a_program_that_was_named_by_its_path_stays_so() -> None:
    assert goingon.typed([".venv/bin/train"], "/nowhere") == ".venv/bin/train"


def test_a_module_is_named_as_one_types_it() -> None:
    assert goingon.typed(["/any/where/train/__main__.py", "a.b=1"], None) == "python -m train a.b=1"
