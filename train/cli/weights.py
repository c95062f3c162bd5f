"""`train weights fetch NAME` brings published weights of torchvision or timm into a folder, and compares their hash."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from entrypoint import ExitCode, Failure, join_lines, print_message, shell_command
from train.cli.launch import TrainArgumentParser
from train.config import schema
from train.config.models import WEIGHTS_FOLDER
from train.data.download import StatusLine

EXAMPLES: Final = """examples:
  train weights fetch resnet50                      torchvision's default weights, into ./weights
  train weights fetch resnet50.IMAGENET1K_V1        these
  train weights fetch timm/resnet18.a1_in1k --to /data/weights
Then: train model.name=resnet50 model.weights=resnet50.IMAGENET1K_V2, or the path of the file.
"""


def handle(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run `train weights fetch`, and print the file, its record and how to use it."""
    arguments = build_parser().parse_args(argv)
    if arguments.mirror is not None and (expected := schema.KEYS["data.mirror"].violation(arguments.mirror)):
        raise Failure(
            "--mirror has a value that cannot be used", expected=expected, fix="correct it", code=ExitCode.USAGE
        )
    from train.models import fetch, pretrained  # torch

    folder, published = Path(arguments.to), pretrained.find_published(arguments.name)
    path = fetch.fetch_weights(published, folder, mirror=arguments.mirror, status=StatusLine(sys.stderr))
    record = published.record
    found_by_name = folder.resolve() == Path(WEIGHTS_FOLDER).resolve()
    setting = record.name if found_by_name else os.fspath(path)
    use = f"use     {shell_command('train', f'model.name={record.model}', f'model.weights={setting}')}"
    print_message(join_lines([f"weights {record}", f"in      {path}", use]), sys.stdout)
    return 0


def build_parser() -> TrainArgumentParser:
    """The command line after `train weights`."""
    return TrainArgumentParser(
        prog="train weights",
        usage="train weights fetch NAME [--to FOLDER] [--mirror ADDRESS]",
        description="Fetch published weights of torchvision or timm, compare their hash, and keep them as .safetensors "
        "with the normalization, crop and interpolation that they were trained for.",
        epilog=EXAMPLES,
        arguments={
            "command": dict(choices=["fetch"], metavar="fetch", help="the only command"),
            "name": dict(metavar="NAME", help="MODEL or MODEL.TAG (torchvision), timm/MODEL or timm/MODEL.TAG"),
            "--to": dict(metavar="FOLDER", default=WEIGHTS_FOLDER, help="the folder (default: weights)"),
            "--mirror": dict(metavar="ADDRESS", help="fetch from this folder instead of the published address"),
        },
    )
