"""From the words after `train data` to what is printed. No torch before a command needs it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TextIO

from entrypoint import ExitCode, Failure
from train.fetching import fetch
from train.fetching.telling import Teller
from train.front import check
from train.settings import schema
from train.settings.config import RunConfig

Outcome = tuple[str, Failure | None]


def run(words: Sequence[str], *, file: str | None, as_json: bool, console: TextIO) -> Outcome:
    """What one command has to say, and the failure that it ends with.

    Args:
        words: the command and its settings. file: of --config.
        console: takes what passes while it works.

    Raises:
        Failure: USAGE for unknown commands and settings, else what keeps the command from its work.
    """
    name, *overrides = words or [""]
    if name not in COMMANDS:
        what = f"`train data {name}` is no command" if name else "`train data` needs a command"
        fix = f"use one of: {', '.join(f'train data {known}' for known in COMMANDS)}"
        raise Failure(what, fix=fix, code=ExitCode.USAGE)
    if as_json and name not in JSON:
        raise Failure(f"`train data {name}` has no --json", fix="leave --json out", code=ExitCode.USAGE)
    return COMMANDS[name](schema.load(file, overrides), file, as_json, console)


def look(config: RunConfig, file: str | None, as_json: bool, console: TextIO) -> Outcome:
    """`train data check`: read everything once, in this process; on a terminal say how far it is."""
    check.refuse_group(config.data)
    from train.inspection import datacheck  # torch

    teller = Teller(console)
    try:
        found = datacheck.check(config, beside=file, tell=teller.passing if console.isatty() else _nothing)
    finally:
        teller.end()
    return found.as_json() if as_json else found.as_text(), found.failure


def bring(config: RunConfig, file: str | None, as_json: bool, console: TextIO) -> Outcome:
    """`train data fetch`: a published data set into data.root, for where there is a network; then jobs need none."""
    fetch.ensure(config.data, Teller(console))
    return f"{config.data.name}: whole, in {os.path.abspath(config.data.root)}", None


def _nothing(text: str) -> None:
    """Nobody is there to read it."""


COMMANDS: Final[Mapping[str, Callable[[RunConfig, str | None, bool, TextIO], Outcome]]] = {
    "check": look,
    "fetch": bring,
}
JSON: Final = ("check",)
