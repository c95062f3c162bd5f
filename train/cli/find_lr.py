"""`train find-lr` trains with a growing learning rate, draws the loss over it, and suggests a rate."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from entrypoint import ExitCode, Failure, join_lines, print_message
from train import files, plugin
from train.cli import launch
from train.config import load

COMMAND: Final = "find-lr"
OPTION: Final = "--output"
SUFFIX: Final = ".png"


def handle(arguments: argparse.Namespace, overrides: Sequence[str], environ: Mapping[str, str]) -> int:
    """Find the rate in this process, write the picture and its numbers, and print the suggestion.

    Raises:
        Failure: as a training; USAGE if a launcher has started several processes.
    """
    config = load.load_config(arguments.config, overrides)
    config = replace(config, optim=replace(config.optim, lr=1.0))  # the sweep sets its own, also where auto has none
    path = Path(arguments.output or f"{config.run.name}-{COMMAND}{SUFFIX}")
    files.refuse_unusable_file(path, OPTION, SUFFIX)
    options = launch.launch_options(arguments, config, environ)
    plan = launch.plan_launch(config, options, environ)
    if plan.spawn == plan.world.world_size > 1:  # no launcher: this process would start them
        plan = launch.plan_launch(config, replace(options, procs_per_node=1), environ)
    if plan.world.world_size > 1:
        raise Failure(
            f"`train {COMMAND}` is one process",
            found=f"{plan.world.world_size} ranks",
            fix="start it once: srun --ntasks=1, or without a launcher",
            code=ExitCode.USAGE,
        )
    launch.refuse_invalid_launch(config, plan, environ)
    process = launch.rank_environment(plan, environ, download=config.data.download)
    plugin.add_config_folder_to_path(arguments.config, *plugin.names_of_training(config))
    from train.cli import learning_rate_finder  # torch, and matplotlib

    curve = learning_rate_finder.measure_curve(config, plan.world, process)
    numbers = path.with_suffix(".csv")
    files.write_named_file(path, learning_rate_finder.draw(curve), OPTION, SUFFIX)
    files.write_named_file(numbers, curve.as_csv().encode(), OPTION, SUFFIX)
    print_message(join_lines([curve.as_text(), f"curve          {path}, {numbers.name}"]), sys.stdout)
    return 0
