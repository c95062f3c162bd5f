"""These rules decide which changes of the config or the data an unfinished run may resume with."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from entrypoint import ExitCode, Failure
from train.config import checks
from train.config.load import format_value
from train.config.optimizers import usual_learning_rate
from train.config.schema import KEYS, RunConfig, key_says
from train.names import normalize_name
from train.tasks import AUTO, CLASSIFICATION

# These keys may not differ in bitwise mode: they decide the leaves of the tree that adds up gradients.
KEYS_FIXED_BY_BITWISE: Final = ("train.micro_batch_size",)
DIGESTS_KEY: Final = "digests"
TARGET_KEY: Final = "target"  # the scale of numbers, which follows from the labels
TEST_KEY: Final = "test"  # of the test split; a run trains on the same images whatever is in it
ORDER_KEY, WEIGHTS_KEY = "order", "weights"
# The digest of what else decides the training on the same samples -> its change in words.
TRAINING_DIGESTS: Final = {
    ORDER_KEY: "the same images in other shard files, from which they come in another order",
    WEIGHTS_KEY: "the same images, which count with other weights",
}
UNCOMPARED_KEYS: Final = (DIGESTS_KEY, TARGET_KEY, TEST_KEY)
# The key of a split in a checkpoint -> its name in messages.
SPLIT_NAMES: Final = {"training": "training", "held_out": "validation"}
UNSEEN_VALIDATION_FIX: Final = (
    "validation images that it was not trained on, in a separate folder (data.root/train, data.root/val): "
    "data.val_fraction would draw a new split"
)


def changed_keys(saved: Mapping[str, Any], current: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """`section.key` -> (saved value, current value) for each difference that makes it a different training.

    Both are configurations as nested mappings (`dataclasses.asdict`, or the same from JSON). A key that
    an older version did not have counts as its default, and its `optim.lr: auto` as the rate that it took.
    """
    defaults = flatten_config(asdict(RunConfig()))
    old, new = (_with_learning_rate(defaults | flatten_config(config)) for config in (saved, current))
    fixed = KEYS_FIXED_BY_BITWISE if checks.BITWISE in (old["train.reproducible"], new["train.reproducible"]) else ()
    keys = [key for key in {**new, **old} if key in fixed or not key_says(key, "may_differ")]
    return {key: (old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)}


def _with_learning_rate(config: dict[str, Any]) -> dict[str, Any]:
    """The config with a number for `optim.lr: auto`, which earlier versions recorded: their rule knew no task."""
    if config["optim.lr"] != AUTO:
        return config
    rate = usual_learning_rate(
        config["optim.name"],
        config["optim.lr_scaling"],
        config["train.global_batch_size"],
        is_fine_tuning=config["model.weights"] is not None,
        is_regression=False,
    )
    return config | {"optim.lr": rate, "optim.lr_scaling": "none"}


def refuse_config_changes(saved: Mapping[str, Any], current: Mapping[str, Any], run: Path) -> None:
    """Refuse a config that cannot resume the run with the `saved` config. run: its folder.

    Raises:
        Failure: DATA, listing the differences.
    """
    differences = changed_keys(saved, current)
    if not differences:
        return
    listed = "; ".join(f"{key}: {_format_json(old)} -> {_format_json(new)}" for key, (old, new) in differences.items())
    raise Failure(
        "the configuration is not the one that this run began with",
        found=listed,
        fix=_describe_ways_on(differences, run),
        code=ExitCode.DATA,
    )


def _describe_ways_on(differences: Mapping[str, tuple[Any, Any]], run: Path) -> str:
    """The settings to type: for this run, for a new one from its weights unless the network is another, or none."""
    settings = [f"{key}={format_value(old)}" for key, (old, _) in differences.items() if key in KEYS]
    is_complete = len(settings) == len(differences) and not any(setting.endswith("...") for setting in settings)
    undo = f"write {shlex.join(settings)}" if is_complete else "undo the change"
    sections = {key.partition(".")[0] for key in differences}
    draws_split = any(key.startswith("data.") and not key_says(key, "keeps_split") for key in differences)
    unseen = f" and {UNSEEN_VALIDATION_FIX}" if draws_split else ""
    weights = "" if "model" in sections else f", from this run's weights: {new_run_settings(run)}{unseen}"
    return (
        f"to go on with this run, {undo}; for a new training set another run.name{weights}; "
        "or start over with checkpoint.resume=never"
    )


def new_run_settings(run: Path) -> str:
    """The settings of a new run that begins with the weights of `run`."""
    return f"{shlex.quote(f'model.weights={run}')} {shlex.quote(f'run.name={run.name}-2')}"


def refuse_data_changes(before: Mapping[str, Any] | None, current: Mapping[str, Any], run: Path) -> None:
    """Refuse data that changed since the run began.

    Added, removed or renamed files change the numbers of the samples, and so their order and split.

    Args:
        before: the checkpoint's record of the data: classes, the number of samples of each split, and
            their digests. Older versions wrote no digests, or no record at all (None).
        current: the same for the current data, as far as it is known.
        run: the run's folder.

    Raises:
        Failure: DATA, naming the first difference.
    """
    if before is None:
        return
    before = {"task": CLASSIFICATION, **before}
    if before.get("classes"):  # an older version recorded them as the folders' names are written
        before["classes"] = [*map(normalize_name, before["classes"])]
    compared = [key for key in current if key not in UNCOMPARED_KEYS]
    if (key := next((key for key in compared if before[key] != current[key]), None)) is not None:
        name = SPLIT_NAMES.get(key, key)
        raise _changed_data_failure(f"{name}: {_shorten(current[key])}", f"{name}: {_shorten(before[key])}", run)
    digests, recorded = current.get(DIGESTS_KEY) or {}, before.get(DIGESTS_KEY) or {}
    compared = [key for key in (*SPLIT_NAMES, *TRAINING_DIGESTS) if key in recorded and key in digests]
    changed = next((key for key in compared if recorded[key] != digests[key]), None)
    if changed in SPLIT_NAMES:
        name, count = SPLIT_NAMES[changed], current[changed]
        change = f"{name}: {count} as before, but others, under other names or in another order"
        raise _changed_data_failure(change, f"{name}: the same {count}", run)
    if changed is not None:
        raise _changed_data_failure(f"training: {TRAINING_DIGESTS[changed]}", "training: the same", run)


def _changed_data_failure(change: str, expected: str, run: Path) -> Failure:
    return Failure(
        "the data is not what this run began with",
        found=change,
        expected=expected,
        fix="give it the same files; or start over with checkpoint.resume=never; or start a new run from its weights: "
        f"{new_run_settings(run)}, and {UNSEEN_VALIDATION_FIX}",
        code=ExitCode.DATA,
    )


def _shorten(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def flatten_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config as `section.key` -> value, with JSON's types (lists for tuples, text for keys)."""
    plain = json.loads(json.dumps(config))
    return {f"{section}.{key}": value for section, keys in plain.items() for key, value in keys.items()}


def _format_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
