"""This module finds the checkpoint that a user names and loads its config for an evaluation.

It also compares the data of the training with the data of the evaluation, and lists the caveats:
other classes, another split, images that the model was trained on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Literal

from entrypoint import ExitCode, Failure, has_variable, list_some, pluralize, shell_command
from train import files, plugin
from train.checkpoint import manifest, store
from train.checkpoint.store import STATE_FILE, CommittedCheckpoint
from train.config import load, resume_rules
from train.config.models import EXPORT_FILE
from train.config.schema import DataConfig, EvalConfig, Rule, RunConfig, RunSection, key_patterns, one_of, with_keys_of
from train.data import class_folders, registry
from train.data.preprocessing import keep_preprocessing
from train.data.registry import DataSource
from train.fields import FINITE, TEXTS, check_fields
from train.files import shorten_name
from train.names import describe_look_alikes, normalize_name
from train.run import record
from train.run.record import BEST_FILE
from train.tasks import AUTO, CLASSIFICATION, TASKS, TargetScale

# The settings that an evaluation may change; all others come from the checkpoint.
ALLOWED_SETTINGS: Final = key_patterns("in_evaluation")
# These decide which images are evaluated, or affect only the training. They do not change the model's
# input for an image.
DATA_SETTINGS_UNSEEN_BY_MODEL: Final = (
    "data.samples",
    "data.val_fraction",
    "data.test_fraction",
    "data.fold",
    "data.sampling",
    "data.repeats",
    "data.progressive_size",
    "data.group",
    "data.augment",
    "data.classes",
    "data.columns",
    "data.images",
    "data.task",
)
# An evaluation ignores the checkpoint's values for downloads, and uses these.
DOWNLOAD_DEFAULTS: Final[Mapping[str, Any]] = {
    "data.download": DataConfig().download,
    "data.mirror": DataConfig().mirror,
}
THRESHOLD_KEY: Final = "eval.threshold"
NO_CHECKPOINT_FIX: Final = "measure another run: nothing can be read back from these"
OTHER_CHECKPOINT_FIX: Final = (
    "name another checkpoint, or the run's folder: its best undamaged checkpoint is taken, otherwise the newest"
)


def split_arguments(words: Sequence[str]) -> tuple[str, list[str]]:
    """Split the arguments of `train eval` into (checkpoint or run folder, settings).

    Raises Failure (USAGE).
    """
    if not words or ("=" in words[0] and not Path(words[0]).exists()):
        fix = (
            f"write `{shell_command('train eval RUN/checkpoints/step-N')}`, or the run's folder, and settings after it"
        )
        raise Failure("`train eval` needs a checkpoint", found=" ".join(words) or None, fix=fix, code=ExitCode.USAGE)
    return words[0], list(words[1:])


def choose_checkpoint(name: str) -> CommittedCheckpoint:
    """The checkpoint `name`, or the best checkpoint of the run folder `name`.

    If the best is damaged or there is none, the newest undamaged one.

    Raises:
        Failure: NO_INPUT without a checkpoint; DATA if all are damaged or a newer version wrote it;
            SECURITY for links inside.
    """
    path = Path(name).resolve()
    if not path.is_dir():
        raise _no_checkpoint_failure(name, "it is a file" if path.exists() else "it does not exist")
    # Path.exists raises if the folder is not readable.
    if store.STEP_FOLDER_PATTERN.fullmatch(path.name) or os.path.exists(path / manifest.FILE_NAME):
        return store.open_checkpoint(path, store.verify_hashes, OTHER_CHECKPOINT_FIX)
    folder = path / "checkpoints" if os.path.exists(path / "checkpoints") else path
    committed = store.list_checkpoints(folder)
    if os.path.exists(path / EXPORT_FILE):
        raise _exported_model_failure(name)
    if not committed:
        raise _no_checkpoint_failure(name, "a folder without checkpoints")
    order = [*_best_checkpoint(path, committed), *reversed(committed.values())]
    return store.first_undamaged(dict.fromkeys(order), folder, NO_CHECKPOINT_FIX, OTHER_CHECKPOINT_FIX)


def load_config(
    chosen: CommittedCheckpoint, file: str | None, words: Sequence[str]
) -> tuple[RunConfig, tuple[str, ...]]:
    """The checkpoint's configuration with the user's settings for the evaluation, and notes about it.

    A checkpoint may come from another person: its factories are not imported, and its `data.download`
    fetches nothing, unless the user says so himself.

    Args:
        file: the user's --config; its data, launch and other allowed settings replace the
            checkpoint's. words: the user's settings.

    Raises:
        Failure: DATA for a state without a configuration; USAGE for settings that an evaluation
            cannot change, and as `load.load_config`; SECURITY as `plugin.refuse_recorded_factory`.
    """
    own = load_training_config(chosen)
    base = load.load_config(file) if file else own
    requested = load.load_config(file, words) if file else load_training_config(chosen, words)
    _refuse_differences(_config_differences(own, requested, only="model.*"), "is the checkpoint's", file)
    _refuse_differences(_config_differences(base, requested), "does not change an evaluation")
    config = with_keys_of(own, requested, "in_evaluation")
    config = replace(config, data=keep_preprocessing(config.data, asdict(own.data)))
    factories = {"model.name": config.model.name, "data.name": config.data.name}
    typed = load.overridden_keys(words, (*factories, *DOWNLOAD_DEFAULTS, THRESHOLD_KEY))
    if THRESHOLD_KEY not in typed:  # a file need not say what the command line of the training said
        config = replace(config, eval=replace(config.eval, threshold=own.eval.threshold))
    plugin.refuse_recorded_factory(factories, _writer_folder(chosen), config=file, typed=typed, args=config.model.args)
    # `evaluation_caveats` compares the splits, once the data is open.
    listed = [change for change in input_changes(own, config) if change.startswith("data.")]
    notes = (f"the data is not as in the training: {'; '.join(listed)}",) if listed else ()
    if not file:
        defaults = {
            key.removeprefix("data."): default for key, default in DOWNLOAD_DEFAULTS.items() if key not in typed
        }
        config = replace(config, data=replace(config.data, **defaults))
    return config, notes


def _writer_folder(chosen: CommittedCheckpoint) -> Path:
    """The folder that the checkpoint's author wrote: the run's folder, or the checkpoint's parent."""
    parent = chosen.path.parent
    return parent.parent if parent.name == "checkpoints" else parent


def load_training_config(chosen: CommittedCheckpoint, words: Sequence[str] = ()) -> RunConfig:
    """The checkpoint's configuration.

    Raises Failure: DATA for a state without one, and as `load.build_config`.
    """
    saved = store.read_state(chosen).get("config")
    if not isinstance(saved, dict):
        raise store.damaged_failure(chosen.path, f"{STATE_FILE} has no configuration", OTHER_CHECKPOINT_FIX)
    run = saved.get("run")
    if isinstance(run, dict) and has_variable(
        str(run.get("output_dir"))
    ):  # of an older version, which took it as it is
        saved = saved | {"run": run | {"output_dir": RunSection().output_dir}}
    return load.build_config(load.YamlDocument(value=saved, lines={}), f"{STATE_FILE} of {chosen.path.name}", words)


def messages_about(chosen: CommittedCheckpoint, notes: Sequence[str]) -> list[str]:
    """What a command that uses the checkpoint prints. notes: of `load_config`. Raises Failure (DATA)."""
    caution = record.describe_divergence(chosen.path)
    notes = (*chosen.notes, *notes, *describe_changed_code(chosen))
    return [*([f"WARNING: {caution}"] if caution else []), *(f"note: {text}" for text in notes)]


def describe_changed_code(chosen: CommittedCheckpoint) -> tuple[str, ...]:
    """A note if the user's own code, which built the network, is not what trained it. Raises Failure (DATA)."""
    return plugin.describe_changed_code(store.read_state(chosen).get("code") or {})


def describe_standing(path: Path) -> str | None:
    """The checkpoint's current position in its run: "the best", "the last"; None outside of a run."""
    if path.parent.name != "checkpoints":
        return None
    with suppress(Failure):
        committed = store.list_checkpoints(path.parent)
        best, last = _best_checkpoint(path.parents[1], committed), list(committed.values())[-1:]
        named = [word for word, paths in (("the best", best), ("the last", last)) if path in paths]
        return " and ".join(named) or ("neither the best nor the last" if best else "not the last")
    return None


def run_folder_of(checkpoint: Path) -> Path:
    """The folder of the run that a checkpoint belongs to.

    Raises:
        Failure: USAGE for a checkpoint outside of a run.
    """
    if checkpoint.parent.name != "checkpoints":
        raise Failure(
            "--report keeps its results in a run's folder",
            found=f"{checkpoint}, a checkpoint outside of a run",
            fix="name the run, or leave --report out",
            code=ExitCode.USAGE,
        )
    return checkpoint.parents[1]


def _best_checkpoint(run_folder: Path, committed: Mapping[int, Path]) -> list[Path]:
    """The checkpoint that best.json names, if it is committed; otherwise an empty list."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        return [committed[files.read_json(run_folder / BEST_FILE)["step"]]]
    return []


def _config_differences(old: RunConfig, new: RunConfig, only: str | None = None) -> list[str]:
    """`section.key: old -> new` for each difference.

    Only keys that match `only`; without it, all keys but ALLOWED_SETTINGS.
    """
    before, after = resume_rules.flatten_config(asdict(old)), resume_rules.flatten_config(asdict(new))
    keys = [key for key in after if before.get(key) != after[key]]
    named = [
        key
        for key in keys
        if (fnmatchcase(key, only) if only else not any(fnmatchcase(key, p) for p in ALLOWED_SETTINGS))
    ]
    return [f"{key}: {json.dumps(before.get(key))} -> {json.dumps(after[key])}" for key in named]


def _refuse_differences(differences: Sequence[str], why: str, file: str | None = None) -> None:
    """file: the user's --config, which may lack what the command line of the training named."""
    other = f", or --config {file} if it is another training's" if file else ""
    if differences:
        raise Failure(
            f"{differences[0].partition(':')[0]} {why}",
            found="; ".join(differences),
            expected=f"settings of {', '.join(ALLOWED_SETTINGS)}",
            fix=f"leave it out{other}: all else is as the checkpoint was trained",
            code=ExitCode.USAGE,
        )


def input_changes(own: RunConfig, config: RunConfig) -> tuple[str, ...]:
    """`section.key: old -> new` for each setting that changes the model's input for an image."""
    changes = resume_rules.changed_keys(asdict(own), asdict(config))
    return tuple(
        f"{key}: {json.dumps(old)} -> {json.dumps(new)}"
        for key, (old, new) in changes.items()
        if (key.startswith("data.") and key not in DATA_SETTINGS_UNSEEN_BY_MODEL) or key == "eval.image_size"
    )


def _no_checkpoint_failure(name: str, problem: str) -> Failure:
    return Failure(
        f"{name} is not a checkpoint",
        found=problem,
        expected="RUN/checkpoints/step-N, or a run's folder",
        fix=files.did_you_mean(Path(name))
        + f"`{shell_command('train where --config FILE')}` prints the folder of a run",
        code=ExitCode.NO_INPUT,
    )


def _exported_model_failure(name: str) -> Failure:
    return Failure(
        f"{name} is an exported model, not a run",
        found=f"{EXPORT_FILE} in it, and no checkpoint",
        expected="RUN/checkpoints/step-N, or a run's folder",
        fix="name the run that it was exported from; or see what it says of images: "
        + shell_command("train predict", name, "IMAGES"),
        code=ExitCode.NO_INPUT,
    )


MAX_LISTED_CLASSES: Final = 8  # class names in one line
SEEN_IMAGES_CAVEAT: Final = "the result does not tell how new images are answered"


EvaluatedSplit = Literal["validation", "test", "all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetFacts:
    """The data of a training or an evaluation, as in `statistics.data_fingerprint`.

    training, validation, test: the samples of each split. digests: of the splits, as far as they
    are known. task: what the labels are; target: of numbers, the scale that the model was trained with.
    has_own_validation: of data that was opened, as `DataSplits.has_own_validation`.
    """

    data: DataConfig
    classes: tuple[str, ...]
    training: int
    validation: int
    test: int = 0
    digests: Mapping[str, str] = field(default_factory=dict)
    task: str = CLASSIFICATION
    target: TargetScale | None = None
    has_own_validation: bool = False

    @property
    def sizes(self) -> Mapping[str, int]:
        """The images of each split, by its name in the digests."""
        training, validation = resume_rules.SPLIT_NAMES
        return {training: self.training, validation: self.validation, resume_rules.TEST_KEY: self.test}

    @property
    def images(self) -> int:
        """The images of all splits."""
        return sum(self.sizes.values())

    def measured(self, *, split: EvaluatedSplit) -> str:
        """The evaluated images in words."""
        count = f"{pluralize(self.images, 'image')} of {self.location}"
        sizes = {"validation": self.validation, "test": self.test}
        return f"all {count}" if split == "all" else f"the {sizes[split]:,} {split} images of {count}"

    @property
    def source(self) -> DataSource:
        """The registry's entry for data.name."""
        return registry.find_source(self.data.name)

    @property
    def location(self) -> str:
        """data.root if the images are files, otherwise data.name."""
        return self.data.root if self.source.origin == "files" else self.data.name


def training_dataset_facts(chosen: CommittedCheckpoint) -> DatasetFacts | None:
    """The data that the checkpoint was trained on; None if it has no record of it.

    Raises Failure (DATA) for a damaged checkpoint.
    """
    recorded, data = store.read_state(chosen).get("data") or {}, load_training_config(chosen).data
    try:
        training, validation = (int(recorded[key]) for key in resume_rules.SPLIT_NAMES)
        digests = {str(side): str(digest) for side, digest in recorded.get(resume_rules.DIGESTS_KEY, {}).items()}
        return DatasetFacts(
            data=data,
            classes=recorded_classes({"classes": recorded["classes"]}),
            training=training,
            validation=validation,
            test=int(recorded.get(resume_rules.TEST_KEY, 0)),
            digests=digests,
            **recorded_task(recorded),
        )
    except (
        LookupError,
        TypeError,
        ValueError,
        OverflowError,
        AttributeError,
    ):  # JSON's Infinity is no number of images
        return None


def recorded_thresholds(state: Mapping[str, Any], classes: int, *, flip: bool) -> tuple[float, ...] | None:
    """The thresholds of several labels, of the evaluation of exactly these weights; None without one.

    flip: as eval.flip of the outputs that they are for, as far as both were measured.

    Raises:
        Failure: DATA for what is no threshold for each of so many classes.
    """
    try:
        progress = state.get("state") or {}
        measured = progress.get("result") if flip else progress.get("unflipped") or progress.get("result")
        result = measured if progress.get("evaluated") == progress.get("step") else None
        return parse_thresholds((result or {}).get("thresholds"), classes)
    except files.MALFORMED_ERRORS as error:
        raise Failure(
            "the checkpoint does not say which labels its scores give",
            found=f"{type(error).__name__}: {error}",
            fix=OTHER_CHECKPOINT_FIX,
            code=ExitCode.DATA,
        ) from error


def label_thresholds(state: Mapping[str, Any], config: EvalConfig, classes: int) -> tuple[float, ...] | None:
    """The thresholds of several labels: of eval.threshold, if it is another one than the training's; else as
    `recorded_thresholds`, and for weights that were not evaluated of eval.threshold. None: auto, of what is measured.

    Raises:
        Failure: as `recorded_thresholds`.
    """
    is_changed = config.threshold != trained_threshold(state)
    recorded = None if is_changed else recorded_thresholds(state, classes, flip=config.flip)
    return recorded if recorded or config.threshold == AUTO else (config.threshold,) * classes


def trained_threshold(state: Mapping[str, Any]) -> float | str:
    """eval.threshold of the training. state: whose configuration `load_training_config` has read."""
    recorded: Mapping[str, float | str] = (state.get("config") or {}).get("eval") or {}
    return recorded.get("threshold", EvalConfig().threshold)


def parse_thresholds(recorded: Any, classes: int) -> tuple[float, ...] | None:
    """The thresholds in a checkpoint or an export; None if there are none. Raises ValueError."""
    if recorded is None:
        return None
    rule = Rule(
        holds=lambda values: (
            isinstance(values, list)
            and len(values) == classes
            and all(FINITE.holds(value) and 0 <= value <= 1 for value in values)
        ),
        expected=f"{classes:,} numbers from 0 to 1",
    )
    check_fields({"thresholds": recorded}, {"thresholds": rule})
    return tuple(map(float, recorded))


def recorded_classes(recorded: Mapping[str, Any]) -> tuple[str, ...]:
    """The classes of a checkpoint's record of its data; older ones have none. Raises ValueError: they are no texts."""
    check_fields({"classes": recorded.get("classes") or [""]}, {"classes": TEXTS}, "data.")
    return tuple(map(normalize_name, recorded.get("classes") or ()))


SCALE_FIELDS: Final = {
    "mean": FINITE,
    "std": Rule(holds=lambda std: FINITE.holds(std) and std > 0, expected="a finite number above 0"),
}


def recorded_task(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """The task and the target of a checkpoint's record of its data, or of an export; older ones have none.

    Raises:
        TypeError, ValueError: if no training wrote the record.
    """
    fields = {"task": CLASSIFICATION, resume_rules.TARGET_KEY: None, **recorded}
    check_fields(fields, {"task": one_of(*TASKS)})
    task, target = fields["task"], fields[resume_rules.TARGET_KEY]
    if TASKS[task].has_classes and target is None:
        return {"task": task, "target": None}
    check_fields(target, SCALE_FIELDS, f"{resume_rules.TARGET_KEY}.")
    return {"task": task, "target": TargetScale(mean=float(target["mean"]), std=float(target["std"]))}


def without_class_count(data: DataConfig, trained: DatasetFacts | None) -> DataConfig:
    """`data` without the number of class folders, if the training is known and the classes have names.

    Then the names are compared, which is stricter.
    """
    source = registry.find_source(data.name)
    named = source.has_class_names and "classes" not in source.keys
    return replace(data, classes=DataConfig().classes) if trained and named else data


def refuse_other_classes(trained: DatasetFacts, evaluated: DatasetFacts) -> None:
    """Refuse data with other classes than the training, or in another order.

    The model predicts a class index, which would stand for another class. evaluated: with the class
    indices of `evaluate.map_to_training_classes`.

    Raises:
        Failure: DATA, with the names of both.
    """
    if trained.task != evaluated.task:
        raise Failure(
            "the labels of the data are of another task than the model was trained on",
            found=f"{evaluated.task} (in {evaluated.location})",
            expected=f"{trained.task} (of the training)",
            fix=f"measure it on data with such labels: data.task={trained.task}, data.columns",
            code=ExitCode.DATA,
        )
    if not TASKS[trained.task].has_classes:
        return  # a number has no classes, and its column any name
    if trained.classes == evaluated.classes or _match_by_number(trained, evaluated):
        return
    where = "data.classes, data.frames" if evaluated.source.origin == "computed" else "data.root, data.name"
    alike = describe_look_alikes({*trained.classes} ^ {*evaluated.classes}, "; ")
    raise Failure(
        "the data has other classes than the model was trained on",
        found=f"{_describe_classes(evaluated.classes, trained.classes)} (in {evaluated.location}){alike}",
        expected=f"{_describe_classes(trained.classes, evaluated.classes)} (of the training)",
        fix=f"measure it on data that has the training's classes, by these names: {where}; or train on this data, with "
        "another run.name",
        code=ExitCode.DATA,
    )


def evaluation_caveats(
    trained: DatasetFacts,
    evaluated: DatasetFacts,
    *,
    split: EvaluatedSplit,
    find_copies: Callable[[], str | None] = lambda: None,
) -> tuple[str, ...]:
    """Reasons why the metrics may mislead, a line each.

    split: which images are evaluated. find_copies: the caveat of images that are copies of the training's, which lists
    the training's files; it is called where nothing else says that the model may have been trained on the images.
    """
    caveats = (_classes_caveat(trained, evaluated), _seen_images_caveat(trained, evaluated, split) or find_copies())
    return tuple(filter(None, caveats))


def _match_by_number(trained: DatasetFacts, evaluated: DatasetFacts) -> bool:
    """Whether both have the same number of classes, and one of them has no class names, as arrays."""
    nameless = [
        not facts.source.has_class_names and facts.classes == tuple(map(str, range(len(facts.classes))))
        for facts in (trained, evaluated)
    ]
    return any(nameless) and len(trained.classes) == len(evaluated.classes)


def _classes_caveat(trained: DatasetFacts, evaluated: DatasetFacts) -> str | None:
    """The caveat if classes are compared by number, or if the data has no image of some of the training's."""
    if trained.classes == evaluated.classes:
        return None
    if _match_by_number(trained, evaluated):
        return (
            "classes are compared by number, without names on one side: "
            f"{_join_class_names(evaluated.classes)} of the data are taken for "
            f"{_join_class_names(trained.classes)} of the training"
        )
    if not TASKS[trained.task].has_classes:
        return None
    available = set(evaluated.classes)
    missed = [name for name in trained.classes if name not in available]
    count = f"{len(evaluated.classes):,} of the training's {len(trained.classes):,} classes"
    return f"{count} are measured: there is no image of {_join_class_names(missed)} in {evaluated.location}"


def _seen_images_caveat(trained: DatasetFacts, evaluated: DatasetFacts, split: EvaluatedSplit) -> str | None:
    """The caveat if the model was, or may have been, trained on evaluated images.

    A checkpoint records the number of its samples, and digests that tell whether they changed. It
    does not record which samples were in which split.
    """
    is_same = {
        part: size == evaluated.sizes[part] and not _digests_differ(trained, evaluated, part)
        for part, size in trained.sizes.items()
    }
    if split == "test":
        if is_same["training"] and is_same[resume_rules.TEST_KEY]:
            return None
        before = f"{trained.test:,} test images and {trained.training:,} training images"
        return f"the splits are not the training's (it had {before}): some of these may have been trained on"
    all_images = split == "all"
    is_same_split = (
        all(is_same[part] for part in resume_rules.SPLIT_NAMES) and trained.data.group == evaluated.data.group
    )
    # A separate validation folder may change if the training split is the same; only the disk tells of such a folder.
    if not all_images and (is_same_split or (is_same["training"] and evaluated.has_own_validation)):
        return None
    if _data_location(trained.data) != _data_location(evaluated.data) and not _are_same_files(trained, evaluated):
        return _other_location_caveat(trained, evaluated, all_images=all_images)
    if not all_images and evaluated.has_own_validation:
        return _moved_images_caveat(trained, evaluated)
    measured, why = evaluated.images, SEEN_IMAGES_CAVEAT
    if not all_images:
        change = f"it had {trained.validation:,} of {trained.images:,} images for validation"
        if trained.images == evaluated.images and _files_changed(trained, evaluated):
            change = "files were added, removed or renamed since"
        measured, why = evaluated.validation, f"the split is not the training's ({change})"
    if (count := _count_seen_images(trained, evaluated, all_images=all_images)) is not None:
        return f"{count:,} of these {measured:,} images were trained on: {why}" if count else None
    # Only the author of other data knows how it is split.
    sure = "are" if evaluated.source.has_class_names else "may be"
    return f"images that the model was trained on {sure} among these {measured:,}: {why}"


def _digests_differ(trained: DatasetFacts, evaluated: DatasetFacts, part: str) -> bool:
    """Whether both digests of this part are known, and differ.

    Digests of different data sources cannot be compared.
    """
    before, after = trained.digests.get(part), evaluated.digests.get(part)
    return trained.data.name == evaluated.data.name and None not in (before, after) and before != after


def _are_same_files(trained: DatasetFacts, evaluated: DatasetFacts) -> bool:
    """Whether these are certainly the same files, in any folder.

    Arrays are not compared: different arrays may have the same digest.
    """
    parts = ("all",) if "all" in trained.digests else resume_rules.SPLIT_NAMES
    same = (trained.digests.get(part, "?") == evaluated.digests.get(part) for part in parts)
    comparable = trained.data.name == evaluated.data.name and evaluated.source.hashes_paths
    return comparable and all(same)


def _files_changed(trained: DatasetFacts, evaluated: DatasetFacts) -> bool:
    """Whether files were added, removed or renamed since, even if their number is the same."""
    if "all" in trained.digests and "all" in evaluated.digests:
        return _digests_differ(trained, evaluated, "all")
    splits = [(facts.data.val_fraction, facts.data.group) for facts in (trained, evaluated)]
    return splits[0] == splits[1] and any(
        _digests_differ(trained, evaluated, side) for side in resume_rules.SPLIT_NAMES
    )


def _count_seen_images(trained: DatasetFacts, evaluated: DatasetFacts, *, all_images: bool) -> int | None:
    """The number of evaluated images that were trained on; None if it is unknown."""
    if evaluated.source.origin == "computed":  # the last indices are the validation split
        return max(0, min(trained.training, evaluated.images) - (0 if all_images else evaluated.training))
    if trained.images != evaluated.images or _files_changed(trained, evaluated):
        return None
    if all_images:
        return trained.training
    if trained.data.group or evaluated.data.group or evaluated.source.origin == "factory":
        return None
    return max(0, evaluated.validation - trained.validation)  # a smaller split is part of a larger one


def _moved_images_caveat(trained: DatasetFacts, evaluated: DatasetFacts) -> str | None:
    """The caveat for separate folders, if training images may have moved to the validation folder.

    Images that were added to the training folder do no harm.
    """
    if evaluated.training > trained.training:
        return None
    if evaluated.training == trained.training:
        sides = "the training split has other files, or other names, than in the training"
    else:
        sides = f"of {trained.training:,} images in the training split {evaluated.training:,} are left"
    return f"{sides}: if they were moved to the validation split, some of these were trained on"


def _other_location_caveat(trained: DatasetFacts, evaluated: DatasetFacts, *, all_images: bool) -> str | None:
    """The caveat for data in another folder than the training's."""
    if _data_location(evaluated.data) in [
        _data_location(replace(trained.data, root=folder)) for folder in _possible_training_folders(trained.data.root)
    ]:
        return f"these are the images that the model was trained on: {SEEN_IMAGES_CAVEAT}"
    if all_images and (trained.training, trained.validation) == (evaluated.training, evaluated.validation):
        return f"as many images as in the training: if they are its own, {trained.training:,} of them were trained on"
    if all_images or evaluated.has_own_validation:
        return None
    return (
        f"{evaluated.validation:,} of the {evaluated.images:,} images in {evaluated.location} are measured, "
        "by a split of their own: --all measures all; if the training's images are among them, "
        "some of these were trained on"
    )


def _possible_training_folders(root: str) -> list[str]:
    """The folders in `root` that may hold the training images, whether they still exist or not."""
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
    """The classes in words: their number, the first ones, and those that `others` lacks.

    A long list is cut, so those would not be in it.
    """
    other_names = set(others)
    only = [name for name in classes if name not in other_names]
    more = f"; only here: {_join_class_names(only)}" if only and len(classes) > MAX_LISTED_CLASSES else ""
    return f"{len(classes):,}: {_join_class_names(classes)}{more}"


def _join_class_names(classes: Sequence[str]) -> str:
    return list_some(classes, MAX_LISTED_CLASSES, shorten_name)
