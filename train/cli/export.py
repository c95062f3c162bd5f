"""`train export RUN --output DIR` writes a trained model to a folder that can be shared."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from entrypoint import ExitCode, Failure, print_message
from train import files, plugin
from train.cli.launch import TrainArgumentParser
from train.data.class_folders import describe_text_order
from train.inference import checkpoints
from train.logging import progress

EXAMPLES: Final = """examples:
  train export runs/NAME --output model                              of a run the best checkpoint
  train export runs/NAME/checkpoints/step-00001200 --output model    this one
  train export runs/NAME --output model --format torch,onnx          also model.pt2 and model.onnx
"""
WEIGHTS_FORMAT: Final = "safetensors"  # always written


def handle(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Write weights, model.json and model card, and print their names. The run is only read."""
    arguments = build_parser().parse_intermixed_args(argv)
    formats = parse_formats(arguments.format)
    checkpoint = checkpoints.choose_checkpoint(arguments.checkpoint)
    config, notes = checkpoints.load_config(checkpoint, arguments.config, arguments.words)
    plugin.add_config_folder_to_path(arguments.config, config.data.name, config.model.name)
    from train.inference import export  # torch

    folder = Path(arguments.output).resolve()
    sizes = export.export_model(config, checkpoint, folder, formats)
    facts = checkpoints.training_dataset_facts(checkpoint)
    notes += tuple(filter(None, [describe_text_order(facts.classes)])) if facts else ()
    for line in checkpoints.messages_about(checkpoint, notes):
        print_message(line, sys.stderr)
    file_list = ", ".join(f"{name} ({files.format_bytes(size)})" for name, size in sizes.items())
    print(
        progress.format_rows(
            {"model": f"{config.model.name}, step {checkpoint.contents.step:,}", "folder": folder, "in it": file_list}
        )
    )
    return 0


def parse_formats(words: Sequence[str]) -> tuple[str, ...]:
    """The formats to write beside the weights, each once. `words`: names, with commas between them.

    Raises:
        Failure: USAGE for an unknown name.
    """
    from train.inference import file_formats  # torch

    names = [name for word in words for name in word.split(",")]
    available = (WEIGHTS_FORMAT, *file_formats.FORMATS)
    if unknown := [name for name in names if name not in available]:
        raise Failure(
            f"--format has no {unknown[0]!r}",
            found=f"--format {','.join(names)}",
            expected=f"one or more of {', '.join(available)}",
            fix=f"write --format {','.join(file_formats.FORMATS)}",
            code=ExitCode.USAGE,
        )
    return tuple(dict.fromkeys(name for name in names if name != WEIGHTS_FORMAT))


def build_parser() -> TrainArgumentParser:
    """The command line after `train export`."""
    return TrainArgumentParser(
        prog="train export",
        usage="train export RUN --output DIR [--format NAME,...] [--config FILE] [section.key=value ...]",
        description="A trained model as a folder: model.safetensors, model.json, and a model card as README.md. "
        "--format adds model.pt2 (torch.export) and model.onnx; their outputs are compared with the model's.",
        epilog=EXAMPLES,
        arguments={
            "checkpoint": dict(metavar="RUN", help="a run's folder, or one checkpoints/step-N in it"),
            "words": dict(
                nargs="*", metavar="section.key=value", help="settings, as data.root= of arrays that lie elsewhere now"
            ),
            "--output": dict(metavar="DIR", required=True, help="a new folder, or an empty one"),
            "--format": dict(
                metavar="NAME,...",
                action="append",
                default=[],
                help="files to write: safetensors (always written), torch (model.pt2), onnx (model.onnx)",
            ),
            "--config": dict(metavar="FILE", help="the training's file, for code of your own that it names"),
        },
    )
