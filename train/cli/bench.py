"""`train bench NAME...` measures the user's own machines, and writes a table, JSON and plots."""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Final, NoReturn

from entrypoint import ExitCode, Failure, add_launch_arguments, make_plan, parse_launch_options
from train import files
from train.bench import measurements
from train.bench.measurements import Measurement, Row, Series, Target
from train.bench.processes import BenchOptions
from train.cli.launch import TrainArgumentParser, handle_stop_signals, ignore_stop_signals
from train.config.load import parse_overrides
from train.run.folder import make_temporary_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchCommand:
    """A command that runs benchmarks: `train bench`, and in a checkout `python -m bench`.

    benches: what each benchmark measures. modules: the module of each, with `run(options) -> Iterator[Measurement]`
    and optionally `add_arguments(group)`; imported only when used, since some take seconds. names_in_all: those that
    `all` runs. add_arguments: adds arguments that all of its benchmarks take.
    """

    prog: str
    description: str
    examples: str
    benches: Mapping[str, str]
    modules: Mapping[str, str]
    names_in_all: Sequence[str] = ()
    add_arguments: Callable[[argparse.ArgumentParser], None] = lambda parser: None

    def choices(self) -> str:
        """The names that may be typed."""
        return ", ".join([*self.benches, *(["all"] if self.names_in_all else [])])


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
    modules={name: f"train.bench.{name}" for name in ("scaling", "comm", "sweep")},
)
# These compare with other programs, whose scripts are in a checkout only.
CHECKOUT_BENCHES: Final = ("step", "input", "start", "checkpoint", "all")


def handle(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run `train bench`."""
    names = argv[0].split(",") if argv else []
    if moved := [name for name in names if name in CHECKOUT_BENCHES]:
        what = f"`train bench {moved[0]}` compares with other programs, whose scripts are not installed"
        fix = f"in a checkout of the project: .venv/bin/python -m bench {argv[0]}, or make bench"
        raise Failure(what, fix=fix, code=ExitCode.USAGE)
    return run_command(TRAIN_BENCH, argv, environ)


def run_command(command: BenchCommand, argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Measure, print a table (or JSON with --json), and write files to --output."""
    name = argv[0] if argv and not argv[0].startswith("-") else ""
    modules = _import_benches(command, name)
    arguments = build_parser(command, name, modules).parse_intermixed_args(list(argv[1:] if name else argv))
    if not name:
        what, fix = f"`{command.prog}` needs a name", f"use one of: {command.choices()}"
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
        from train.report import page  # matplotlib, which takes a second to import

        content = measurements.as_json(results, machine)
        for picture in page.bench_section(page.parse_bench(content, name="bench")).pictures():
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
        },
    )
    command.add_arguments(parser)
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
    is_all = name == "all" and command.names_in_all
    names = command.names_in_all if is_all else name.split(",") if name else ()
    if unknown := [bench for bench in names if bench not in command.benches]:
        what, fix = f"`{command.prog} {unknown[0]}` is no bench", f"use one of: {command.choices()}"
        raise Failure(what, fix=fix, code=ExitCode.USAGE)
    return {bench: importlib.import_module(command.modules[bench]) for bench in names}


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


def _positive_int(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number
