"""This module finds the checkpoint that a user names and loads its config for an evaluation.

It also compares the data that the checkpoint was trained on with the data that is evaluated, and
lists the caveats: other classes, another split, images that the model has seen.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from entrypoint import ExitCode, Failure
from train import files, plugin
from train.checkpoint import manifest, store
from train.checkpoint.manifest import DamagedCheckpointError, Manifest
from train.config import load, resume_rules
from train.config.schema import DataConfig, RunConfig
from train.data import class_folders, registry
from train.data.registry import DataSource
from train.files import shorten_name
from train.logging import progress

STATE_FILE: Final = "state.json"
EXPORT_FILE: Final = "model.json"  # what makes a folder an export: see `train.inference.export`
# What an evaluation asks of a configuration; all else is the checkpoint's.
ALLOWED_SETTINGS: Final = ("data.*", "launch.*", "eval.batch_size", "train.precision", "train.tf32")
# What decides which images are measured, or is for training alone: a model does not see it in one image.
DATA_SETTINGS_UNSEEN_BY_MODEL: Final = (
    "data.samples",
    "data.val_fraction",
    "data.group",
    "data.augment",
    "data.classes",
)
# From where files come, and that they come: what a checkpoint says of it is not obeyed.
DOWNLOAD_DEFAULTS: Final[Mapping[str, Any]] = {
    "data.download": DataConfig().download,
    "data.mirror": DataConfig().mirror,
}
OTHER_CHECKPOINT_FIX: Final = "name another checkpoint, or the run's folder: then the newest whole one is taken"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenCheckpoint:
    """A checkpoint and its manifest, and what is worth saying about the choice."""

    path: Path
    contents: Manifest
    notes: tuple[str, ...] = ()


def split_arguments(words: Sequence[str]) -> tuple[str, list[str]]:
    """(the checkpoint or run's folder, the settings) of what follows `train eval`. Raises Failure (USAGE)."""
    if not words or ("=" in words[0] and not Path(words[0]).exists()):
        fix = "write `train eval RUN/checkpoints/step-N`, or the run's folder, and settings after it"
        raise Failure("`train eval` needs a checkpoint", found=" ".join(words) or None, fix=fix, code=ExitCode.USAGE)
    return words[0], list(words[1:])


def choose_checkpoint(given: str) -> ChosenCheckpoint:
    """The checkpoint `given`, or that of the run's folder `given`: its best one, else its newest whole one.

    Raises:
        Failure: NO_INPUT where there is none, DATA where none is whole or a newer version wrote it, SECURITY for links
            inside.
    """
    place = Path(given).resolve()
    if not place.is_dir():
        raise _no_checkpoint_failure(given, "it is a file" if place.exists() else "it does not exist")
    if store.STEP_FOLDER_PATTERN.fullmatch(place.name) or os.path.exists(
        place / manifest.FILE_NAME
    ):  # Path's own raises where it is shut
        return _verify_chosen(place)
    folder = place / "checkpoints" if os.path.exists(place / "checkpoints") else place
    there = store.list_checkpoints(folder)
    if os.path.exists(place / EXPORT_FILE):
        raise _exported_model_failure(given)
    if not there:
        raise _no_checkpoint_failure(given, "a folder without checkpoints")
    order = [*_best_checkpoint(place, there), *reversed(there.values())]
    return _first_undamaged(list(dict.fromkeys(order)), folder)


def reopen_checkpoint(path: Path) -> ChosenCheckpoint:
    """The one that `choose_checkpoint` found in another process. Its files are hashed as they are read. Raises as
    `choose_checkpoint`."""
    try:
        return ChosenCheckpoint(path=path, contents=store.read_manifest(path))
    except DamagedCheckpointError as reason:
        raise _damaged_failure(path, str(reason)) from reason


def load_config(chosen: ChosenCheckpoint, file: str | None, words: Sequence[str]) -> tuple[RunConfig, tuple[str, ...]]:
    """(the checkpoint's configuration with what an evaluation may ask for on top, what to know about it).

    Who wrote the checkpoint decides nothing with it that goes beyond reading: its factories are not imported, and its
    `data.download` fetches nothing, unless the user says so himself.

    Args:
        file: where data, launch and the like come from instead, as the user's --config. words: his settings.

    Raises:
        Failure: DATA for a state without a configuration; USAGE for settings that an evaluation cannot change, and as
            `load.load_config`; SECURITY as `plugin.refuse_recorded_factory`.
    """
    own = load_training_config(chosen)
    base = load.load_config(file) if file else own
    wanted = load.load_config(file, words) if file else load_training_config(chosen, words)
    _refuse_differences(_config_differences(own, wanted, only="model.*"), "is the checkpoint's")
    _refuse_differences(_config_differences(base, wanted), "does not change an evaluation")
    train = replace(own.train, precision=wanted.train.precision, tf32=wanted.train.tf32)
    measure = replace(own.eval, batch_size=wanted.eval.batch_size)
    config = replace(own, data=wanted.data, launch=wanted.launch, train=train, eval=measure)
    factories = {"model.name": config.model.name, "data.name": config.data.name}
    typed = load.overridden_keys(words, (*factories, *DOWNLOAD_DEFAULTS))
    plugin.refuse_recorded_factory(factories, _writer_folder(chosen), config=file, typed=typed, args=config.model.args)
    notes = _data_change_notes(own, config)
    if not file:
        left = {key.removeprefix("data."): default for key, default in DOWNLOAD_DEFAULTS.items() if key not in typed}
        config = replace(config, data=replace(config.data, **left))
    return config, notes


def _writer_folder(chosen: ChosenCheckpoint) -> Path:
    """The folder that belongs to whoever wrote the checkpoint: its run's, or the one that it lies in."""
    above = chosen.path.parent
    return above.parent if above.name == "checkpoints" else above


def load_training_config(chosen: ChosenCheckpoint, words: Sequence[str] = ()) -> RunConfig:
    """The checkpoint's configuration. Raises Failure: DATA for a state without one, and as `load.build_config`."""
    saved = read_state(chosen).get("config")
    if not isinstance(saved, dict):
        raise _damaged_failure(chosen.path, f"{STATE_FILE} has no configuration")
    return load.build_config(load.YamlDocument(value=saved, lines={}), f"{STATE_FILE} of {chosen.path.name}", words)


def read_state(chosen: ChosenCheckpoint) -> dict[str, Any]:
    """What the checkpoint tells beside its tensors, hashed again as it is read. Raises Failure (DATA)."""
    try:
        entry = chosen.contents.files[STATE_FILE]
        data = manifest.read_file(chosen.path, STATE_FILE, limit=entry.size)
        manifest.refuse_changed_file(STATE_FILE, entry, manifest.make_file_entry(data))
        return dict(json.loads(data))
    except (DamagedCheckpointError, ValueError, KeyError, TypeError, RecursionError) as reason:
        raise _damaged_failure(chosen.path, f"{STATE_FILE}: {type(reason).__name__} {reason}") from reason


def describe_place_in_run(path: Path) -> str | None:
    """What this checkpoint is among those of its run now: "the best", "the last"; None outside of a run."""
    if path.parent.name != "checkpoints":
        return None
    with suppress(Failure):
        there = store.list_checkpoints(path.parent)
        best, last = _best_checkpoint(path.parents[1], there), list(there.values())[-1:]
        named = [word for word, found in (("the best", best), ("the last", last)) if path in found]
        return " and ".join(named) or ("neither the best nor the last" if best else "not the last")
    return None


def _best_checkpoint(run_folder: Path, there: Mapping[int, Path]) -> list[Path]:
    """What best.json names, if it is among the checkpoints."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        return [there[files.read_json(run_folder / "best.json")["step"]]]
    return []


def _first_undamaged(order: Sequence[Path], folder: Path) -> ChosenCheckpoint:
    skipped: list[str] = []
    for path in order:
        try:
            return ChosenCheckpoint(path=path, contents=store.verify_hashes(path), notes=tuple(skipped))
        except DamagedCheckpointError as reason:
            skipped.append(f"skipped a damaged checkpoint: {path.name}: {reason}")
    fix = "measure another run: nothing can be read back from these"
    raise Failure(f"no checkpoint in {folder} is whole", found="; ".join(skipped), fix=fix, code=ExitCode.DATA)


def _verify_chosen(path: Path) -> ChosenCheckpoint:
    try:
        return ChosenCheckpoint(path=path, contents=store.verify_hashes(path))
    except DamagedCheckpointError as reason:
        raise _damaged_failure(path, str(reason)) from reason


def _config_differences(old: RunConfig, new: RunConfig, only: str | None = None) -> list[str]:
    """`section.key: old -> new` for what differs and is not ALLOWED_SETTINGS, or for what matches `only`."""
    before, after = resume_rules.flatten_config(asdict(old)), resume_rules.flatten_config(asdict(new))
    keys = [key for key in after if before.get(key) != after[key]]
    named = [
        key
        for key in keys
        if (fnmatchcase(key, only) if only else not any(fnmatchcase(key, p) for p in ALLOWED_SETTINGS))
    ]
    return [f"{key}: {json.dumps(before.get(key))} -> {json.dumps(after[key])}" for key in named]


def _refuse_differences(differences: Sequence[str], why: str) -> None:
    if differences:
        raise Failure(
            f"{differences[0].partition(':')[0]} {why}",
            found="; ".join(differences),
            expected=f"settings of {', '.join(ALLOWED_SETTINGS)}",
            fix="leave it out: all else is as the checkpoint was trained",
            code=ExitCode.USAGE,
        )


def _data_change_notes(own: RunConfig, config: RunConfig) -> tuple[str, ...]:
    """What the model gets otherwise than in its training. Of the split see `trained`: the data is not open yet."""
    found = resume_rules.changed_keys(asdict(own), asdict(config))
    listed = [
        f"{key}: {json.dumps(old)} -> {json.dumps(new)}"
        for key, (old, new) in found.items()
        if key.startswith("data.") and key not in DATA_SETTINGS_UNSEEN_BY_MODEL
    ]
    return (f"the data is not as in the training: {'; '.join(listed)}",) if listed else ()


def _damaged_failure(path: Path, reason: str) -> Failure:
    return Failure(f"the checkpoint {path} is damaged", found=reason, fix=OTHER_CHECKPOINT_FIX, code=ExitCode.DATA)


def _no_checkpoint_failure(given: str, found: str) -> Failure:
    return Failure(
        f"{given} is not a checkpoint",
        found=found,
        expected="RUN/checkpoints/step-N, or a run's folder",
        fix="`train where --config FILE` prints the folder of a run",
        code=ExitCode.NO_INPUT,
    )


def _exported_model_failure(given: str) -> Failure:
    return Failure(
        f"{given} is an exported model, not a run",
        found=f"{EXPORT_FILE} in it, and no checkpoint",
        expected="RUN/checkpoints/step-N, or a run's folder",
        fix=f"name the run that it was exported from; or see what it says of images: train predict {given} IMAGES",
        code=ExitCode.NO_INPUT,
    )


MAX_LISTED_CLASSES: Final = 8  # names of classes in a line
SEEN_IMAGES_CAVEAT: Final = "the result does not tell how new images are answered"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetFacts:
    """Which data, with which classes, how many samples its two sides have, and their digests, where they are known:
    see `statistics.data_fingerprint`."""

    data: DataConfig
    classes: tuple[str, ...]
    training: int
    held_out: int
    digests: Mapping[str, str] = field(default_factory=dict)

    @property
    def images(self) -> int:
        """On both sides."""
        return self.training + self.held_out

    def measured(self, *, whole: bool) -> str:
        """What is measured, in words: both splits, or the validation images."""
        count = f"{progress.pluralize(self.images, 'image')} of {self.place}"
        return f"all {count}" if whole else f"the {self.held_out:,} validation images of {count}"

    @property
    def source(self) -> DataSource:
        """What is known about data of this name."""
        return registry.find_source(self.data.name)

    @property
    def place(self) -> str:
        """Where they come from, in a word."""
        return self.data.root if self.source.origin == "files" else self.data.name


def training_dataset_facts(found: ChosenCheckpoint) -> DatasetFacts | None:
    """Of the training; None where the checkpoint does not say it. Raises Failure (DATA) for a damaged one."""
    told, data = read_state(found).get("data") or {}, load_training_config(found).data
    try:
        sides = {name: int(told[name]) for name in ("training", "held_out")}
        digests = {str(side): str(digest) for side, digest in told.get(resume_rules.DIGESTS_KEY, {}).items()}
        return DatasetFacts(data=data, classes=tuple(map(str, told["classes"])), **sides, digests=digests)
    except (
        LookupError,
        TypeError,
        ValueError,
        OverflowError,
        AttributeError,
    ):  # JSON's Infinity is no number of images
        return None


def without_class_count(data: DataConfig, trained: DatasetFacts | None) -> DataConfig:
    """Without the number of class folders that the training's file may state: their names are compared, which says
    more."""
    source = registry.find_source(data.name)
    named = source.has_class_names and "classes" not in source.keys
    return replace(data, classes=DataConfig().classes) if trained and named else data


def refuse_other_classes(trained: DatasetFacts, there: DatasetFacts) -> None:
    """An answer is a number: of other classes, or in another order, it means another one. there: as numbered by
    `evaluate.map_to_training_classes`.

    Raises:
        Failure: DATA, with the names of both.
    """
    if trained.classes == there.classes or _match_by_number(trained, there):
        return
    where = "data.classes, data.frames" if there.source.origin == "computed" else "data.root, data.name"
    raise Failure(
        "the data has other classes than the model was trained on",
        found=f"{_describe_classes(there.classes, trained.classes)} (in {there.place})",
        expected=f"{_describe_classes(trained.classes, there.classes)} (of the training)",
        fix=f"measure it on data that has the training's classes, by these names: {where}; or train on this data, with "
        "another run.name",
        code=ExitCode.DATA,
    )


def evaluation_caveats(trained: DatasetFacts, there: DatasetFacts, *, whole: bool) -> tuple[str, ...]:
    """What may make the numbers other than they look, a line each. whole: both sides are measured."""
    found = (
        _numbered_classes_caveat(trained, there),
        _missing_classes_caveat(trained, there),
        _seen_images_caveat(trained, there, whole=whole),
    )
    return tuple(line for line in found if line is not None)


def _match_by_number(trained: DatasetFacts, there: DatasetFacts) -> bool:
    """Whether there are as many, and one side has no names for them: arrays have labels alone."""
    nameless = [
        not facts.source.has_class_names and facts.classes == _numbers_as_names(facts.classes)
        for facts in (trained, there)
    ]
    return any(nameless) and len(trained.classes) == len(there.classes)


def _numbers_as_names(classes: Sequence[str]) -> tuple[str, ...]:
    return tuple(map(str, range(len(classes))))


def _numbered_classes_caveat(trained: DatasetFacts, there: DatasetFacts) -> str | None:
    if trained.classes == there.classes or not _match_by_number(trained, there):
        return None
    return (
        "classes are compared by number, without names on one side: "
        f"{_join_class_names(there.classes)} of the data are taken for "
        f"{_join_class_names(trained.classes)} of the training"
    )


def _missing_classes_caveat(trained: DatasetFacts, there: DatasetFacts) -> str | None:
    """Classes of the training of which the data has no folder: see partial.py."""
    if trained.classes == there.classes or _match_by_number(trained, there):
        return None
    here = set(there.classes)
    missed = [name for name in trained.classes if name not in here]
    count = f"{len(there.classes):,} of the training's {len(trained.classes):,} classes"
    return f"{count} are measured: there is no folder of {_join_class_names(missed)} in {there.place}"


def _seen_images_caveat(trained: DatasetFacts, there: DatasetFacts, *, whole: bool) -> str | None:
    """Whether the model was trained on what is measured. A checkpoint knows how many samples there were, and by digests
    whether these are the same; not which they were."""
    if not whole and _same_split(trained, there):
        return None
    if _data_location(trained.data) != _data_location(there.data) and not _are_same_files(trained, there):
        return _other_location_caveat(trained, there, whole=whole)
    if not whole and there.source.has_validation(there.data):
        return _moved_images_caveat(trained, there)
    measured = there.images if whole else there.held_out
    why = SEEN_IMAGES_CAVEAT if whole else f"the split is not the training's ({_describe_split_change(trained, there)})"
    if (count := _count_seen_images(trained, there, whole=whole)) is not None:
        return f"{count:,} of these {measured:,} images were trained on: {why}" if count else None
    sure = "are" if there.source.has_class_names else "may be"  # nobody but their author knows how others are divided
    return f"images that the model was trained on {sure} among these {measured:,}: {why}"


def _same_split(trained: DatasetFacts, there: DatasetFacts) -> bool:
    """A side of its own may change: what was trained on stays on the other."""
    same = {
        side: sizes[0] == sizes[1] and not _digests_differ(trained, there, side)
        for side, sizes in _split_sizes(trained, there)
    }
    return (all(same.values()) and trained.data.group == there.data.group) or (
        same["training"] and there.source.has_validation(there.data)
    )


def _split_sizes(trained: DatasetFacts, there: DatasetFacts) -> Iterable[tuple[str, tuple[int, int]]]:
    return ("training", (trained.training, there.training)), ("held_out", (trained.held_out, there.held_out))


def _digests_differ(trained: DatasetFacts, there: DatasetFacts, part: str) -> bool:
    """Whether both digests of this part are known, and differ. Those of another kind of data cannot be compared."""
    before, now = trained.digests.get(part), there.digests.get(part)
    return trained.data.name == there.data.name and None not in (before, now) and before != now


def _are_same_files(trained: DatasetFacts, there: DatasetFacts) -> bool:
    """Whether these are surely the same files, wherever they lie now. Arrays of the same digest may be others."""
    parts = ("all",) if "all" in trained.digests else resume_rules.SPLIT_NAMES
    same = (trained.digests.get(part, "?") == there.digests.get(part) for part in parts)
    comparable = trained.data.name == there.data.name and there.source.hashes_paths
    return comparable and all(same)


def _files_changed(trained: DatasetFacts, there: DatasetFacts) -> bool:
    """Whether some came, went or were renamed since, though there may be as many."""
    if "all" in trained.digests and "all" in there.digests:
        return _digests_differ(trained, there, "all")
    asked = [(facts.data.val_fraction, facts.data.group) for facts in (trained, there)]
    return asked[0] == asked[1] and any(_digests_differ(trained, there, side) for side in resume_rules.SPLIT_NAMES)


def _describe_split_change(trained: DatasetFacts, there: DatasetFacts) -> str:
    if trained.images == there.images and _files_changed(trained, there):
        return "files came, went or were renamed since, and it is drawn anew from all"
    return f"it held out {trained.held_out:,} of {trained.images:,} images"


def _count_seen_images(trained: DatasetFacts, there: DatasetFacts, *, whole: bool) -> int | None:
    """How many of the measured images of the same source were trained on, where that can be told."""
    if there.source.origin == "computed":  # numbered: the first are trained on, the last are held out
        return max(0, min(trained.training, there.images) - (0 if whole else there.training))
    if trained.images != there.images or _files_changed(trained, there):
        return None
    if whole:
        return trained.training
    if trained.data.group or there.data.group or there.source.origin == "factory":
        return None
    return max(0, there.held_out - trained.held_out)  # see data/split.py: the smaller part lies in the larger one


def _moved_images_caveat(trained: DatasetFacts, there: DatasetFacts) -> str | None:
    """Sides of their own: what came new to the training side does no harm here."""
    if there.training > trained.training:
        return None
    if there.training == trained.training:
        sides = "the training side has other files, or other names, than in the training"
    else:
        sides = f"of {trained.training:,} images on the training side {there.training:,} are left there"
    return f"{sides}: if they were moved to the held-out side, some of these were trained on"


def _other_location_caveat(trained: DatasetFacts, there: DatasetFacts, *, whole: bool) -> str | None:
    """Other files, as far as their place says."""
    if _data_location(there.data) in [
        _data_location(replace(trained.data, root=folder)) for folder in _possible_training_folders(trained.data.root)
    ]:
        return f"these are the images that the model was trained on: {SEEN_IMAGES_CAVEAT}"
    if whole and (trained.training, trained.held_out) == (there.training, there.held_out):
        return f"as many images as in the training: if they are its own, {trained.training:,} of them were trained on"
    if whole or there.source.has_validation(there.data):
        return None
    return (
        f"{there.held_out:,} of the {there.images:,} images in {there.place} are measured, by a split of their own: "
        "--all measures all; if the training's images are among them, some of these were trained on"
    )


def _possible_training_folders(root: str) -> list[str]:
    """The folders in a folder that may be the one it was trained on; also where it is not there any more."""
    named = {class_folders.TRAINING_FOLDER_NAMES[0]}
    with suppress(Failure):
        named.update(
            name
            for name in class_folders.class_names(Path(root))
            if name.lower() in class_folders.TRAINING_FOLDER_NAMES
        )
    return [os.path.join(root, name) for name in named]


def _data_location(data: DataConfig) -> tuple[str, str | None]:
    computed = registry.find_source(data.name).origin == "computed"
    return data.name, None if computed else os.path.realpath(data.root)


def _describe_classes(classes: Sequence[str], others: Sequence[str]) -> str:
    """How many, the first, and those that the others lack: in a long list these would not show."""
    known = set(others)
    only = [name for name in classes if name not in known]
    more = f"; only here: {_join_class_names(only)}" if only and len(classes) > MAX_LISTED_CLASSES else ""
    return f"{len(classes):,}: {_join_class_names(classes)}{more}"


def _join_class_names(classes: Sequence[str]) -> str:
    return ", ".join(map(shorten_name, classes[:MAX_LISTED_CLASSES])) + (
        f" and {len(classes) - MAX_LISTED_CLASSES:,} more" if len(classes) > MAX_LISTED_CLASSES else ""
    )
