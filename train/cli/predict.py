"""`train predict RUN IMAGES...` prints the predicted class and probability of each image file.

All that can be refused without torch is refused before torch is imported.
"""

from __future__ import annotations

import argparse
import codecs
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from entrypoint import ExitCode, Failure, print_message
from train import plugin
from train.cli.launch import TrainArgumentParser
from train.config import environment, load, schema
from train.data import class_folders
from train.inference import checkpoints

if TYPE_CHECKING:
    from train.inference.predict import InferenceModel
    from train.inference.prediction import Prediction


SETTING_PATTERN: Final = re.compile(r"[a-z_]+(\.[a-z_]+)+=.*", re.DOTALL)


def split_images_and_settings(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """(images, settings): `section.key=value` is a setting, unless a file is called so."""
    settings = [word for word in words if SETTING_PATTERN.fullmatch(word) and not os.path.lexists(word)]
    return [word for word in words if word not in settings], settings


def find_images(words: Sequence[str], unread: Counter[str] | None = None) -> list[Path]:
    """All image files, in the order of the words; a folder's in sorted order, with those of folders in it.

    A file that is named is taken whatever its name ends in; in folders, those that end as images do. unread: counts
    the others by ending.

    Raises:
        Failure: USAGE without any word; NO_INPUT for what is not there, and for a folder without an image.
    """
    if not words:
        raise Failure("there is no image to look at", fix="name image files or folders", code=ExitCode.USAGE)
    return [path for word in words for path in _images_at(Path(word), unread)]


def _images_at(path: Path, unread: Counter[str] | None) -> list[Path]:
    if not os.path.exists(path):
        raise _missing_input(f"{path} does not exist", "correct the path (in a container: mount the folder)")
    if not os.path.isdir(path):
        return [path]
    _refuse_unreadable_folder(path)
    found = list(class_folders.image_files(path, unread))
    if not found:
        fix = f"name a folder with images ({' '.join(class_folders.IMAGE_SUFFIXES)}), or the files themselves"
        raise _missing_input(f"{path} holds no image", fix)
    return found


def _refuse_unreadable_folder(folder: Path) -> None:
    """Python's walk would pass over a folder that it cannot list."""
    try:
        os.scandir(folder).close()
    except OSError as error:
        raise _missing_input(f"{folder} cannot be read: {error.strerror}", "let this user read it") from error


def _missing_input(what: str, fix: str) -> Failure:
    return Failure(what, fix=fix, code=ExitCode.NO_INPUT)


EXPORT_FILE: Final = "model.json"  # what makes a folder an export: see `train.inference.export`
DEVICE_CHOICES: Final = ("auto", "cpu", "cuda")
EXAMPLES: Final = """examples:
  train predict runs/NAME image.jpg                    path, class and probability, with tabs between
  train predict runs/NAME photos/ --top 3              all images in a folder and below it; three classes each
  train predict model photos/                          a model that was handed on: train export
  train predict runs/NAME photos/ --json > out.jsonl   one JSON object for each image
"""


def handle(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Say on stdout what each image shows, on stderr which cannot be read. Nothing is written."""
    arguments = build_parser().parse_intermixed_args(argv)
    words, settings = split_images_and_settings(arguments.images)
    top, device = _parse_top(arguments.top), _parse_device(arguments.device, environ)
    unread = Counter[str]()
    if os.path.exists(os.path.join(arguments.checkpoint, EXPORT_FILE)):
        ready, files = _load_from_export(arguments, words, settings, device, unread)
    else:
        ready, files = _load_from_run(arguments, words, settings, device, _process_environ(environ), unread)
    from train.data import decode
    from train.inference import predict

    for warning in decode.gray_level_warnings(decode.highest_values(files)):
        print_message(f"WARNING: {warning}", sys.stderr)
    if ready.doubt:
        print_message(f"WARNING: {ready.doubt}", sys.stderr)
    try:
        for one in predict.predict_images(ready, files, top, lambda text: print(text, file=sys.stderr)):
            _print_prediction(one, as_json=arguments.json)
            if _count_lost_writes():
                break
    finally:
        if note := class_folders.describe_unread_files(unread):
            print_message(f"note: {note}", sys.stderr)
    return _finish_stdout()


def _print_prediction(one: Prediction, *, as_json: bool) -> None:
    """A line, in letters that the stream has: one that it cannot take would be lost.

    In one piece with its end: a request to stop may come between two.
    """
    encoding = sys.stdout.encoding or "ascii"
    if as_json:
        line = one.as_json(ascii_=codecs.lookup(encoding).name != "utf-8")
    else:
        line = one.as_text().encode(encoding, "backslashreplace").decode(encoding)
    sys.stdout.write(f"{line}\n")


def _count_lost_writes() -> int:
    """How many writes stdout has refused: our front door lets none of them end a command."""
    return int(getattr(sys.stdout, "lost", 0))


def _finish_stdout() -> int:
    """OK, also where a pipe's reader wanted no more (`| head`); its end now leads to /dev/null.

    Raises:
        Failure: IO, where lines are missing, as on a full disk.
    """
    sys.stdout.flush()
    if _count_lost_writes() and not os.path.samestat(os.fstat(1), os.stat(os.devnull)):
        what, fix = "the lines could not all be written to stdout", "free space on that disk, and start again"
        raise Failure(what, fix=fix, code=ExitCode.IO)
    return int(ExitCode.OK)


def _load_from_run(
    arguments: argparse.Namespace,
    words: Sequence[str],
    settings: Sequence[str],
    device: str,
    environ: MutableMapping[str, str],
    unread: Counter[str],
) -> tuple[InferenceModel, list[Path]]:
    """The network of a checkpoint, and the images; all that can be refused without torch is refused first."""
    found = checkpoints.choose_checkpoint(arguments.checkpoint)
    config, notes = checkpoints.load_config(found, arguments.config, settings)
    files = find_images(words, unread)
    plugin.add_config_folder_to_path(arguments.config, config.data.name, config.model.name)
    environment.remove_conflicting_variables(environ, download=False)
    from train.inference import predict  # torch

    environ["ENTRYPOINT_DEVICE"] = predict.resolve_device(device)
    ready = predict.prepare_from_checkpoint(config, found, environ, len(files))
    for note in (*found.notes, *notes):
        print_message(f"note: {note}", sys.stderr)
    return ready, files


def _load_from_export(
    arguments: argparse.Namespace, words: Sequence[str], settings: Sequence[str], device: str, unread: Counter[str]
) -> tuple[InferenceModel, list[Path]]:
    """The same from a folder of `train export`, which has its own description and no settings."""
    files = find_images(words, unread)
    from train.inference import predict  # torch

    folder = Path(arguments.checkpoint)
    factory = _load_custom_factory(folder, arguments.config, settings)
    return predict.prepare_from_export(folder, predict.resolve_device(device), len(files), factory), files


def _load_custom_factory(folder: Path, config: str | None, settings: Sequence[str]) -> Callable[..., Any] | None:
    """The user's own that makes the exported network, where one does: he names it as for a run.

    Raises:
        Failure: USAGE for settings that an export does not have, or another network; SECURITY as
            `plugin.refuse_recorded_factory`; and as `plugin.load_factory`.
    """
    from train.inference import export

    told = export.read_model_config(folder)
    own = schema.is_factory(told.name)
    document = load.YamlDocument(value={"model": {"name": told.name, "args": told.args}}, lines={})
    named = load.load_config(config, settings) if config else load.build_config(document, str(folder), settings)
    others = [word for word in settings if not word.startswith(("model.name=", "model.args"))]
    if others or ((config or settings) and not own) or replace(named.model, weights=None) != told:
        raise Failure(
            "an exported model has no settings",
            found=" ".join([*settings, *(["--config", config] if config else [])]),
            expected=f"none, or what it is: {told.name} {json.dumps(told.args):.200}",
            fix="leave them out, or name the run",
            code=ExitCode.USAGE,
        )
    if not own:
        return None
    typed = load.overridden_keys(settings, ("model.name",))
    plugin.refuse_recorded_factory({"model.name": told.name}, folder, config=config, typed=typed, args=told.args)
    plugin.add_config_folder_to_path(config, told.name)
    return plugin.load_factory(told.name, "model.name")


def build_parser() -> TrainArgumentParser:
    """The command line after `train predict`."""
    parser = TrainArgumentParser(
        prog="train predict",
        usage="train predict RUN IMAGES... [--top K] [--json] [--device auto|cpu|cuda] [--config FILE] "
        "[section.key=value ...]",
        description="Class and probability of image files, as the evaluation of the training would have read them.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "checkpoint",
        metavar="RUN",
        help="a run's folder, one checkpoints/step-N in it, or a folder of train export",
    )
    parser.add_argument("images", nargs="*", metavar="IMAGES", help="image files, or folders of them")
    parser.add_argument("--top", metavar="K", default="1", help="so many classes for each image (default: 1)")
    parser.add_argument("--json", action="store_true", help="one JSON object for each image")
    parser.add_argument("--device", metavar="auto|cpu|cuda", help="where to compute (default: a GPU if there is one)")
    parser.add_argument("--config", metavar="FILE", help="the training's file, for code of your own that it names")
    return parser


def _process_environ(environ: Mapping[str, str]) -> MutableMapping[str, str]:
    """What libraries will read, where this is the process' own environment: they must not see other ranks in it."""
    return os.environ if environ is os.environ else dict(environ)


def _parse_top(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0:
        return int(text)
    raise Failure("--top takes a whole number from 1", found=f"--top {text}", fix="write --top 5", code=ExitCode.USAGE)


def _parse_device(given_: str | None, environ: Mapping[str, str]) -> str:
    """The command line over ENTRYPOINT_DEVICE. Where the training ran does not count."""
    source, value = (
        ("--device", given_) if given_ else ("ENTRYPOINT_DEVICE", environ.get("ENTRYPOINT_DEVICE") or "auto")
    )
    if value in DEVICE_CHOICES:
        return value
    expected = "auto, cpu or cuda"
    raise Failure(
        f"{source} has a value that cannot be used",
        found=f"{source}={value[:200]}",
        expected=expected,
        fix=f"set {source} to {expected}, or leave it out",
        code=ExitCode.USAGE,
    )
