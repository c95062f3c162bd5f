"""`train report RUN...`: runs and benches as a page to look at, Markdown and pictures."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from entrypoint import ExitCode, Failure, say
from train.commands.words import Parser

FOLDER: Final = "report"
EXAMPLES: Final = """examples:
  train report runs/NAME                    a page about one run, in runs/NAME/report
  train report runs/one runs/two runs/four  side by side, with speed-up and efficiency, in ./report
  train report bench/bench.json             the figures of `train bench --output bench`
"""


def handle(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Write the report and say where it is."""
    arguments = build_parser().parse_args(argv)
    if not arguments.runs:
        fix = "write `train report RUN`, the folder of a run, several of them, or a bench.json"
        raise Failure("`train report` needs a run", fix=fix, code=ExitCode.USAGE)
    from train.report import benches, contents, reading, writing  # matplotlib, which takes a second to import

    files = [word for word in arguments.runs if word.endswith(".json") and not os.path.isdir(word)]
    found = [benches.read(Path(file)) for file in files]
    runs, missing = reading.read_all([word for word in arguments.runs if word not in files])
    made = f"Made {contents.when(time.time())} by train report."
    document = contents.document(runs, found, anyway=arguments.compare_anyway, made=made, missing=missing)
    alone = runs[0].folder if len(runs) == 1 and not found and not missing else Path()
    folder = Path(arguments.output) if arguments.output else alone / FOLDER
    page, *others = writing.write(document, folder, own=not arguments.output)
    for caution in document.cautions():
        say(f"caution: {caution}", sys.stdout)
    say(f"report         {page}\nbeside it      {', '.join(path.name for path in others)}", sys.stdout)
    return 0


def build_parser() -> Parser:
    """The command line after `train report`."""
    parser = Parser(
        prog="train report",
        description="Runs, finished or not, as one HTML page that holds its pictures, as Markdown, and as PNG files.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="*", metavar="RUN", help="a run's folder, or the JSON of `train bench`")
    parser.add_argument("--output", metavar="DIR", help="where to write (default: RUN/report; of several: ./report)")
    parser.add_argument(
        "--compare-anyway",
        action="store_true",
        help="speed-up also of runs that did not compute the same; the picture says so",
    )
    return parser
