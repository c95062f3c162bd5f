"""`train export RUN --output DIR`: a trained model as a folder to hand on."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from entrypoint import say
from train import plugin
from train.commands.words import Parser
from train.files import refusals
from train.measuring import chosen
from train.record import progress

EXAMPLES: Final = """examples:
  train export runs/NAME --output model                              of a run the best checkpoint
  train export runs/NAME/checkpoints/step-00001200 --output model    this one
"""


def handle(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Write weights, description and card, and say where they are. The run is only read."""
    arguments = build_parser().parse_intermixed_args(argv)
    found = chosen.choose(arguments.checkpoint)
    config, notes = chosen.configured(found, arguments.config, arguments.words)
    plugin.look_beside(arguments.config, config.data.name)
    from train.using import export  # torch

    folder = Path(arguments.output).resolve()
    sizes = export.export(config, found, folder)
    for note in (*found.notes, *notes):
        say(f"note: {note}", sys.stderr)
    listed = ", ".join(f"{name} ({refusals.sized(size)})" for name, size in sizes.items())
    print(
        progress.rows(
            {"model": f"{config.model.name}, step {found.contents.step:,}", "folder": folder, "in it": listed}
        )
    )
    return 0


def build_parser() -> Parser:
    """The command line after `train export`."""
    parser = Parser(
        prog="train export",
        usage="train export RUN --output DIR [--config FILE] [section.key=value ...]",
        description="A trained model as a folder: model.safetensors, model.json, and a model card as README.md.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("checkpoint", metavar="RUN", help="a run's folder, or one checkpoints/step-N in it")
    parser.add_argument(
        "words", nargs="*", metavar="section.key=value", help="settings, as data.root= of arrays that lie elsewhere now"
    )
    parser.add_argument("--output", metavar="DIR", required=True, help="a new folder, or an empty one")
    parser.add_argument("--config", metavar="FILE", help="the training's file, for code of your own that it names")
    return parser
