"""No command prints colours where it was asked not to, nor without a terminal; lines fit one that is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest
from jobs import TINY
from processes import python, unmeasured

from entrypoint.console import COMMAND_PATTERN

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
COMMANDS = {
    "help": ["train", "--help"],
    "check": ["train", "check", "--device", "cpu"],
    "refusal": ["train", "train.epochs=0"],
    "training": ["train", "--device", "cpu", "run.output_dir=.", "profile.steps=[2,3]", *TINY],
    "show": ["entrypoint", "show", "--device", "cpu"],
    "doctor": ["entrypoint", "doctor", "--device", "cpu"],
}


def on_a_terminal(*words: str, folder: Path, columns: int = 0, **variables: str) -> str:
    """What a terminal is given; it is read while the command runs, since it holds little."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    environ = {**unmeasured(), "TERM": "xterm-256color", **variables}
    command = ["timeout", "-k", "1", "200", sys.executable, "-m", *words]
    with subprocess.Popen(command, env=environ, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs):
        os.close(theirs)
        output = b""
        with os.fdopen(ours, "rb", buffering=0) as terminal, suppress(OSError):  # the last reader of it gets an error
            while more := terminal.read(65536):
                output += more
    return output.decode()


@pytest.mark.slow
@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_a_terminal_gets_no_colour_with_no_color(words: list[str], tmp_path: Path) -> None:
    output = on_a_terminal(*words, folder=tmp_path, NO_COLOR="1")
    assert len(output) > 100
    assert COLOUR.findall(output) == []


@pytest.mark.slow
@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_what_is_no_terminal_gets_no_colour(words: list[str], tmp_path: Path) -> None:
    done = python("-m", *words, environ={"TERM": "xterm-256color"}, cwd=tmp_path)
    assert len(done.stdout + done.stderr) > 100
    assert "\x1b" not in done.stdout + done.stderr


def test_a_terminal_gets_errors_in_red(tmp_path: Path) -> None:
    assert "\x1b[31mERROR[64]\x1b[0m" in on_a_terminal(*COMMANDS["refusal"], folder=tmp_path)


def test_a_terminal_gets_errors_of_its_ranks_in_red(tmp_path: Path) -> None:
    training = ["train", "--device", "cpu", "run.output_dir=.", *TINY, "train.max_steps=1"]
    assert python("-m", *training, cwd=tmp_path).returncode == 0
    output = on_a_terminal(*training, "optim.weight_decay=0.3", folder=tmp_path)
    assert "\x1b[31mERROR[65]\x1b[0m" in output


def test_a_terminal_gets_the_doctors_colours_and_a_bar(tmp_path: Path) -> None:
    assert COLOUR.search(on_a_terminal(*COMMANDS["doctor"], folder=tmp_path))
    assert "100%|" in on_a_terminal(*COMMANDS["training"], folder=tmp_path)


PLAIN = {**COMMANDS, "training": [word for word in COMMANDS["training"] if not word.startswith("profile.")]}


def too_wide(*words: str, folder: Path) -> list[str]:
    """Of the lines that a terminal of 60 columns is given, a bar's states among them. COLUMNS is of another one.

    A command is one line however long it is: it is there to be copied.
    """
    output = COLOUR.sub("", on_a_terminal(*words, folder=folder, columns=60, COLUMNS="80"))
    assert len(output) > 100
    parts = [part for line in output.split("\r\n") for part in line.split("\r")]
    return [part for part in parts if len(part) > 60 and not COMMAND_PATTERN.match(part)]


@pytest.mark.parametrize("name", ["check", "refusal"])
def test_no_line_is_wider_than_the_terminal(name: str, tmp_path: Path) -> None:
    assert too_wide(*PLAIN[name], folder=tmp_path) == []


@pytest.mark.slow
def test_no_line_of_a_training_nor_of_an_error_in_it_is_wider_than_the_terminal(tmp_path: Path) -> None:
    assert too_wide(*PLAIN["training"], folder=tmp_path) == []
    refused = [*PLAIN["training"], "optim.lr=0.3"]  # by its ranks, who know the checkpoint
    assert too_wide(*refused, folder=tmp_path) == []
