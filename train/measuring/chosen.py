"""What a user names for an evaluation becomes a whole checkpoint and a configuration to measure it with. No torch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from entrypoint import ExitCode, Failure
from train import plugin
from train.checkpoint import manifest, shelf
from train.checkpoint.manifest import Damaged, Manifest
from train.files import plain
from train.settings import changes, overrides, schema, yaml12
from train.settings.config import Data, RunConfig

STATE: Final = "state.json"
EXPORT: Final = "model.json"  # what makes a folder an export: see `train.using.exported`
# What an evaluation asks of a configuration; all else is the checkpoint's.
ASKED: Final = ("data.*", "launch.*", "eval.batch_size", "train.precision", "train.tf32")
# What decides which images are measured, or is for training alone: a model does not see it in one image.
NOT_SEEN: Final = ("data.samples", "data.val_fraction", "data.group", "data.augment", "data.classes")
# From where files come, and that they come: what a checkpoint says of it is not obeyed.
FETCHING: Final[Mapping[str, Any]] = {"data.download": Data().download, "data.mirror": Data().mirror}
ANOTHER: Final = "name another checkpoint, or the run's folder: then the newest whole one is taken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A checkpoint and its manifest, and what is worth saying about the choice."""

    path: Path
    contents: Manifest
    notes: tuple[str, ...] = ()


def split(words: Sequence[str]) -> tuple[str, list[str]]:
    """(the checkpoint or run's folder, the settings) of what follows `train eval`. Raises Failure (USAGE)."""
    if not words or ("=" in words[0] and not Path(words[0]).exists()):
        fix = "write `train eval RUN/checkpoints/step-N`, or the run's folder, and settings after it"
        raise Failure("`train eval` needs a checkpoint", found=" ".join(words) or None, fix=fix, code=ExitCode.USAGE)
    return words[0], list(words[1:])


def choose(given: str) -> Chosen:
    """The checkpoint `given`, or that of the run's folder `given`: its best one, else its newest whole one.

    Raises:
        Failure: NO_INPUT where there is none, DATA where none is whole or a newer version wrote it, SECURITY for links
            inside.
    """
    place = Path(given).resolve()
    if not place.is_dir():
        raise _no_checkpoint(given, "it is a file" if place.exists() else "it does not exist")
    if shelf.STEP.fullmatch(place.name) or os.path.exists(place / manifest.NAME):  # Path's own raises where it is shut
        return _whole(place)
    folder = place / "checkpoints" if os.path.exists(place / "checkpoints") else place
    there = shelf.steps(folder)
    if os.path.exists(place / EXPORT):
        raise _exported(given)
    if not there:
        raise _no_checkpoint(given, "a folder without checkpoints")
    order = [*_best(place, there), *reversed(there.values())]
    return _first_whole(list(dict.fromkeys(order)), folder)


def again(path: Path) -> Chosen:
    """The one that `choose` found in another process. Its files are hashed as they are read. Raises as `choose`."""
    try:
        return Chosen(path=path, contents=shelf.listed(path))
    except Damaged as reason:
        raise _damaged(path, str(reason)) from reason


def configured(chosen: Chosen, file: str | None, words: Sequence[str]) -> tuple[RunConfig, tuple[str, ...]]:
    """(the checkpoint's configuration with what an evaluation may ask for on top, what to know about it).

    Who wrote the checkpoint decides nothing with it that goes beyond reading: its factories are not imported, and its
    `data.download` fetches nothing, unless the user says so himself.

    Args:
        file: where data, launch and the like come from instead, as the user's --config. words: his settings.

    Raises:
        Failure: DATA for a state without a configuration; USAGE for settings that an evaluation cannot change, and as
            `schema.load`; SECURITY as `plugin.refuse_recorded`.
    """
    own = trained(chosen)
    base = schema.load(file) if file else own
    wanted = schema.load(file, words) if file else trained(chosen, words)
    _refuse(_differences(own, wanted, only="model.*"), "is the checkpoint's")
    _refuse(_differences(base, wanted), "does not change an evaluation")
    train = replace(own.train, precision=wanted.train.precision, tf32=wanted.train.tf32)
    measure = replace(own.eval, batch_size=wanted.eval.batch_size)
    config = replace(own, data=wanted.data, launch=wanted.launch, train=train, eval=measure)
    factories = {"model.name": config.model.name, "data.name": config.data.name}
    typed = overrides.typed(words, (*factories, *FETCHING))
    plugin.refuse_recorded(factories, _written_by(chosen), config=file, typed=typed, args=config.model.args)
    notes = _other_data(own, config)
    if not file:
        left = {key.removeprefix("data."): default for key, default in FETCHING.items() if key not in typed}
        config = replace(config, data=replace(config.data, **left))
    return config, notes


def _written_by(chosen: Chosen) -> Path:
    """The folder that belongs to whoever wrote the checkpoint: its run's, or the one that it lies in."""
    above = chosen.path.parent
    return above.parent if above.name == "checkpoints" else above


def trained(chosen: Chosen, words: Sequence[str] = ()) -> RunConfig:
    """The checkpoint's configuration. Raises Failure: DATA for a state without one, and as `schema.build`."""
    saved = state(chosen).get("config")
    if not isinstance(saved, dict):
        raise _damaged(chosen.path, f"{STATE} has no configuration")
    return schema.build(yaml12.Document(value=saved, lines={}), f"{STATE} of {chosen.path.name}", words)


def state(chosen: Chosen) -> dict[str, Any]:
    """What the checkpoint tells beside its tensors, hashed again as it is read. Raises Failure (DATA)."""
    try:
        entry = chosen.contents.files[STATE]
        data = manifest.read(chosen.path, STATE, limit=entry.size)
        manifest.compare(STATE, entry, manifest.entry(data))
        return dict(json.loads(data))
    except (Damaged, ValueError, KeyError, TypeError, RecursionError) as reason:
        raise _damaged(chosen.path, f"{STATE}: {type(reason).__name__} {reason}") from reason


def standing(path: Path) -> str | None:
    """What this checkpoint is among those of its run now: "the best", "the last"; None outside of a run."""
    if path.parent.name != "checkpoints":
        return None
    with suppress(Failure):
        there = shelf.steps(path.parent)
        best, last = _best(path.parents[1], there), list(there.values())[-1:]
        named = [word for word, found in (("the best", best), ("the last", last)) if path in found]
        return " and ".join(named) or ("neither the best nor the last" if best else "not the last")
    return None


def _best(run_folder: Path, there: Mapping[int, Path]) -> list[Path]:
    """What best.json names, if it is among the checkpoints."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        return [there[plain.read_json(run_folder / "best.json")["step"]]]
    return []


def _first_whole(order: Sequence[Path], folder: Path) -> Chosen:
    skipped: list[str] = []
    for path in order:
        try:
            return Chosen(path=path, contents=shelf.examine(path), notes=tuple(skipped))
        except Damaged as reason:
            skipped.append(f"skipped a damaged checkpoint: {path.name}: {reason}")
    fix = "measure another run: nothing can be read back from these"
    raise Failure(f"no checkpoint in {folder} is whole", found="; ".join(skipped), fix=fix, code=ExitCode.DATA)


def _whole(path: Path) -> Chosen:
    try:
        return Chosen(path=path, contents=shelf.examine(path))
    except Damaged as reason:
        raise _damaged(path, str(reason)) from reason


def _differences(old: RunConfig, new: RunConfig, only: str | None = None) -> list[str]:
    """`section.key: old -> new` for what differs and is not ASKED, or for what matches `only`."""
    before, after = changes.flat(asdict(old)), changes.flat(asdict(new))
    keys = [key for key in after if before.get(key) != after[key]]
    named = [key for key in keys if (fnmatchcase(key, only) if only else not any(fnmatchcase(key, p) for p in ASKED))]
    return [f"{key}: {json.dumps(before.get(key))} -> {json.dumps(after[key])}" for key in named]


def _refuse(differences: Sequence[str], why: str) -> None:
    if differences:
        raise Failure(
            f"{differences[0].partition(':')[0]} {why}",
            found="; ".join(differences),
            expected=f"settings of {', '.join(ASKED)}",
            fix="leave it out: all else is as the checkpoint was trained",
            code=ExitCode.USAGE,
        )


def _other_data(own: RunConfig, config: RunConfig) -> tuple[str, ...]:
    """What the model gets otherwise than in its training. Of the split see `trained`: the data is not open yet."""
    found = changes.changed(asdict(own), asdict(config))
    listed = [
        f"{key}: {json.dumps(old)} -> {json.dumps(new)}"
        for key, (old, new) in found.items()
        if key.startswith("data.") and key not in NOT_SEEN
    ]
    return (f"the data is not as in the training: {'; '.join(listed)}",) if listed else ()


def _damaged(path: Path, reason: str) -> Failure:
    return Failure(f"the checkpoint {path} is damaged", found=reason, fix=ANOTHER, code=ExitCode.DATA)


def _no_checkpoint(given: str, found: str) -> Failure:
    return Failure(
        f"{given} is not a checkpoint",
        found=found,
        expected="RUN/checkpoints/step-N, or a run's folder",
        fix="`train where --config FILE` prints the folder of a run",
        code=ExitCode.NO_INPUT,
    )


def _exported(given: str) -> Failure:
    return Failure(
        f"{given} is an exported model, not a run",
        found=f"{EXPORT} in it, and no checkpoint",
        expected="RUN/checkpoints/step-N, or a run's folder",
        fix=f"name the run that it was exported from; or see what it says of images: train predict {given} IMAGES",
        code=ExitCode.NO_INPUT,
    )
