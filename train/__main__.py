"""The command `train` parses the command line and calls the subcommand, without importing torch."""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import platform
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence

from entrypoint import (
    ExitCode,
    Failure,
    add_launch_arguments,
    print_message,
    protect_output_streams,
    resource_limit_failure,
)
from train.cli import check, data, evaluate, find_lr, launch
from train.cli import run as training
from train.cli.launch import TrainArgumentParser
from train.config.load import drop_key, suggest_config_option
from train.run import continue_command, time_limit
from train.run.record import installed_version

EXIT_CODES = "; ".join(f"{int(code)} {code.meaning}" for code in ExitCode)
EXAMPLES = f"""examples:
  train                                     the quickstart: drawn images, any machine
  train --config cfg.yaml                   your configuration
  train --config cfg.yaml optim.lr=0.01 train.epochs=20
  train check --config cfg.yaml             validate and show the plan; nothing is started or written
  train eval runs/NAME                      measure a run's best checkpoint again, anywhere (train eval --help)
  train predict runs/NAME photos/           what the trained model says of image files
  train export runs/NAME --output model     weights, a description and a model card, to hand on
  train data fetch data.name=cifar10        bring a published data set into data.root, verified
  train data check --config cfg.yaml        read every sample once: broken files, sizes, duplicates across the split
  train data profile --config cfg.yaml      what limits a training here: reading, augmenting, copying or the step
  train data show --config cfg.yaml         a picture of training images as the network gets them
  train data pack photos --output shards    image files into tar shards, for parallel file systems
  train find-lr --config cfg.yaml           trains 100 steps with a growing learning rate, and suggests one
  train weights fetch resnet50              bring published weights into ./weights, verified
  train bench sweep --config cfg.yaml       which settings are fastest here (also comm, scaling: train bench --help)
  train report runs/NAME                    a page with curves; of several runs also speed-up and efficiency
  train where --config cfg.yaml             print the run's folder (for job scripts)
  train --device cpu --procs-per-node 2     two processes on the CPU

Start it in the same way under docker, apptainer, srun, torchrun, accelerate launch or mpirun.
Exit codes: {EXIT_CODES}; 130 a second Ctrl-C.
The code of train check tells of configuration and data alone: with a WARNING that a run would be refused it is 0.
"""


def build_parser() -> TrainArgumentParser:
    """Build the parser of the command line."""
    parser = TrainArgumentParser(
        prog="train",
        usage="train [check | where | find-lr | eval RUN | predict RUN IMAGES... | export RUN --output DIR | "
        "data {check|profile|show|fetch|pack|index} | weights fetch NAME | bench NAME | report RUN...] "
        "[--config FILE] [options] [section.key=value ...]",
        description="Train an image classifier: on one CPU, on several GPUs, or on many nodes, with the same command.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "words", nargs="*", default=[], metavar="section.key=value", help="settings that replace the file's"
    )
    parser.add_argument("--config", metavar="FILE", help="a YAML file (default: the quickstart)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text (eval, data)")
    parser.add_argument("--all", action="store_true", help="measure every image, not only the validation images (eval)")
    parser.add_argument(
        "--output", metavar="FILE", help="where to draw the picture (data show, find-lr), or the folder (data pack)"
    )
    parser.add_argument(
        "--size", type=int, metavar="PIXELS", help="scale larger images to this shorter side (data pack)"
    )
    parser.add_argument("--quality", type=int, metavar="Q", help="of scaled JPEG images, 90 by default (data pack)")
    parser.add_argument(
        "--time-limit",
        metavar="D-HH:MM:SS",
        help="save and stop before this time is over, counted from now; also HH:MM:SS, or minutes",
    )
    parser.add_argument(
        "--profile-lines",
        action="store_true",
        help="also write how long each line of the training loop, and of your own model and data, took",
    )
    parser.add_argument("--version", action="store_true", help="show versions and leave")
    # What torch.distributed.launch passes to each process.
    parser.add_argument("--local-rank", "--local_rank", dest="local_rank", metavar="N", help=argparse.SUPPRESS)
    add_launch_arguments(parser)
    parser.set_defaults(split="validation", per_image=None, report=False, explain=False)  # options of `train eval`
    return parser


def main() -> int:
    """The console command; returns the exit code."""
    protect_output_streams(os.environ)
    if sys.argv[1:2] == [] or sys.argv[1] not in COMMAND_MODULES:
        command = continue_command.typed_command(sys.argv, os.environ.get("PATH"), isolated=bool(sys.flags.isolated))
        os.environ[continue_command.TYPED_COMMAND_VARIABLE] = command
    try:
        launch.handle_stop_signals(launch.stop_handler(sys.argv[1:]))
        return run_command(sys.argv[1:], os.environ)
    except (Failure, KeyboardInterrupt) as error:  # a signal just before or after `run_command`
        return print_failure(error)


def run_command(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run one command line and return its exit code. Every failure is printed here, once."""
    try:
        if argv and argv[0] in COMMAND_MODULES:
            return int(importlib.import_module(COMMAND_MODULES[argv[0]]).handle(argv[1:], environ))
        own = list(argv[:1]) == [evaluate.COMMAND]
        arguments = evaluate.parse_arguments(argv[1:]) if own else build_parser().parse_intermixed_args(argv)
        if arguments.version:
            print(describe_versions())
            return 0
        command, overrides = split_command(arguments.words)
        if arguments.time_limit is not None:
            time_limit.parse_time_limit(arguments.time_limit)  # `check` and `where` refuse a bad value too
        if arguments.json and command not in JSON_COMMANDS:
            what = f"--json belongs to {' and '.join(f'`train {name}`' for name in JSON_COMMANDS)}"
            raise Failure(what, fix="leave --json out", code=ExitCode.USAGE)
        if arguments.all and command != evaluate.COMMAND:
            raise Failure("--all belongs to `train eval`", fix="leave --all out", code=ExitCode.USAGE)
        if arguments.output is not None and command not in ("data", find_lr.COMMAND):
            raise Failure(
                f"--output belongs to `train data show`, `train data pack` and `train {find_lr.COMMAND}`",
                fix="leave --output out",
                code=ExitCode.USAGE,
            )
        if (arguments.size, arguments.quality) != (None, None) and command != "data":
            raise Failure("--size and --quality belong to `train data pack`", fix="leave them out", code=ExitCode.USAGE)
        if arguments.profile_lines and command != "train":
            raise Failure("--profile-lines belongs to a training", fix="leave it out", code=ExitCode.USAGE)
        report_overruled_settings(arguments, overrides)
        return COMMANDS[command](arguments, overrides, with_local_rank(environ, arguments.local_rank))
    except (Failure, KeyboardInterrupt) as error:
        return print_failure(error)
    except Exception as error:
        if failure := resource_limit_failure(error) or gpu_failure(error):
            print_message(str(failure), sys.stderr)
            return int(failure.code)
        traceback.print_exc()
        return int(ExitCode.BUG)


def print_failure(error: Failure | KeyboardInterrupt) -> int:
    """Print the failure and return its exit code."""
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    print_message(str(error), sys.stderr)
    return int(error.code)


def gpu_failure(error: Exception) -> Failure | None:
    """The failure for a CUDA error; None for other errors, or if this process has not loaded torch."""
    if "torch" not in sys.modules:
        return None
    from train.distributed import device

    return device.failure_from_error(error)


def split_command(words: Sequence[str]) -> tuple[str, list[str]]:
    """(command, overrides): the first word is the command, unless it contains `=`."""
    if not words or "=" in words[0]:
        return "train", list(words)
    name = words[0]
    if name in COMMAND_MODULES:
        raise Failure(f"`{name}` comes after options", fix=f"write it first: train {name} ...", code=ExitCode.USAGE)
    if name not in COMMANDS:
        raise Failure(
            f"`{name}` is neither a command nor section.key=value", fix=_suggest_command(name), code=ExitCode.USAGE
        )
    return name, list(words[1:])


def report_overruled_settings(arguments: argparse.Namespace, overrides: Sequence[str]) -> None:
    """Print a note for each setting of this command line that is also an option on it, which wins."""
    for name in ("device", "procs_per_node"):
        option = f"--{name.replace('_', '-')} {getattr(arguments, name)}"
        settings = [word for word in overrides if drop_key(word, f"launch.{name}") != word]
        if settings and getattr(arguments, name) is not None:
            print_message(f"note: `{option}` wins over `{settings[0]}`", sys.stderr)


def _suggest_command(name: str) -> str:
    """The fix for a word that is neither a command nor an override."""
    if file := suggest_config_option(name):
        return file
    close = difflib.get_close_matches(name, [*COMMANDS, *COMMAND_MODULES], 1)
    if not close:
        return "write section.key=value, and a file as --config FILE"
    return "leave it out: `train --config FILE` trains" if close == ["train"] else f"write `train {close[0]}`"


def with_local_rank(environ: Mapping[str, str], argument: str | None) -> Mapping[str, str]:
    """Set LOCAL_RANK from the argument of torch.distributed.launch, if the variable is not set.

    Raises:
        Failure: LAUNCH_CONFLICT, if both are set and differ.
    """
    local_rank = environ.get("LOCAL_RANK") or argument
    if argument is not None and argument != local_rank:
        raise Failure(
            "the launcher gives two local ranks",
            found=f"--local-rank={argument}, LOCAL_RANK={local_rank}",
            fix="remove LOCAL_RANK from the environment that the launcher starts from",
            code=ExitCode.LAUNCH_CONFLICT,
        )
    return environ if argument is None else {**environ, "LOCAL_RANK": argument}


def describe_versions() -> str:
    """The versions of this project and of the packages that affect results."""
    names = ("train-image", "torch", "torchvision", "accelerate")
    versions = ", ".join(f"{name} {installed_version(name) or 'not installed'}" for name in names)
    return f"{versions}, Python {platform.python_version()}"


COMMANDS = {
    "train": training.train,
    "check": check.check,
    "where": check.print_run_folder,
    find_lr.COMMAND: find_lr.handle,
    "eval": evaluate.launch_evaluation,
    "data": data.handle,
}
# These commands must be the first word, and have their own parsers. They are imported only when used.
COMMAND_MODULES = {
    "bench": "train.cli.bench",
    "export": "train.cli.export",
    "predict": "train.cli.predict",
    "report": "train.cli.report",
    "weights": "train.cli.weights",
}
JSON_COMMANDS = ("eval", "data")  # the commands that know --json

if __name__ == "__main__":
    sys.exit(main())
