"""`train bench NAME...` runs benchmarks against their peers and writes a table, JSON and plots."""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Final, NoReturn

from entrypoint import ExitCode, Failure, add_launch_arguments, make_plan, parse_launch_options
from train import files
from train.bench import machine, output, rows
from train.bench.options import Options, find_peers
from train.bench.rows import Found, Row, Series
from train.cli.launch import TrainArgumentParser, handle_stop_signals, ignore_stop_signals
from train.config.load import parse_overrides
from train.run.folder import make_temporary_folder

# Each is a module of train.bench with `run(options) -> Iterator[Found]` and, optionally,
# `arguments(parser)`. Modules that take seconds to import are imported in `run`.
BENCHES: Final[Mapping[str, str]] = {
    "step": "time of a step, and images/s, against scripts that do the same by hand",
    "input": "images/s of the input pipeline, and what a step asks of the file system",
    "start": "from the command to the first step",
    "checkpoint": "what a checkpoint costs the training",
    "scaling": "1, 2, 4, ... processes, strong and weak",
    "comm": "all-reduce, broadcast and gather by size, under any launcher",
    "sweep": "micro batch, workers, precision, CPUs: which setting is best",
}
BENCHES_IN_ALL: Final = ("step", "input", "start", "checkpoint", "scaling", "comm")
EXAMPLES: Final = """examples:
  train bench step                          rows 1, 2, 3, 4, 6, 10 and 13; what needs a GPU says so without one
  train bench all --output bench            everything but the sweep; bench.json, bench.md and plots in bench/
  train bench sweep --config cfg.yaml       the best setting for your model and data on this machine
  train bench step --quick                  a minute, to see that it works: the values mean nothing
"""


def handle(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Measure, print a table (or JSON with --json), and write files to --output."""
    name = argv[0] if argv and not argv[0].startswith("-") else ""
    names, modules = _import_benches(name)
    arguments = build_parser(name, modules).parse_intermixed_args(list(argv[1:] if name else argv))
    if not name:
        what, fix = "`train bench` needs a name", f"use one of: {', '.join(BENCHES)}, all"
        raise Failure(what, fix=fix, code=ExitCode.USAGE)
    handle_stop_signals(raise_stopped)
    options = parse_options(arguments, environ)
    folder = Path(arguments.output) if arguments.output and options.first else None
    facts, results = machine.facts(options.device, now=time.time(), quick=options.quick), list[Found]()
    try:
        if folder:
            files.prepare_folder(folder)
            write_results(folder, results, facts)  # replaces the results of an earlier bench
        for result in _run_benches(names, modules, options):
            results.append(result)
            if folder:  # at once: a later bench may fail
                write_results(folder, results, facts)
    finally:
        files.remove(options.scratch)
    if folder:
        write_plots(folder, results, facts)
    if options.first:
        print(_results_json(results, facts) if arguments.json else output.markdown(results, facts))
    return int(ExitCode.PEER if any(isinstance(result, Row) and result.failed for result in results) else ExitCode.OK)


def raise_stopped(signum: int, frame: FrameType | None) -> NoReturn:
    """Handle a stop signal: end the current measurement and its processes."""
    ignore_stop_signals()
    what = f"stopped by {signal.Signals(signum).name}"
    raise Failure(what, fix="start it again; --output keeps each row as it is found", code=ExitCode.STOPPED)


def build_parser(name: str, modules: Sequence[ModuleType]) -> TrainArgumentParser:
    """The command line after `train bench NAME`."""
    descriptions = "\n".join(f"  {module:<12} {text}" for module, text in BENCHES.items())
    parser = TrainArgumentParser(
        prog=f"train bench {name or 'NAME'}",
        description="Measure, and compare with other programs that do the same. "
        f"NAME is all, or some (step,comm) of:\n{descriptions}",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("words", nargs="*", default=[], metavar="section.key=value", help="settings of what is trained")
    parser.add_argument("--config", metavar="FILE", help="what is trained, where a bench can take it")
    parser.add_argument(
        "--pairs", metavar="N", type=_positive_int, help="pairs of measurements (default: as a row asks)"
    )
    parser.add_argument("--quick", action="store_true", help="smallest sizes, to see that it works")
    parser.add_argument("--output", metavar="DIR", help="keep bench.json, bench.md and plots there")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--peers", metavar="DIR", help="the scripts to be compared with (default: the project's)")
    add_launch_arguments(parser)
    for module in modules:
        if hasattr(module, "arguments"):
            module.arguments(parser.add_argument_group(module.__name__.rpartition(".")[2]))
    return parser


def parse_options(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Options:
    """Turn the command line into options."""
    parse_overrides(arguments.words)
    launch, peers = parse_launch_options(arguments, environ), find_peers(arguments.peers)
    plan = make_plan(environ, launch)
    return Options(
        device=plan.device,
        first=plan.world.rank == 0,
        launch=launch,
        scratch=make_temporary_folder(environ),
        peers=peers,
        environ=environ,
        tell=_log_line,
        pairs=arguments.pairs,
        quick=arguments.quick,
        config=arguments.config,
        overrides=tuple(arguments.words),
        own=arguments,
    )


def write_results(folder: Path, results: Sequence[Found], facts: Mapping[str, str]) -> None:
    """Write bench.json and bench.md."""
    files.write_atomic(folder / "bench.json", _results_json(results, facts).encode() + b"\n")
    files.write_atomic(folder / "bench.md", output.markdown(results, facts).encode())


def write_plots(folder: Path, results: Sequence[Found], facts: Mapping[str, str]) -> None:
    """Write the pictures that `train report` draws of the results."""
    from train.report import page  # matplotlib, which takes a second to import

    for picture in page.bench_pictures(page.parse_bench(output.as_json(results, facts), name="bench")):
        files.write_atomic(folder / f"{picture.name}.png", picture.png)


def _results_json(results: Sequence[Found], facts: Mapping[str, str]) -> str:
    return json.dumps(output.as_json(results, facts), indent=1)


def _import_benches(name: str) -> tuple[Sequence[str], list[ModuleType]]:
    names = BENCHES_IN_ALL if name == "all" else tuple(name.split(",")) if name else ()
    return names, [_import_bench(bench) for bench in names]


def _import_bench(name: str) -> ModuleType:
    if name not in BENCHES:
        what, fix = f"`train bench {name}` is no bench", f"use one of: {', '.join(BENCHES)}, all"
        raise Failure(what, fix=fix, code=ExitCode.USAGE)
    return importlib.import_module(f"train.bench.{name}")


def _run_benches(names: Sequence[str], modules: Sequence[Any], options: Options) -> Iterator[Found]:
    """Run each bench, and log each result as soon as it is measured."""
    for name, module in zip(names, modules, strict=True):
        options.tell(f"bench {name}")
        for result in _run_bench(name, module, options):
            options.tell(_format_result(result))
            yield result


def _run_bench(name: str, module: Any, options: Options) -> Iterator[Found]:
    """Run one bench.

    If a measured process fails, yield that as a result, so that the other benches run.
    """
    try:
        yield from module.run(options)
    except Failure as failure:
        if failure.code != ExitCode.PEER:
            raise
        yield rows.spoiled(name, failure, BENCHES[name])


def _format_result(result: Row | Series) -> str:
    if isinstance(result, Series):
        return f"  {result.title}: {sum(map(len, result.lines.values()))} points"
    number, what, value, interval, _, target, reached = output.cells(result)
    return f"  {number:>3} {what}: {value}{f' ({interval})' if interval else ''}; target {target}: {reached}"


def _log_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _positive_int(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number
