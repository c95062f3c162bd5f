"""`train report RUN...` writes a page about runs and benchmark results.

The report is one HTML page, the same as Markdown, and PNG files.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from entrypoint import ExitCode, Failure, print_message, shell_command
from train.cli.launch import TrainArgumentParser
from train.logging.progress import format_rows

REPORT_FOLDER: Final = "report"
EXAMPLES: Final = """examples:
  train report runs/NAME                    a page about one run, in runs/NAME/report
  train report runs/one runs/two runs/four  side by side, with speed-up and efficiency, in ./report
  train report runs                         all runs in this folder, side by side
  train report bench/bench.json             the figures of `train bench --output bench`
"""


def handle(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Write the report and print its path."""
    arguments = build_parser().parse_args(argv)
    if not arguments.runs:
        fix = f"write `{shell_command('train report RUN')}`, the folder of a run, several of them, or a bench.json"
        raise Failure("`train report` needs a run", fix=fix, code=ExitCode.USAGE)
    from train.report import read
    from train.report.page import (  # matplotlib, which takes a second to import
        build_report,
        format_time,
        write_report,
    )

    files = [word for word in arguments.runs if word.endswith(".json") and not os.path.isdir(word)]
    benches = []
    if files:
        from bench.report import bench_section, read_bench

        results = [read_bench(Path(file)) for file in files]
        benches = [(bench.name, bench_section(bench, number)) for number, bench in enumerate(results, 1)]
    runs, missing = read.load_runs([word for word in arguments.runs if word not in files])
    byline = f"Made {format_time(time.time())} by train report."
    document = build_report(runs, benches, anyway=arguments.compare_anyway, byline=byline, missing=missing)
    run_folder = runs[0].folder if len(runs) == 1 and not benches and not missing else Path()
    folder = Path(arguments.output) if arguments.output else run_folder / REPORT_FOLDER
    page, *others = write_report(document, folder, own=not arguments.output)
    for caution in document.cautions():
        print_message(f"caution: {caution}", sys.stdout)
    rows = {"report": page, "beside it": ", ".join(path.name for path in others)}
    print_message(format_rows(rows), sys.stdout)
    return 0


def build_parser() -> TrainArgumentParser:
    """The command line after `train report`."""
    return TrainArgumentParser(
        prog="train report",
        description="Runs, finished or not, as one HTML page that holds its pictures, as Markdown, and as PNG files.",
        epilog=EXAMPLES,
        arguments={
            "runs": dict(nargs="*", metavar="RUN", help="a run's folder, a folder of runs, or `train bench`'s JSON"),
            "--output": dict(metavar="DIR", help="where to write (default: RUN/report; of several: ./report)"),
            "--compare-anyway": dict(
                action="store_true", help="speed-up also of runs that did not compute the same; the picture says so"
            ),
        },
    )
