"""`train predict RUN IMAGES...`: what a trained model says of image files, one line for each."""

from __future__ import annotations

import argparse
import codecs
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from entrypoint import ExitCode, Failure, say
from train import plugin
from train.commands.words import Parser
from train.data import oddities
from train.measuring import chosen
from train.settings import names, overrides, schema, variables, yaml12
from train.using import given

if TYPE_CHECKING:
    from train.using.lines import Prediction
    from train.using.prediction import Ready

EXPORT: Final = "model.json"  # what makes a folder an export: see `train.using.exported`
DEVICES: Final = ("auto", "cpu", "cuda")
EXAMPLES: Final = """examples:
  train predict runs/NAME image.jpg                    path, class and probability, with tabs between
  train predict runs/NAME photos/ --top 3              all images in a folder and below it; three classes each
  train predict model photos/                          a model that was handed on: train export
  train predict runs/NAME photos/ --json > out.jsonl   one JSON object for each image
"""


def handle(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Say on stdout what each image shows, on stderr which cannot be read. Nothing is written."""
    arguments = build_parser().parse_intermixed_args(argv)
    words, settings = given.split(arguments.images)
    top, device = _top(arguments.top), _device(arguments.device, environ)
    unread = Counter[str]()
    if os.path.exists(os.path.join(arguments.checkpoint, EXPORT)):
        ready, files = _of_export(arguments, words, settings, device, unread)
    else:
        ready, files = _of_run(arguments, words, settings, device, _ours(environ), unread)
    from train.data import depth
    from train.using import prediction

    for warning in depth.told(depth.of_files(files)):
        say(f"WARNING: {warning}", sys.stderr)
    if ready.doubt:
        say(f"WARNING: {ready.doubt}", sys.stderr)
    try:
        for one in prediction.predict(ready, files, top, lambda text: print(text, file=sys.stderr)):
            _tell(one, as_json=arguments.json)
            if _lost():
                break
    finally:
        if note := oddities.unread(unread):
            say(f"note: {note}", sys.stderr)
    return _whole()


def _tell(one: Prediction, *, as_json: bool) -> None:
    """A line, in letters that the stream has: one that it cannot take would be lost.

    In one piece with its end: a request to stop may come between two.
    """
    encoding = sys.stdout.encoding or "ascii"
    if as_json:
        line = one.as_json(ascii_=codecs.lookup(encoding).name != "utf-8")
    else:
        line = one.as_text().encode(encoding, "backslashreplace").decode(encoding)
    sys.stdout.write(f"{line}\n")


def _lost() -> int:
    """How many writes stdout has refused: our front door lets none of them end a command."""
    return int(getattr(sys.stdout, "lost", 0))


def _whole() -> int:
    """OK, also where a pipe's reader wanted no more (`| head`); its end now leads to /dev/null.

    Raises:
        Failure: IO, where lines are missing, as on a full disk.
    """
    sys.stdout.flush()
    if _lost() and not os.path.samestat(os.fstat(1), os.stat(os.devnull)):
        what, fix = "the lines could not all be written to stdout", "free space on that disk, and start again"
        raise Failure(what, fix=fix, code=ExitCode.IO)
    return int(ExitCode.OK)


def _of_run(
    arguments: argparse.Namespace,
    words: Sequence[str],
    settings: Sequence[str],
    device: str,
    environ: MutableMapping[str, str],
    unread: Counter[str],
) -> tuple[Ready, list[Path]]:
    """The network of a checkpoint, and the images; all that can be refused without torch is refused first."""
    found = chosen.choose(arguments.checkpoint)
    config, notes = chosen.configured(found, arguments.config, settings)
    files = given.files(words, unread)
    plugin.look_beside(arguments.config, config.data.name, config.model.name)
    variables.take_out(environ, download=False)
    from train.using import prediction  # torch

    environ["ENTRYPOINT_DEVICE"] = prediction.kind(device)
    ready = prediction.prepare(config, found, environ, len(files))
    for note in (*found.notes, *notes):
        say(f"note: {note}", sys.stderr)
    return ready, files


def _of_export(
    arguments: argparse.Namespace, words: Sequence[str], settings: Sequence[str], device: str, unread: Counter[str]
) -> tuple[Ready, list[Path]]:
    """The same from a folder of `train export`, which has its own description and no settings."""
    files = given.files(words, unread)
    from train.using import prediction  # torch

    folder = Path(arguments.checkpoint)
    factory = _factory(folder, arguments.config, settings)
    return prediction.prepare_exported(folder, prediction.kind(device), len(files), factory), files


def _factory(folder: Path, config: str | None, settings: Sequence[str]) -> Callable[..., Any] | None:
    """The user's own that makes the exported network, where one does: he names it as for a run.

    Raises:
        Failure: USAGE for settings that an export does not have, or another network; SECURITY as
            `plugin.refuse_recorded`; and as `plugin.load`.
    """
    from train.using import exported

    told = exported.model(folder)
    own = names.is_factory(told.name)
    document = yaml12.Document(value={"model": {"name": told.name, "args": told.args}}, lines={})
    named = schema.load(config, settings) if config else schema.build(document, str(folder), settings)
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
    typed = overrides.typed(settings, ("model.name",))
    plugin.refuse_recorded({"model.name": told.name}, folder, config=config, typed=typed, args=told.args)
    plugin.look_beside(config, told.name)
    return plugin.load(told.name, "model.name")


def build_parser() -> Parser:
    """The command line after `train predict`."""
    parser = Parser(
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


def _ours(environ: Mapping[str, str]) -> MutableMapping[str, str]:
    """What libraries will read, where this is the process' own environment: they must not see other ranks in it."""
    return os.environ if environ is os.environ else dict(environ)


def _top(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0:
        return int(text)
    raise Failure("--top takes a whole number from 1", found=f"--top {text}", fix="write --top 5", code=ExitCode.USAGE)


def _device(given_: str | None, environ: Mapping[str, str]) -> str:
    """The command line over ENTRYPOINT_DEVICE. Where the training ran does not count."""
    source, value = (
        ("--device", given_) if given_ else ("ENTRYPOINT_DEVICE", environ.get("ENTRYPOINT_DEVICE") or "auto")
    )
    if value in DEVICES:
        return value
    expected = "auto, cpu or cuda"
    raise Failure(
        f"{source} has a value that cannot be used",
        found=f"{source}={value[:200]}",
        expected=expected,
        fix=f"set {source} to {expected}, or leave it out",
        code=ExitCode.USAGE,
    )
