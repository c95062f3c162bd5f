"""`train predict RUN IMAGES...` prints the predicted class and probability of each image file.

Everything that can be checked without torch is checked before torch is imported.
"""

from __future__ import annotations

import argparse
import codecs
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from entrypoint import (
    DEVICE_VARIABLE,
    ExitCode,
    Failure,
    find_device,
    parse_launch_options,
    print_message,
    shell_command,
)
from train import plugin
from train.cli import launch
from train.cli.launch import TrainArgumentParser
from train.config import environment, load, schema
from train.config.models import EXPORT_FILE
from train.data import class_folders
from train.files import did_you_mean, refuse_unusable_file, write_named_file
from train.inference import checkpoints, csv_table
from train.names import other_form_fix

if TYPE_CHECKING:
    from train.inference.predict import InferenceModel
    from train.tasks.base import Prediction


PLACEHOLDER_FIX: Final = "write your own image files or folders in the place of IMAGES"
SETTING_PATTERN: Final = re.compile(r"[a-z_]+(\.[a-z_]+)+=.*", re.DOTALL)


def split_images_and_settings(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """(images, settings): `section.key=value` is a setting, unless a file has that name."""
    settings = [word for word in words if SETTING_PATTERN.fullmatch(word) and not os.path.lexists(word)]
    return [word for word in words if word not in settings], settings


def find_images(words: Sequence[str], unread: Counter[str] | None = None) -> list[Path]:
    """All image files, in the order of the words; those of a folder and its subfolders are sorted.

    A named file is used whatever its suffix; of a folder only files with an image's suffix. unread:
    counts the other files by suffix.

    Raises:
        Failure: USAGE without words; NO_INPUT for a missing path, and for a folder without images.
    """
    if not words:
        raise Failure("there is no image to look at", fix="name image files or folders", code=ExitCode.USAGE)
    return [path for word in words for path in _images_at(Path(word), unread)]


def _images_at(path: Path, unread: Counter[str] | None) -> list[Path]:
    if not os.path.exists(path):
        fix = f"{other_form_fix(path) or did_you_mean(path)}correct the path (in a container: mount the folder)"
        raise _missing_input(f"{path} does not exist", PLACEHOLDER_FIX if str(path) == "IMAGES" else fix)
    if not os.path.isdir(path):
        return [path]
    try:
        os.scandir(path).close()  # os.walk would skip a folder that cannot be listed
    except OSError as error:
        raise _missing_input(f"{path} cannot be read: {error.strerror}", "let this user read it") from error
    unread = Counter() if unread is None else unread
    images = list(class_folders.image_files(path, unread))
    if not images:
        fix = f"name a folder with images ({' '.join(class_folders.IMAGE_SUFFIXES)}), or the files themselves"
        unread_files = class_folders.describe_unread_files(unread)
        is_convertible = any(suffix in class_folders.UNSUPPORTED_IMAGE_SUFFIXES for suffix in unread or ())
        raise _missing_input(
            f"{path} holds no image", class_folders.CONVERT_FIX if is_convertible else fix, unread_files
        )
    return images


def _missing_input(what: str, fix: str, actual: str | None = None) -> Failure:
    return Failure(what, found=actual, fix=fix, code=ExitCode.NO_INPUT)


EXAMPLES: Final = """examples:
  train predict runs/NAME image.jpg                    path, class and probability, with tabs between
  train predict runs/NAME photos/ --top 3              all images in a folder and below it; three classes each
  train predict model photos/                          an exported model: train export
  train predict runs/NAME photos/ --json > out.jsonl   one JSON object for each image
  train predict runs/NAME photos/ --csv out.csv        a table for a spreadsheet, written when all images are done
  train predict runs/NAME photos/ --explain heat       and a picture of each, which shows what speaks for the prediction
"""


def handle(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print predictions on stdout, or write them to the table of --csv; name unreadable images on stderr."""
    arguments = build_parser().parse_intermixed_args(argv)
    words, settings = split_images_and_settings(arguments.images)
    _refuse_swapped_words(arguments.checkpoint, words)
    top, table = _parse_top(arguments.top), _table_file(arguments)
    device = find_device(environ, parse_launch_options(arguments, environ).device)
    unread = Counter[str]()
    if os.path.exists(os.path.join(arguments.checkpoint, EXPORT_FILE)):
        model, files = _load_from_export(arguments, words, settings, device, unread)
    else:
        model, files = _load_from_run(arguments, words, settings, device, launch.process_environment(environ), unread)
    from train.data import decode
    from train.inference import predict

    for warning in decode.describe_facts(decode.sample_facts(files.__getitem__, len(files))):
        print_message(f"WARNING: {warning}", sys.stderr)
    if model.warning:
        print_message(f"WARNING: {model.warning}", sys.stderr)
    if note := class_folders.describe_text_order(model.spec.classes):
        print_message(f"note: {note}", sys.stderr)
    explain = None if arguments.explain is None else predict.explain_into(model, Path(arguments.explain))
    predictions = predict.predict_images(
        model, files, top, partial(print_message, stream=sys.stderr), explain, all_classes=arguments.all_classes
    )
    try:
        if table is not None:
            _write_table(predictions, table)
            return int(ExitCode.OK)
        for prediction in predictions:
            _print_prediction(prediction, as_json=arguments.json)
            if getattr(sys.stdout, "lost", 0):
                break
    finally:
        if note := class_folders.describe_unread_files(unread):
            print_message(f"note: {note}", sys.stderr)
    return int(ExitCode.OK)


def _refuse_swapped_words(checkpoint: str, images: Sequence[str]) -> None:
    """Refuse `train predict IMAGES RUN`, with the words in their order. Raises Failure (USAGE)."""

    def holds_model(folder: str) -> bool:
        return any(os.path.exists(os.path.join(folder, name)) for name in (EXPORT_FILE, "checkpoints"))

    run = next((word for word in images if holds_model(word)), None)
    if run is not None and os.path.exists(checkpoint) and not holds_model(checkpoint):
        others = [checkpoint, *(word for word in images if word != run)]
        fix = f"write the run first: {shell_command('train predict', run, *others)}"
        raise Failure(f"{run} is a trained model, and no image", fix=fix, code=ExitCode.USAGE)


def _table_file(arguments: argparse.Namespace) -> Path | None:
    """The file of --csv, or None.

    Raises:
        Failure: USAGE for options that do not go together; as `files.refuse_unusable_file`.
    """
    if arguments.all_classes and arguments.csv is None:
        fix = f"add {csv_table.PREDICT_OPTION} FILE.csv, or write --top K --json"
        raise Failure("--all-classes adds columns to a table", fix=fix, code=ExitCode.USAGE)
    if arguments.csv is None:
        return None
    if arguments.json:
        what = f"--json and {csv_table.PREDICT_OPTION} are two forms of the same"
        raise Failure(what, fix="leave one of them out", code=ExitCode.USAGE)
    refuse_unusable_file(Path(arguments.csv), csv_table.PREDICT_OPTION, csv_table.SUFFIX)
    return Path(arguments.csv)


def _write_table(predictions: Iterator[Prediction], file: Path) -> None:
    """Write the table when all images are done. Broken images are left out.

    Raises:
        Failure: DATA after the table is written, if there were broken images; as `files.write_named_file`.
    """
    from train.inference import predict

    done: list[Prediction] = []
    failure: Failure | None = None
    try:
        done.extend(predictions)
    except Failure as error:
        if error.code != ExitCode.DATA:
            raise
        failure = error
    table = predict.encode_table(done)
    write_named_file(file, table, csv_table.PREDICT_OPTION, csv_table.SUFFIX)
    print_message(f"table          {len(done):,} rows in {file}", sys.stderr)
    if failure is not None:
        raise failure


def _print_prediction(prediction: Prediction, *, as_json: bool) -> None:
    """Print a line.

    Characters that the stream's encoding lacks are escaped, or the line would be lost. The newline
    is in the same write, because a stop signal may arrive between two writes.
    """
    encoding = sys.stdout.encoding or "ascii"
    if as_json:
        line = prediction.as_json(ascii_=codecs.lookup(encoding).name != "utf-8")
    else:
        line = prediction.as_text().encode(encoding, "backslashreplace").decode(encoding)
    sys.stdout.write(f"{line}\n")


def _load_from_run(
    arguments: argparse.Namespace,
    words: Sequence[str],
    settings: Sequence[str],
    device: str,
    environ: MutableMapping[str, str],
    unread: Counter[str],
) -> tuple[InferenceModel, list[Path]]:
    """The model of a checkpoint, and the images; checks that need no torch come first."""
    checkpoint = checkpoints.choose_checkpoint(arguments.checkpoint)
    config, notes = checkpoints.load_config(checkpoint, arguments.config, settings)
    files = find_images(words, unread)
    plugin.add_config_folder_to_path(arguments.config, config.data.name, config.model.name)
    environment.remove_conflicting_variables(environ, download=False)
    from train.inference import predict  # torch

    environ[DEVICE_VARIABLE] = device
    model = predict.prepare_from_checkpoint(config, checkpoint, environ, len(files))
    for line in checkpoints.messages_about(checkpoint, notes):
        print_message(line, sys.stderr)
    return model, files


def _load_from_export(
    arguments: argparse.Namespace, words: Sequence[str], settings: Sequence[str], device: str, unread: Counter[str]
) -> tuple[InferenceModel, list[Path]]:
    """The model of an exported folder, whose only setting is eval.batch_size, and the images."""
    files = find_images(words, unread)
    from train.inference import predict  # torch

    folder = Path(arguments.checkpoint)
    batch_settings = [word for word in settings if word.startswith("eval.batch_size=")]
    factory = _load_custom_factory(folder, arguments.config, [word for word in settings if word not in batch_settings])
    batch_size = load.load_config(None, batch_settings).eval.batch_size
    return predict.prepare_from_export(folder, device, len(files), factory, batch_size), files


def _load_custom_factory(folder: Path, config: str | None, settings: Sequence[str]) -> Callable[..., Any] | None:
    """The user's own factory of the exported model, if it has one; the user names it as for a run.

    Raises:
        Failure: USAGE for other settings or another model; SECURITY as
            `plugin.refuse_recorded_factory`; and as `plugin.load_factory`.
    """
    from train.inference import export

    exported = export.read_model_config(folder)
    is_custom = schema.is_factory(exported.name)
    document = load.YamlDocument(value={"model": {"name": exported.name, "args": exported.args}}, lines={})
    named = load.load_config(config, settings) if config else load.build_config(document, str(folder), settings)
    other_settings = [word for word in settings if not word.startswith(("model.name=", "model.args"))]
    if other_settings or ((config or settings) and not is_custom) or replace(named.model, weights=None) != exported:
        raise Failure(
            "an exported model has no settings but eval.batch_size",
            found=" ".join([*settings, *(["--config", config] if config else [])]),
            expected=f"none, or what it is: {exported.name} {json.dumps(exported.args):.200}",
            fix="leave them out, or name the run",
            code=ExitCode.USAGE,
        )
    if not is_custom:
        return None
    given_keys = load.overridden_keys(settings, ("model.name",))
    plugin.refuse_recorded_factory(
        {"model.name": exported.name}, folder, config=config, typed=given_keys, args=exported.args
    )
    plugin.add_config_folder_to_path(config, exported.name)
    return plugin.load_factory(exported.name, "model.name")


def build_parser() -> TrainArgumentParser:
    """The command line after `train predict`."""
    parser = TrainArgumentParser(
        prog="train predict",
        usage="train predict RUN IMAGES... [--top K] [--json | --csv FILE [--all-classes]] "
        "[--explain DIR] [--device auto|cpu|cuda] [--config FILE] [section.key=value ...]",
        description="Class and probability of image files, as the evaluation of the training would have read them.",
        epilog=EXAMPLES,
        arguments={
            "checkpoint": dict(
                metavar="RUN", help="a run's folder, one checkpoints/step-N in it, or a folder of train export"
            ),
            "images": dict(nargs="*", metavar="IMAGES", help="image files, or folders of them"),
            "--top": dict(metavar="K", default="1", help="so many classes for each image (default: 1)"),
            "--json": dict(action="store_true", help="one JSON object for each image"),
            csv_table.PREDICT_OPTION: dict(metavar="FILE.csv", help="a table in this file, instead of lines"),
            "--all-classes": dict(action="store_true", help="with --csv: a column for each class's probability"),
            "--explain": dict(
                metavar="DIR", help="write each image with a heat map of what speaks for the prediction (Grad-CAM)"
            ),
            "--device": dict(metavar="auto|cpu|cuda", help="where to compute (default: a GPU if there is one)"),
            "--config": dict(metavar="FILE", help="the training's file, for code of your own that it names"),
        },
    )
    # One process predicts: the other launch options do not exist here.
    parser.set_defaults(procs_per_node=None, nodes=None, node_rank=None, master_addr=None, master_port=None)
    return parser


def _parse_top(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0:
        return int(text)
    raise Failure("--top takes a whole number from 1", found=f"--top {text}", fix="write --top 5", code=ExitCode.USAGE)
