"""`train data NAME` inspects, downloads, profiles, draws, packs and indexes a data set without training.

It imports torch only for commands that need it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TextIO

from entrypoint import ExitCode, Failure, print_message, shell_command
from train.cli import launch, shards
from train.config import load
from train.config.batches import compute_batch_sizes
from train.config.schema import RunConfig
from train.data import download, registry
from train.data.download import StatusLine
from train.names import nearest_name

COMMAND_NAMES: Final = ("check", "fetch", "profile", "show", *shards.COMMANDS)
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
    output: str | None = None,
    device_and_ranks: Callable[[RunConfig], DeviceAndRanks] = _single_cpu_rank,
    size: int | None = None,
    quality: int | None = None,
) -> CommandResult:
    """Run one command; return its text and the failure that it ends with.

    Args:
        words: the command and its settings.
        file: the value of --config.
        console: for progress messages.
        output: the value of --output.
        size, quality: the values of --size and --quality.
        device_and_ranks: where a training would compute: cpu or cuda, ranks on this machine, all
            ranks.

    Raises:
        Failure: USAGE for unknown commands and settings; others if the command cannot run.
    """
    name, *overrides = words or [""]
    if name not in COMMAND_NAMES:
        what = f"`train data {name}` is no command" if name else "`train data` needs a command"
        close = nearest_name(name, COMMAND_NAMES)
        fix = f"write `{shell_command(f'train data {close}')}`; or " if close else ""
        fix += f"use one of: {', '.join(shell_command(f'train data {command}') for command in COMMAND_NAMES)}"
        raise Failure(what, fix=fix, code=ExitCode.USAGE)
    source = overrides.pop(0) if name in shards.COMMANDS and overrides and "=" not in overrides[0] else None
    config = load.load_config(file, overrides)
    if source is not None:
        config = shards.with_source(config, name, source)
    if name in ("check", "profile", "show"):
        registry.refuse_unused_key(config.data, "group")
    match name:
        case "index":
            return shards.index_shards(config), None
        case "pack":
            return shards.pack_shards(config, output, size, quality, console, file=file, overrides=overrides), None
        case "fetch":  # so that jobs need no network
            download.ensure_downloaded(config.data, StatusLine(console))
            return f"{config.data.name}: whole, in {os.path.abspath(config.data.root)}", None
        case "show":
            from train.cli import data_show  # torch, and matplotlib

            return data_show.show_samples(config, config_file=file, output=output), None
        case "profile":
            device, ranks, world_size = device_and_ranks(config)
            micro = compute_batch_sizes(config.train.global_batch_size, config.train.micro_batch_size, world_size).micro
            from bench import data_profile  # torch

            profile = data_profile.measure_stages(
                config, config_file=file, device=device, ranks=ranks, micro=micro, world_size=world_size
            )
            return profile.as_json() if as_json else profile.as_text(), None
    from train.cli import data_check  # torch

    status = StatusLine(console)
    try:
        findings = data_check.check_samples(
            config, config_file=file, report_progress=status.passing if console.isatty() else lambda _: None
        )
    finally:
        status.end()
    return findings.as_json() if as_json else findings.as_text(), findings.failure


def handle(arguments: argparse.Namespace, words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a `train data` command and print its text."""

    def device_and_ranks(config: RunConfig) -> DeviceAndRanks:
        """Where a training would compute.

        Also limit this process's threads to those of one rank.
        """
        plan = launch.plan_launch(config, launch.launch_options(arguments, config, environ), environ)
        launch.rank_environment(plan, environ, download=False)
        return plan.device, plan.world.local_world_size, plan.world.world_size

    text, failure = run_command(
        words,
        file=arguments.config,
        as_json=arguments.json,
        console=sys.stderr,
        output=arguments.output,
        size=arguments.size,
        quality=arguments.quality,
        device_and_ranks=device_and_ranks,
    )
    print_message(text, sys.stdout)
    if failure is not None:
        raise failure
    return 0
