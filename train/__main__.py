"""The command `train` parses the command line and calls the subcommand, without importing torch."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import shlex
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from entrypoint import (
    ExitCode,
    Failure,
    add_launch_arguments,
    print_message,
    protect_output_streams,
    redact_words,
    refuse_lost_output,
    remember_typed_words,
    resource_limit_failure,
    shell_command,
    typed_program,
)
from train.cli import check, data, evaluate, find_lr, launch
from train.cli import run as training
from train.cli.launch import TrainArgumentParser
from train.config import load
from train.config.load import drop_key, suggest_config_option, suggest_setting
from train.names import nearest_name
from train.run import deadline
from train.run.continue_command import TYPED_COMMAND_VARIABLE
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


# The options that only some commands have, by their attribute. All others belong to every command.
OPTION_COMMANDS: Final[Mapping[str, Sequence[str]]] = {
    "json": ("eval", "data check", "data profile"),
    "all": ("eval",),
    "output": ("data show", "data pack", find_lr.COMMAND),
    "size": ("data pack",),
    "quality": ("data pack",),
    "profile_lines": ("train",),
}
# (what follows the command, what it does), for the page of `train COMMAND --help`. `eval` has a parser of its own.
HELP: Final = {
    "check": ("", "Validate a config, and show the plan. Nothing is started or written."),
    "where": ("", "Print the run's folder, for job scripts."),
    find_lr.COMMAND: ("[--output FILE.png]", "Train 100 steps with a growing learning rate, and suggest one."),
    "data": ("{check|profile|show|fetch|pack|index}", "Inspect, download, draw and pack a data set."),
    "data check": ("[--json]", "Read every sample once: broken files, sizes, duplicates across the split."),
    "data profile": ("[--json]", "Find what limits a training here: reading, augmenting, copying or the step."),
    "data show": ("[--output FILE.png]", "Draw training images as the network gets them."),
    "data fetch": ("", "Bring a published data set into data.root, verified."),
    "data pack": ("[SOURCE] --output DIR [--size PIXELS [--quality Q]]", "Pack image files into tar shards."),
    "data index": ("[FOLDER]", "List what lies in tar shards that another program wrote."),
}


def build_parser(command: str = "") -> TrainArgumentParser:
    """Build the parser of the command line. command: whose page --help shows; empty: that of all commands."""
    form, description = HELP.get(command, ("", ""))
    usage = f"train {command} {form + ' ' if form else ''}[--config FILE] [options] [section.key=value ...]"
    lines = [line for line in EXAMPLES.splitlines() if line.startswith(f"  train {command} ")]
    parser = TrainArgumentParser(
        prog=f"train {command}".strip(),
        usage=usage
        if command
        else "train [check | where | find-lr | eval RUN | predict RUN IMAGES... | export RUN --output DIR | "
        "data {check|profile|show|fetch|pack|index} | weights fetch NAME | bench NAME | report RUN...] "
        "[--config FILE] [options] [section.key=value ...]",
        description=description
        or "Train an image classifier: on one CPU, on several GPUs, or on many nodes, with the same command.",
        epilog="\n".join(["examples:", *lines]) if command else EXAMPLES,
        arguments={
            "words": dict(nargs="*", default=[], metavar="section.key=value", help="settings that replace the file's"),
            "--config": dict(metavar="FILE", help="a YAML file (default: the quickstart)"),
            "--json": dict(action="store_true", help="one JSON object instead of text (eval, data)"),
            "--all": dict(action="store_true", help="measure every image, not only the validation images (eval)"),
            "--output": dict(
                metavar="FILE", help="where to draw the picture (data show, find-lr), or the folder (data pack)"
            ),
            "--size": dict(type=int, metavar="PIXELS", help="scale larger images to this shorter side (data pack)"),
            "--quality": dict(type=int, metavar="Q", help="of scaled JPEG images, 90 by default (data pack)"),
            "--time-limit": dict(
                metavar="D-HH:MM:SS",
                help="save and stop before this time is over, counted from now; also HH:MM:SS, or minutes",
            ),
            "--profile-lines": dict(
                action="store_true",
                help="also write how long each line of the training loop, and of your own model and data, took",
            ),
            "--version": dict(action="store_true", help="show versions and leave"),
            # What torch.distributed.launch passes to each process.
            "--local-rank --local_rank": dict(dest="local_rank", metavar="N", help=argparse.SUPPRESS),
        },
    )
    add_launch_arguments(parser)
    parser.set_defaults(split="validation", per_image=None, report=False, explain=False)  # options of `train eval`
    for action in parser._actions if command else ():
        if command not in OPTION_COMMANDS.get(action.dest, (command,)):
            action.help = argparse.SUPPRESS
    return parser


def main() -> int:
    """The console command; returns the exit code."""
    protect_output_streams(os.environ)
    program = typed_program(
        sys.argv[0], sys.orig_argv[0], os.environ.get("PATH", ""), isolated=bool(sys.flags.isolated)
    )
    typed = [*program, *redact_words(sys.argv[1:])]
    remember_typed_words(typed)
    os.environ[TYPED_COMMAND_VARIABLE] = shlex.join(typed)
    try:
        launch.handle_stop_signals(launch.stop_handler(sys.argv[1:]))
        return run_command(sys.argv[1:], os.environ)
    except (Failure, KeyboardInterrupt) as error:  # a signal just before or after `run_command`
        return print_failure(error)


def run_command(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run one command line and return its exit code. Every failure is printed here, once."""
    try:
        if argv and argv[0] in COMMAND_MODULES:
            code = int(importlib.import_module(COMMAND_MODULES[argv[0]]).handle(argv[1:], environ))
            refuse_lost_output()
            return code
        if argv and not argv[0].startswith("-"):
            split_command(argv)  # before an option of another command is blamed
        own = list(argv[:1]) == [evaluate.COMMAND]
        page = next((name for name in (" ".join(argv[:2]), " ".join(argv[:1])) if name in HELP), "")
        arguments = evaluate.parse_arguments(argv[1:]) if own else build_parser(page).parse_intermixed_args(argv)
        if arguments.version:
            print(describe_versions())
            refuse_lost_output()
            return 0
        command, overrides = split_command(arguments.words)
        if arguments.time_limit is not None:
            deadline.parse_time_limit(arguments.time_limit)  # `check` and `where` refuse a bad value too
        full_name = " ".join([command, *overrides[:1]]) if command == "data" else command
        if command != "data" or full_name in HELP:  # `data` itself refuses a name that is none
            refuse_options_of_others(arguments, full_name)
        if arguments.config and not overrides and os.path.isfile(arguments.config):
            load.refuse_empty_file(Path(arguments.config))
        report_overruled_settings(arguments, overrides)
        code = COMMANDS[command](arguments, overrides, with_local_rank(environ, arguments.local_rank))
        if command != "train":  # which never ends for its console
            refuse_lost_output()
        return code
    except (Failure, KeyboardInterrupt) as error:
        return print_failure(error)
    except Exception as error:
        if failure := resource_limit_failure(error) or gpu_failure(error):
            print_message(str(failure), sys.stderr)
            return int(failure.code)
        traceback.print_exc()
        return int(ExitCode.BUG)


def refuse_options_of_others(arguments: argparse.Namespace, command: str) -> None:
    """Refuse an option that the command does not have.

    Raises:
        Failure: USAGE, with the commands that have it.
    """
    for name, commands in OPTION_COMMANDS.items():
        if getattr(arguments, name) not in (None, False) and command not in commands:
            option, listed = f"--{name.replace('_', '-')}", [f"`train {each}`" for each in commands]
            owners = "a training" if commands == ("train",) else " and ".join(listed)
            raise Failure(f"{option} belongs to {owners}", fix=f"leave {option} out", code=ExitCode.USAGE)


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
        raise Failure(
            f"`{name}` comes after options", fix=f"write it first: {shell_command('train', name)}", code=ExitCode.USAGE
        )
    if name not in COMMANDS:
        raise Failure(
            f"`{name}` is neither a command nor section.key=value",
            fix=_suggest_command(name, words[1:]),
            code=ExitCode.USAGE,
        )
    return name, list(words[1:])


def report_overruled_settings(arguments: argparse.Namespace, overrides: Sequence[str]) -> None:
    """Print a note for each setting of this command line that is also an option on it, which wins."""
    for name in ("device", "procs_per_node"):
        option = f"--{name.replace('_', '-')} {getattr(arguments, name)}"
        settings = [word for word in overrides if drop_key(word, f"launch.{name}") != word]
        if settings and getattr(arguments, name) is not None:
            print_message(f"note: `{option}` wins over `{settings[0]}`", sys.stderr)


# What other tools, or other programs of this project, call a command.
OTHER_COMMANDS: Final = {
    **{name: f"entrypoint {name}" for name in ("doctor", "show", "job-script")},
    **dict.fromkeys(("evaluate", "test", "val", "validate"), "train eval RUN"),
    **dict.fromkeys(("infer", "inference", "classify"), "train predict RUN IMAGES"),
    **dict.fromkeys(("fit", "run", "resume", "start", "continue"), "train --config FILE"),
    **dict.fromkeys(("plot", "compare", "curves"), "train report RUN"),
    **dict.fromkeys(("lr-find", "lr_find", "find_lr", "tune"), "train find-lr --config FILE"),
    "help": "train --help",
    **dict.fromkeys(("download", "fetch"), "train data fetch data.name=NAME"),
}


def _suggest_command(name: str, following: Sequence[str]) -> str:
    """The fix for a word that is neither a command nor an override. following: the words after it."""
    if file := suggest_config_option(name):
        return file
    if name.lower() in OTHER_COMMANDS:
        return f"write `{shell_command(OTHER_COMMANDS[name.lower()])}`"
    close = nearest_name(name, [*COMMANDS, *COMMAND_MODULES])
    if close is None:
        return suggest_setting(name, following) or "write section.key=value, and a file as --config FILE"
    if close == "train":
        return f"write `{shell_command('train --config FILE')}`"
    return f"write `{shell_command('train', close)}`"


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

if __name__ == "__main__":
    sys.exit(main())
