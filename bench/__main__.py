"""`python -m bench NAME...` measures, and writes a table, JSON and plots; `train bench` is a part of it.

The checkout's command compares with other programs, whose scripts (`bench/peers`) are not installed; `train bench` has
the benchmarks that measure the user's own machines.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Final, NoReturn

from bench import measurements
from bench.measurements import Measurement, Row, Series, Target
from bench.processes import PEERS, BenchOptions
from entrypoint import (
    ExitCode,
    Failure,
    add_launch_arguments,
    make_plan,
    parse_launch_options,
    protect_output_streams,
)
from train import files
from train.cli.launch import TrainArgumentParser, handle_stop_signals, ignore_stop_signals
from train.config.load import parse_overrides
from train.names import nearest_name
from train.run.folder import make_temporary_folder

ALL: Final = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchCommand:
    """A command that runs benchmarks.

    benches: what each benchmark measures. The module of the same name in this package has `run(options) ->
    Iterator[Measurement]` and optionally `add_arguments(group)`; it is imported only when used, since some take
    seconds. compares: with other programs, whose folder --peers names. Such a command can also run all of its
    benchmarks.
    """

    prog: str
    description: str
    examples: str
    benches: Mapping[str, str]
    compares: bool = False

    def choices(self) -> list[str]:
        """The names that may be typed."""
        return [*self.benches, *([ALL] if self.compares else [])]


TRAIN_BENCH: Final = BenchCommand(
    prog="train bench",
    description="Measure your own machines. NAME is one of these, or some (comm,scaling):",
    examples="""examples:
  train bench comm --procs-per-node 2       what ranks need to exchange numbers, under any launcher
  train bench scaling --output bench        1, 2, 4, ... processes; bench.json, bench.md and plots in bench/
  train bench sweep --config cfg.yaml       the best setting for your model and data on this machine
  train bench comm --quick                  a minute, to see that it works: the values mean nothing
""",
    benches={
        "scaling": "1, 2, 4, ... processes, strong and weak",
        "comm": "all-reduce, broadcast and gather by size, under any launcher",
        "sweep": "micro batch, workers, precision, CPUs: which setting is best",
    },
)
BENCH: Final = BenchCommand(
    prog="python -m bench",
    description="Compare with other programs that do the same. NAME is all, or some (step,comm) of:",
    examples="""examples:
  python -m bench step                      rows 1, 2, 3, 4, 6, 10 and 13; what needs a GPU says so without one
  python -m bench all --output bench-cpu    everything; bench.json, bench.md and plots in bench-cpu/
  python -m bench step --quick              a minute, to see that it works: the values mean nothing
""",
    benches={
        "step": "time of a step, and images/s, against scripts that do the same by hand",
        "input": "images/s of the input pipeline, and what a step asks of the file system",
        "start": "from the command to the first step",
        "checkpoint": "what a checkpoint costs the training",
        "scaling": "1, 2, 4, ... processes, strong and weak; DataParallel",
        "comm": "all-reduce, broadcast and gather by size",
    },
    compares=True,
)
CHECKOUT_BENCHES: Final = [name for name in BENCH.choices() if name not in TRAIN_BENCH.benches]


def main() -> int:
    """Run `python -m bench`; returns the exit code."""
    protect_output_streams(os.environ)
    return run(sys.argv[1:], os.environ)


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run one command line of `python -m bench`. Every failure is printed here, once."""
    from train.__main__ import print_failure  # under `train bench` that module runs already, as `__main__`

    try:
        return run_command(BENCH, argv, environ)
    except (Failure, KeyboardInterrupt) as error:
        return print_failure(error)
    except Exception:
        traceback.print_exc()
        return int(ExitCode.BUG)


def run_command(command: BenchCommand, argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Measure, print a table (or JSON with --json), and write files to --output."""
    name = argv[0] if argv and not argv[0].startswith("-") else ""
    modules = _import_benches(command, name)
    arguments = build_parser(command, name, modules).parse_intermixed_args(list(argv[1:] if name else argv))
    if not name:
        what, fix = f"`{command.prog}` needs a name", f"use one of: {', '.join(command.choices())}"
        raise Failure(what, fix=fix, code=ExitCode.USAGE)
    handle_stop_signals(raise_stopped)
    parse_overrides(arguments.words)
    launch = parse_launch_options(arguments, environ)
    plan = make_plan(environ, launch)
    options = BenchOptions(
        device=plan.device,
        is_main=plan.world.rank == 0,
        launch=launch,
        scratch=make_temporary_folder(environ),
        environ=environ,
        log=partial(print, file=sys.stderr, flush=True),
        pairs=arguments.pairs,
        quick=arguments.quick,
        config=arguments.config,
        overrides=tuple(arguments.words),
        compares=command.compares,
        peers=getattr(arguments, "peers", PEERS),
        arguments=arguments,
    )
    folder = Path(arguments.output) if arguments.output and options.is_main else None
    machine = measurements.describe_machine(options.device, now=time.time(), quick=options.quick)
    results = list[Measurement]()
    try:
        if folder:
            files.prepare_folder(folder)
            write_results(folder, results, machine)  # replaces the results of an earlier bench
        for result in _run_benches(command, modules, options):
            options.log(_format_result(result))
            results.append(result)
            if folder:  # at once: a later bench may fail
                write_results(folder, results, machine)
    finally:
        files.remove(options.scratch)
    if folder:
        from bench import report  # matplotlib, which takes a second to import

        content = measurements.as_json(results, machine)
        for picture in report.bench_section(report.parse_bench(content, name="bench")).pictures():
            files.write_atomic(folder / f"{picture.name}.png", picture.png)
    if options.is_main:
        text = _results_json(results, machine) if arguments.json else measurements.format_markdown(results, machine)
        print(text)
    return int(ExitCode.PEER if any(isinstance(result, Row) and result.failed for result in results) else ExitCode.OK)


def raise_stopped(signum: int, frame: FrameType | None) -> NoReturn:
    """Handle a stop signal: end the current measurement and its processes."""
    ignore_stop_signals()
    what = f"stopped by {signal.Signals(signum).name}"
    raise Failure(what, fix="start it again; --output keeps each row as it is found", code=ExitCode.STOPPED)


def build_parser(command: BenchCommand, name: str, modules: Mapping[str, ModuleType]) -> TrainArgumentParser:
    """The parser of the command line after the benchmark's name."""
    descriptions = "\n".join(f"  {bench:<12} {text}" for bench, text in command.benches.items())
    parser = TrainArgumentParser(
        prog=f"{command.prog} {name or 'NAME'}",
        description=f"{command.description}\n{descriptions}",
        epilog=command.examples,
        arguments={
            "words": dict(nargs="*", default=[], metavar="section.key=value", help="settings of what is trained"),
            "--config": dict(metavar="FILE", help="what is trained, where a bench can take it"),
            "--pairs": dict(metavar="N", type=_positive_int, help="pairs of measurements (default: as a row asks)"),
            "--quick": dict(action="store_true", help="smallest sizes, to see that it works"),
            "--output": dict(metavar="DIR", help="keep bench.json, bench.md and plots there"),
            "--json": dict(action="store_true", help="print one JSON object instead of the table"),
            **({"--peers": PEERS_ARGUMENT} if command.compares else {}),
        },
    )
    add_launch_arguments(parser)
    for bench, module in modules.items():
        if hasattr(module, "add_arguments"):
            module.add_arguments(parser.add_argument_group(bench))
    return parser


def write_results(folder: Path, results: Sequence[Measurement], machine: Mapping[str, str]) -> None:
    """Write bench.json and bench.md."""
    files.write_atomic(folder / "bench.json", _results_json(results, machine).encode() + b"\n")
    files.write_atomic(folder / "bench.md", measurements.format_markdown(results, machine).encode())


def _results_json(results: Sequence[Measurement], machine: Mapping[str, str]) -> str:
    return json.dumps(measurements.as_json(results, machine), indent=1)


def _import_benches(command: BenchCommand, name: str) -> dict[str, ModuleType]:
    """Import the modules of the benchmarks that were named.

    Raises:
        Failure: USAGE, for a name that the command does not have.
    """
    names = [*command.benches] if command.compares and name == ALL else name.split(",") if name else []
    for bench in names:
        if not command.compares and bench in CHECKOUT_BENCHES:
            what = f"`{command.prog} {bench}` compares with other programs, whose scripts are not installed"
            fix = f"in a checkout of the project: .venv/bin/python -m bench {name}, or make bench"
            raise Failure(what, fix=fix, code=ExitCode.USAGE)
        if bench not in command.benches:
            close, listed = nearest_name(bench, command.choices()), f"use one of: {', '.join(command.choices())}"
            fix = f"write {close}; or {listed}" if close else listed
            raise Failure(f"`{command.prog} {bench}` is no bench", fix=fix, code=ExitCode.USAGE)
    return {bench: importlib.import_module(f"bench.{bench}") for bench in names}


def _run_benches(command: BenchCommand, modules: Mapping[str, Any], options: BenchOptions) -> Iterator[Measurement]:
    """Run each bench. If a measured process fails, that is a result too, so that the other benches run."""
    for name, module in modules.items():
        options.log(f"bench {name}")
        try:
            yield from module.run(options)
        except Failure as failure:
            if failure.code != ExitCode.PEER:
                raise
            yield measurements.failed_row(name, failure, Target(what=command.benches[name]))


def _format_result(result: Measurement) -> str:
    if isinstance(result, Series):
        return f"  {result.title}: {sum(map(len, result.lines.values()))} points"
    number, what, value, interval, _, target, reached = measurements.format_cells(result)
    return f"  {number:>3} {what}: {value}{f' ({interval})' if interval else ''}; target {target}: {reached}"


def _peers_folder(text: str) -> Path:
    """Raises Failure: NO_INPUT, if the folder does not exist."""
    folder = Path(text).absolute()
    if not folder.is_dir():
        raise Failure(
            "the scripts to be compared with are not there",
            found=f"no folder {text}",
            fix="give their folder: python -m bench NAME --peers DIR (default: bench/peers)",
            code=ExitCode.NO_INPUT,
        )
    return folder


# The default is a text, so that argparse checks it too: an installed package has no peers.
PEERS_ARGUMENT: Final = dict(
    metavar="DIR",
    type=_peers_folder,
    default=str(PEERS),
    help="the scripts to compare with (default: bench/peers)",
)


def _positive_int(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


if __name__ == "__main__":
    sys.exit(main())
