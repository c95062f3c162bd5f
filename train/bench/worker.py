"""One rank of a measured run: as in a training, but rank 0 does a block of steps only when the bench says so."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import MutableMapping, Sequence

from entrypoint import attach_heartbeat, world_from_environ
from train import plugin, worker
from train.config import environment, load
from train.run import folder


def main() -> None:
    """`python -m train.bench.worker --pace PORT:TOKEN [--config FILE] [section.key=value ...]`."""
    run(sys.argv[1:], os.environ)


def run(argv: Sequence[str], environ: MutableMapping[str, str]) -> None:
    """Train until the bench hangs up."""
    arguments = build_parser().parse_args(argv)
    world, pulse = world_from_environ(environ), attach_heartbeat(environ)
    config = load.load_config(arguments.config, arguments.overrides)
    plugin.add_config_folder_to_path(arguments.config, config.data.name, config.model.name, config.optim.name)
    if arguments.beside:
        sys.path.append(arguments.beside)
    environment.remove_conflicting_variables(environ, download=False)
    environment.limit_openmp_spinning(environ)
    with worker.no_garbage_collection():
        from train.bench import rank

    with rank.opened(config, world, environ, folder.run_folder(config), pulse) as trainer:
        rank.led(trainer, arguments.pace if world.rank == 0 else None, warm_up=arguments.warm_up)
    pulse.beat("end")


def build_parser() -> argparse.ArgumentParser:
    """The command line that `python -m train.bench` writes."""
    parser = argparse.ArgumentParser(prog="train.bench.worker", allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE")
    parser.add_argument("--pace", metavar="PORT:TOKEN", required=True)
    parser.add_argument("--beside", metavar="DIR", help="where the model's module lies")
    parser.add_argument("--warm-up", metavar="STEPS", type=int, default=10)
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    return parser


if __name__ == "__main__":
    main()
