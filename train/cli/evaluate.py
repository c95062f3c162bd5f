"""`train eval` chooses a checkpoint, starts ranks that evaluate it, and formats their report.

Into the run's folder, rank 0 writes a single file, and only with --report. With --per-image it writes a CSV table
where the user says.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from entrypoint import ExitCode, Failure, add_launch_arguments, make_plan, print_message, shell_command
from train import files
from train.cli import launch
from train.cli.launch import TrainArgumentParser, add_arguments
from train.data import download
from train.data.download import StatusLine
from train.inference import checkpoints, csv_table
from train.run.folder import make_temporary_folder

COMMAND: Final = "eval"
EXAMPLES: Final = f"""examples:
  train eval runs/NAME                              the best checkpoint of a run, on its validation images
  train eval runs/NAME/checkpoints/step-00001200    this checkpoint
  train eval runs/NAME data.root=/my/test --all     every image of a test set of its own
  train eval runs/NAME --split test                 the test split, which the training measured once at its end
  train eval runs/NAME --json > result.json         one JSON object, for programs
  train eval runs/NAME --per-image images.csv       label, prediction, confidence and loss of each image
  train eval runs/NAME --report                     for `train report`: diagrams, mistakes, the hardest images
  train eval runs/NAME --report --explain           and a heat map over each image
  train eval runs/NAME eval.threshold=auto          several labels, each with the threshold of its best F1
  train eval runs/NAME --device cpu --procs-per-node 2

Without --report nothing is written into the run.
Settings may change {", ".join(checkpoints.ALLOWED_SETTINGS)}.
Exit codes: 0 measured; 64 command line; 65 a damaged checkpoint, or data of other classes or another size; 66 no \
checkpoint, no data, or no validation image; 73 a file that cannot be written; \
75 stopped, without a result; 77 code that only the run names.
"""
# The messages after a request to stop: there is nothing to save.
STOP_MESSAGES: Final = ("the measurement ends without a result", "without a result")


def build_parser() -> TrainArgumentParser:
    """The command line after `train eval`."""
    parser = TrainArgumentParser(
        prog="train eval",
        usage="train eval RUN [--all | --split NAME] [--json] [--per-image FILE.csv] [--report [--explain]] "
        "[--config FILE] [options] [section.key=value ...]",
        description="Measure a checkpoint again, on any number of processes: accuracy, loss, macro F1, confusion.",
        epilog=EXAMPLES,
        formatter_class=help_formatter,
        arguments={
            "run": dict(nargs="?", metavar="RUN", help="a run's folder, or one checkpoints/step-N in it"),
            "words": dict(nargs="*", metavar="section.key=value", help="settings, as data.root=/other/place"),
        },
    )
    which = parser.add_mutually_exclusive_group()
    add_arguments(
        which,
        {
            "--all": dict(action="store_true", help="measure every image, not the validation images alone"),
            "--split": dict(
                metavar="NAME",
                choices=("validation", "test", "all"),
                default="validation",
                help="validation, test (the split that chose nothing) or all",
            ),
        },
    )
    add_arguments(
        parser,
        {
            "--json": dict(action="store_true", help="one JSON object instead of text"),
            csv_table.PER_IMAGE_OPTION: dict(
                metavar="FILE.csv", help="write label, prediction and loss (or error) of each image"
            ),
            "--report": dict(action="store_true", help="keep diagrams and images in the run, for train report"),
            "--explain": dict(
                action="store_true", help="with --report: heat maps of what speaks for a prediction (Grad-CAM)"
            ),
            "--config": dict(metavar="FILE", help="take data, launch, precision and your own code from it"),
            # What torch.distributed.launch passes to each process.
            "--local-rank --local_rank": dict(dest="local_rank", metavar="N", help=argparse.SUPPRESS),
        },
    )
    add_launch_arguments(parser)
    parser.set_defaults(
        version=False, time_limit=None, profile_lines=False, output=None, size=None, quality=None
    )  # attributes of other commands
    return parser


def help_formatter(prog: str) -> argparse.RawDescriptionHelpFormatter:
    """Each option and its meaning in one line."""
    columns = shutil.get_terminal_size((120, 24)).columns
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=32, width=min(120, columns))


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of `train eval`; `words` are those of any command.

    Raises Failure (USAGE).
    """
    arguments = build_parser().parse_intermixed_args(argv)
    arguments.words = [COMMAND, *([arguments.run] if arguments.run is not None else []), *arguments.words]
    return arguments


def launch_evaluation(arguments: argparse.Namespace, words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Start ranks that measure a checkpoint; they write nothing to the run's folder."""
    if arguments.explain and not arguments.report:
        fix = "add --report; or for pictures in a folder: " + shell_command("train predict RUN IMAGES --explain DIR")
        raise Failure("--explain adds heat maps to the images of --report", fix=fix, code=ExitCode.USAGE)
    target, overrides = checkpoints.split_arguments(words)
    checkpoint = checkpoints.choose_checkpoint(target)
    config, notes = checkpoints.load_config(checkpoint, arguments.config, overrides)
    plan = make_plan(environ, launch.launch_options(arguments, config, environ))
    plan = replace(plan, warnings=(*plan.warnings, *checkpoint.notes, *notes))
    per_image = None if arguments.per_image is None else Path(arguments.per_image).absolute()
    if per_image is not None and plan.world.rank == 0:  # on this machine, which writes it
        files.refuse_unusable_file(per_image, csv_table.PER_IMAGE_OPTION, csv_table.SUFFIX)
    if arguments.report:
        run_folder = checkpoints.run_folder_of(checkpoint.path)
        if plan.world.rank == 0:
            files.prepare_folder(run_folder)
    if config.data.download:
        download.ensure_downloaded(config.data, StatusLine(sys.stderr))
    folder, split = make_temporary_folder(environ), "all" if arguments.all else arguments.split
    config_words = ["--config", arguments.config] if arguments.config else []
    config_words += ["--json"] if arguments.json else []
    evaluation_words = [
        "--evaluate",
        str(checkpoint.path),
        "--scratch",
        str(folder),
        *(["--split", split] if split != "validation" else []),
        *(["--report"] if arguments.report else []),
        *(["--explain"] if arguments.explain else []),
        *([csv_table.PER_IMAGE_OPTION, str(per_image)] if per_image is not None else []),
    ]
    code = int(ExitCode.OK)
    try:
        words = [*evaluation_words, *config_words, *overrides]
        code = launch.start_ranks(plan, words, environ, folder=folder, config=config, promise=STOP_MESSAGES)
    finally:
        if code in (ExitCode.OK, ExitCode.STOPPED):  # otherwise the error names the logs
            files.remove(folder)
    if arguments.report and code == ExitCode.OK and plan.world.rank == 0:
        print_message(f"next: {shell_command('train report', run_folder)}", sys.stderr)
    return code
