"""This module runs one rank of a measured training; rank 0 runs a block of steps only on request."""

from __future__ import annotations

import argparse
import sys
from collections.abc import MutableMapping, Sequence

from entrypoint import attach_heartbeat, world_from_environ
from train import plugin, worker
from train.config import environment, load
from train.run import folder


def main(words: Sequence[str], environ: MutableMapping[str, str]) -> None:
    """Train until the benchmark hangs up."""
    arguments = build_parser().parse_args(words)
    world, heartbeat = world_from_environ(environ), attach_heartbeat(environ)
    config = load.load_config(arguments.config, arguments.overrides)
    plugin.add_config_folder_to_path(arguments.config, *plugin.names_of_training(config))
    if arguments.module_folder:
        sys.path.append(arguments.module_folder)
    environment.remove_conflicting_variables(environ, download=False)
    environment.limit_openmp_spinning(environ)
    with worker.no_garbage_collection():
        from bench import blocks
        from train.build import open_trainer

    with open_trainer(config, world, environ, folder.run_folder(config), heartbeat) as trainer:
        blocks.train_in_blocks(trainer, arguments.pace if world.rank == 0 else None, warm_up=arguments.warm_up)
    heartbeat.beat("end")


def build_parser() -> argparse.ArgumentParser:
    """The command line that `training_program` writes."""
    parser = argparse.ArgumentParser(prog="bench.worker", allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE")
    parser.add_argument("--pace", metavar="PORT:TOKEN", required=True)
    parser.add_argument("--module-folder", metavar="DIR", help="where the model's module is")
    parser.add_argument("--warm-up", metavar="STEPS", type=int, default=10)
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    return parser
