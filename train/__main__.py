"""The command `train`: the front door without torch, from a command line to one worker process per rank."""

from __future__ import annotations

import argparse
import difflib
import os
import platform
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from types import FrameType
from typing import NoReturn

from entrypoint import ExitCode, Failure, Options, Plan, add_launch_arguments, make_plan, options_from, run_plan, shield
from train.fetching import fetch
from train.fetching.telling import Teller
from train.files import durable
from train.front import check, datacommands, refusal, rundir
from train.measuring import chosen
from train.settings import idle, parallel, schema, variables
from train.settings.config import RunConfig

EXAMPLES = """examples:
  train                                     the quickstart: drawn images, any machine
  train --config cfg.yaml                   your configuration
  train --config cfg.yaml optim.lr=0.01 train.epochs=20
  train check --config cfg.yaml             validate and show the plan; nothing is started or written
  train eval runs/NAME                      measure a run's best checkpoint again, anywhere
  train data fetch data.name=cifar10        bring a published data set into data.root, verified
  train data check --config cfg.yaml        read every sample once: broken files, sizes, duplicates across the split
  train where --config cfg.yaml             print the run's folder (for job scripts)
  train --device cpu --procs-per-node 2     two processes on the CPU

Start it in the same way under docker, apptainer, srun, torchrun, accelerate launch or mpirun.
Exit codes: 0 done, 64-66 config or data, 75 stopped and saved (start again to go on), 70 a bug of ours.
"""

# Promised commands of later versions.
LATER = ("bench", "report")


class Parser(argparse.ArgumentParser):
    """argparse with our exit code and our two halves."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of leaving with 2."""
        fix = "see `train --help`; settings are written without dashes: section.key=value"
        raise Failure(f"command line: {message}", fix=fix, code=ExitCode.USAGE)


def build_parser() -> Parser:
    """The command line."""
    parser = Parser(
        prog="train",
        usage="train [check|where|eval RUN|data check|data fetch] [--config FILE] [options] [section.key=value ...]",
        description="Train an image classifier: on one CPU, on several GPUs, or on many nodes, with the same command.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "words", nargs="*", default=[], metavar="section.key=value", help="settings that replace the file's"
    )
    parser.add_argument("--config", metavar="FILE", help="a YAML file (default: the quickstart)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text (eval, data check)")
    parser.add_argument("--version", action="store_true", help="show versions and leave")
    # What torch.distributed.launch passes to each process.
    parser.add_argument("--local-rank", "--local_rank", dest="local_rank", metavar="N", help=argparse.SUPPRESS)
    add_launch_arguments(parser)
    return parser


def main() -> int:
    """The console command; returns the exit code."""
    shield()
    handle(stop)
    return run(sys.argv[1:], os.environ)


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Do what one command line asks for; every failure is shown here, once."""
    try:
        arguments = build_parser().parse_intermixed_args(argv)
        if arguments.version:
            print(version())
            return 0
        command, overrides = split(arguments.words)
        if arguments.json and command not in JSON:
            what = f"--json belongs to {' and '.join(f'`train {name}`' for name in JSON)}"
            raise Failure(what, fix="leave --json out", code=ExitCode.USAGE)
        return COMMANDS[command](arguments, overrides, with_local_rank(environ, arguments.local_rank))
    except Failure as failure:
        print(failure, file=sys.stderr)
        return int(failure.code)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception:
        traceback.print_exc()
        return int(ExitCode.BUG)


def split(words: Sequence[str]) -> tuple[str, list[str]]:
    """The command, which is the first word without `=`, and the overrides."""
    if not words or "=" in words[0]:
        return "train", list(words)
    name = words[0]
    if name in LATER:
        fix = f"use one of: {', '.join(COMMANDS)}"
        raise Failure(f"`train {name}` is not available in this version", fix=fix, code=ExitCode.USAGE)
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, 1)
        fix = f"write `train {close[0]}`" if close else "write section.key=value, and a file as --config FILE"
        raise Failure(f"`{name}` is neither a command nor section.key=value", fix=fix, code=ExitCode.USAGE)
    return name, list(words[1:])


def with_local_rank(environ: Mapping[str, str], given: str | None) -> Mapping[str, str]:
    """torch.distributed.launch says LOCAL_RANK as an argument: it counts where the variable is not set.

    Raises:
        Failure: FACTS, where both are given and differ.
    """
    found = environ.get("LOCAL_RANK") or given
    if given is not None and given != found:
        raise Failure(
            "the launcher gives two local ranks",
            found=f"--local-rank={given}, LOCAL_RANK={found}",
            fix="remove LOCAL_RANK from the environment that the launcher starts from",
            code=ExitCode.FACTS,
        )
    return environ if given is None else {**environ, "LOCAL_RANK": given}


def train_command(arguments: argparse.Namespace, overrides: Sequence[str], environ: Mapping[str, str]) -> int:
    """Start the ranks of this task and wait for them."""
    config = schema.load(arguments.config, overrides)
    with refusal.noted(rundir.run_folder(config), environ):
        plan = planned(config, options(arguments, config, environ), environ)
    refuse_impossible(config, plan, environ)
    place = rundir.choose(config, plan, environ)
    if config.data.download:
        fetch.ensure(config.data, Teller(sys.stderr))
    plan = with_warnings(replace(plan, warnings=(*plan.warnings, *place.warnings)), config)
    source = ["--config", arguments.config] if arguments.config else []
    command = [sys.executable, "-m", "train.worker", *source, *overrides, *place.overrides]
    ignore_signals()  # run_plan has handlers of its own; when it gives these back, the exit code must not change
    return run_plan(plan, command, environ, log_dir=place.folder / "logs", foreign=False)


def planned(config: RunConfig, asked: Options, environ: Mapping[str, str]) -> Plan:
    """What this task will start. `train.parallel` dp or none is one process, unless another number is asked for.

    Raises:
        Failure: as `make_plan`.
    """
    plan = make_plan(environ, asked)
    if plan.spawn == 1 or asked.procs_per_node or not parallel.one_process(config.train.parallel):
        return plan
    # dp uses all GPUs that it sees: what is said of GPUs that are not used does not hold.
    alone = make_plan(environ, replace(asked, procs_per_node=1))
    return replace(alone, warnings=plan.warnings) if config.train.parallel == "dp" else alone


def with_warnings(plan: Plan, config: RunConfig) -> Plan:
    """The plan, and what is to be said of the configuration."""
    said = (*parallel.warnings(config.train.parallel), *idle.warnings(config))
    return replace(plan, warnings=(*plan.warnings, *said))


def refuse_impossible(config: RunConfig, plan: Plan, environ: Mapping[str, str]) -> None:
    """What each task can know before anything is started or written; ranks look again at what they alone know.

    Raises:
        Failure: as `check.possible` and `variables.refuse_contradictions`.
    """
    parallel.refuse_several(config.train.parallel, plan.world.world_size)
    batch = check.possible(config, plan.world.world_size)
    auto = None if plan.device == "cuda" else "fp32"
    precision = auto if config.train.precision == "auto" else config.train.precision
    variables.refuse_contradictions(environ, device=plan.device, precision=precision, accumulation=batch.accumulation)


def stop(signum: int, frame: FrameType | None) -> NoReturn:
    """A signal before anything was started: there is nothing to save. It may come twice (Slurm and Apptainer)."""
    ignore_signals()
    if signum == signal.SIGINT:
        raise KeyboardInterrupt
    what = f"stopped by {signal.Signals(signum).name} before the training began"
    raise Failure(what, fix="start the same command again", code=ExitCode.STOPPED)


def ignore_signals() -> None:
    """From now on, requests to stop are somebody else's or come too late."""
    handle(lambda signum, frame: None)  # not SIG_IGN, which says that the caller ignores it


def handle(handler: Callable[[int, FrameType | None], object]) -> None:
    """Give requests to stop to `handler`, but for Ctrl-C where the caller ignores it (`train &` in a script)."""
    for signum in STOPPING:
        if signum != signal.SIGINT or signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, handler)


def check_command(arguments: argparse.Namespace, overrides: Sequence[str], environ: Mapping[str, str]) -> int:
    """Show what would be done. Where the GPUs are missing (a login node), for the ranks that were asked for."""
    config = schema.load(arguments.config, overrides)
    asked, note = options(arguments, config, environ), None
    try:
        plan = planned(config, asked, environ)
    except Failure as failure:
        if failure.code != ExitCode.NODE:
            raise
        note = f"here it would not start: {failure.what}. fix: {failure.fix}"
        plan = planned(config, replace(asked, device="cpu"), environ)
    if note is None:
        refuse_impossible(config, plan, environ)
    print(check.describe(config, arguments.config, with_warnings(plan, config), note))
    return 0


def where_command(arguments: argparse.Namespace, overrides: Sequence[str], environ: Mapping[str, str]) -> int:
    """The run's folder, for job scripts: they read errors/exit.json in it. Asks nothing of the launcher."""
    print(rundir.run_folder(schema.load(arguments.config, overrides)))
    return 0


def eval_command(arguments: argparse.Namespace, words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Measure a checkpoint: by ranks as in a training, which write nothing into the run's folder."""
    given, overrides = chosen.split(words)
    found = chosen.choose(given)
    config, notes = chosen.configured(found, arguments.config, overrides)
    plan = make_plan(environ, options(arguments, config, environ))
    plan = replace(plan, warnings=(*plan.warnings, *found.notes, *notes))
    if config.data.download:
        fetch.ensure(config.data, Teller(sys.stderr))
    folder = rundir.scratch(environ)
    source = ["--config", arguments.config] if arguments.config else []
    source += ["--json"] if arguments.json else []
    command = [sys.executable, "-m", "train.worker", "--evaluate", str(found.path), "--scratch", str(folder)]
    ignore_signals()
    code = int(ExitCode.OK)
    try:
        code = run_plan(plan, [*command, *source, *overrides], environ, log_dir=folder / "logs", foreign=False)
    finally:
        if code in (ExitCode.OK, ExitCode.STOPPED):  # else the logs are named in what was said
            durable.remove(folder)
    return code


def data_command(arguments: argparse.Namespace, words: Sequence[str], environ: Mapping[str, str]) -> int:
    """What is done with data sets apart from training."""
    told, failure = datacommands.run(words, file=arguments.config, as_json=arguments.json, console=sys.stderr)
    print(told)
    if failure is not None:
        raise failure
    return 0


def options(arguments: argparse.Namespace, config: RunConfig, environ: Mapping[str, str]) -> Options:
    """Command line over ENTRYPOINT_* over the file."""
    procs = config.launch.procs_per_node
    number = None if procs == "auto" else procs
    return options_from(arguments, environ, device=config.launch.device, procs_per_node=number)


def version() -> str:
    """Ours, and those that decide results. Read from the installed packages: nothing is imported."""
    names = ("train-image", "torch", "torchvision", "accelerate")
    return f"{', '.join(f'{name} {_version(name)}' for name in names)}, Python {platform.python_version()}"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


COMMANDS = {
    "train": train_command,
    "check": check_command,
    "where": where_command,
    "eval": eval_command,
    "data": data_command,
}
JSON = ("eval", "data")  # the commands that know --json
STOPPING = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)

if __name__ == "__main__":
    sys.exit(main())
