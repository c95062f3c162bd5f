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
from train.settings.batches import batches
from train.settings.config import RunConfig

Outcome = tuple[str, Failure | None]
Place = tuple[str, int, int]


def _nowhere(config: RunConfig) -> Place:
    return "cpu", 1, 1


def run(
    words: Sequence[str],
    *,
    file: str | None,
    as_json: bool,
    console: TextIO,
    place: Callable[[RunConfig], Place] = _nowhere,
) -> Outcome:
    """What one command has to say, and the failure that it ends with.

    Args:
        words: the command and its settings. file: of --config.
        console: takes what passes while it works.
        place: where a training would compute: cpu or cuda, ranks on this machine, ranks in all.

    Raises:
        Failure: USAGE for unknown commands and settings, else what keeps the command from its work.
    """
    name, *overrides = words or [""]
    if name not in NAMES:
        what = f"`train data {name}` is no command" if name else "`train data` needs a command"
        fix = f"use one of: {', '.join(f'train data {known}' for known in NAMES)}"
        raise Failure(what, fix=fix, code=ExitCode.USAGE)
    if as_json and name not in JSON:
        raise Failure(f"`train data {name}` has no --json", fix="leave --json out", code=ExitCode.USAGE)
    config = schema.load(file, overrides)
    if name == "profile":
        return profile(config, file, as_json, place(config))
    return COMMANDS[name](config, file, as_json, console)


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


def profile(config: RunConfig, file: str | None, as_json: bool, place: Place) -> Outcome:
    """`train data profile`: time reading, augmenting, copying and the step, here."""
    check.refuse_group(config.data)
    device, ranks, world_size = place
    micro = batches(config.train.global_batch_size, config.train.micro_batch_size, world_size).micro
    from train.inspection import stages  # torch

    found = stages.measure(config, beside=file, device=device, ranks=ranks, micro=micro, world_size=world_size)
    return found.as_json() if as_json else found.as_text(), None


def _nothing(text: str) -> None:
    """Nobody is there to read it."""


COMMANDS: Final[Mapping[str, Callable[[RunConfig, str | None, bool, TextIO], Outcome]]] = {
    "check": look,
    "fetch": bring,
}
NAMES: Final = (*COMMANDS, "profile")
JSON: Final = ("check", "profile")
