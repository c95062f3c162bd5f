"""`train data check|fetch|profile` inspects, downloads and profiles a data set without training.

It imports no torch before a command needs it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Final, TextIO

from entrypoint import ExitCode, Failure, print_message
from train.cli import launch
from train.config import environment, load
from train.config.batches import compute_batch_sizes
from train.config.schema import RunConfig
from train.data import download, registry
from train.data.download import StatusLine

CommandResult = tuple[str, Failure | None]
DeviceAndRanks = tuple[str, int, int]


def _single_cpu_rank(config: RunConfig) -> DeviceAndRanks:
    return "cpu", 1, 1


def run_command(
    words: Sequence[str],
    *,
    file: str | None,
    as_json: bool,
    console: TextIO,
    place: Callable[[RunConfig], DeviceAndRanks] = _single_cpu_rank,
) -> CommandResult:
    """What one command has to say, and the failure that it ends with.

    Args:
        words: the command and its settings. file: of --config.
        console: takes what passes while it works.
        place: where a training would compute: cpu or cuda, ranks on this machine, ranks in all.

    Raises:
        Failure: USAGE for unknown commands and settings, else what keeps the command from its work.
    """
    name, *overrides = words or [""]
    if name not in COMMAND_NAMES:
        what = f"`train data {name}` is no command" if name else "`train data` needs a command"
        fix = f"use one of: {', '.join(f'train data {known}' for known in COMMAND_NAMES)}"
        raise Failure(what, fix=fix, code=ExitCode.USAGE)
    if as_json and name not in JSON_COMMANDS:
        raise Failure(f"`train data {name}` has no --json", fix="leave --json out", code=ExitCode.USAGE)
    config = load.load_config(file, overrides)
    if name == "profile":
        return profile_data(config, file, as_json, place(config))
    return DATA_COMMANDS[name](config, file, as_json, console)


def check_data(config: RunConfig, file: str | None, as_json: bool, console: TextIO) -> CommandResult:
    """`train data check`: read everything once, in this process; on a terminal say how far it is."""
    registry.refuse_unused_key(config.data, "group")
    from train.cli import data_check  # torch

    teller = StatusLine(console)
    try:
        found = data_check.check_samples(
            config, beside=file, tell=teller.passing if console.isatty() else _discard_progress
        )
    finally:
        teller.end()
    return found.as_json() if as_json else found.as_text(), found.failure


def fetch_data(config: RunConfig, file: str | None, as_json: bool, console: TextIO) -> CommandResult:
    """`train data fetch`: a published data set into data.root, for where there is a network; then jobs need none."""
    download.ensure_downloaded(config.data, StatusLine(console))
    return f"{config.data.name}: whole, in {os.path.abspath(config.data.root)}", None


def profile_data(config: RunConfig, file: str | None, as_json: bool, place: DeviceAndRanks) -> CommandResult:
    """`train data profile`: time reading, augmenting, copying and the step, here."""
    registry.refuse_unused_key(config.data, "group")
    device, ranks, world_size = place
    micro = compute_batch_sizes(config.train.global_batch_size, config.train.micro_batch_size, world_size).micro
    from train.cli import data_profile  # torch

    found = data_profile.measure_stages(
        config, beside=file, device=device, ranks=ranks, micro=micro, world_size=world_size
    )
    return found.as_json() if as_json else found.as_text(), None


def _discard_progress(text: str) -> None:
    """Nobody is there to read it."""


DATA_COMMANDS: Final[Mapping[str, Callable[[RunConfig, str | None, bool, TextIO], CommandResult]]] = {
    "check": check_data,
    "fetch": fetch_data,
}
COMMAND_NAMES: Final = (*DATA_COMMANDS, "profile")
JSON_COMMANDS: Final = ("check", "profile")


def handle(arguments: argparse.Namespace, words: Sequence[str], environ: Mapping[str, str]) -> int:
    """What is done with data sets apart from training."""
    process: MutableMapping[str, str] = os.environ if environ is os.environ else dict(environ)

    def place(config: RunConfig) -> DeviceAndRanks:
        """Where a training would compute. This process computes as one of its ranks would."""
        plan = launch.plan_launch(config, launch.launch_options(arguments, config, environ), environ)
        process["OMP_NUM_THREADS"] = plan.num_threads(environ)
        environment.limit_openmp_spinning(process)
        return plan.device, plan.world.local_world_size, plan.world.world_size

    told, failure = run_command(words, file=arguments.config, as_json=arguments.json, console=sys.stderr, place=place)
    print_message(told, sys.stdout)
    if failure is not None:
        raise failure
    return 0
