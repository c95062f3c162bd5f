"""These rules decide which changes of the config or the data an unfinished run may resume with."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from entrypoint import ExitCode, Failure
from train.config import checks
from train.config.schema import RunConfig
from train.names import normalize_name
from train.tasks import CLASSIFICATION

# The keys that may differ between two starts of one run, and why. Any other change makes it a different
# training.
KEYS_THAT_MAY_DIFFER: dict[str, str] = {
    "run.name": "what the folder is called",
    "run.output_dir": "where the folder is: scratch file systems are moved and mounted elsewhere",
    "launch.*": "which processes compute: the global batch and all randomness do not depend on them",
    "data.root": "where the same images are: another node, another mount",
    "data.images": "where the images of a table are",
    "data.download": "how the images were fetched",
    "data.mirror": "where they were fetched from",
    "data.max_bad_images": "how many broken files are tolerated, not which",
    "data.cache": "a faster copy of the same images",
    "data.stage": "so is this",
    "data.loader": "who reads the images: randomness belongs to the sample, not to the reader",
    "data.workers": "how many read the images",
    "train.epochs": "more epochs continue a run",
    "train.max_steps": "so do more steps",
    "train.micro_batch_size": "a part of the global batch: smaller after running out of memory, derived when auto",
    "train.compile": "the same mathematics with other rounding, as on another number of ranks",
    "train.activation_checkpointing": "the same numbers, computed again instead of kept",
    "train.bucket_cap_mb": "the size of a gradient exchange: with three or more ranks it changes the rounding",
    "train.spike": "what happens if the loss jumps",
    "train.check_replicas_every_steps": "comparing replicas does not change the training",
    "eval.every_epochs": "evaluating does not change the training",
    "eval.batch_size": "nor does the batch size of an evaluation: the result is exact",
    "eval.target": "each evaluation decides again whether the run ends",
    "eval.threshold": "from which probability on a label counts changes no weight",
    "eval.patience": "so is this",
    "eval.early_stop": "and this: the evaluations without improvement are counted in any case",
    "checkpoint.*": "how often the run is saved",
    "log.*": "what is written about it",
    "profile.*": "what is measured about it",
}
# These keys may not differ in bitwise mode: they decide the leaves of the tree that adds up gradients.
KEYS_FIXED_BY_BITWISE: Final = ("train.micro_batch_size",)
DIGESTS_KEY: Final = "digests"
TARGET_KEY: Final = "target"  # the scale of numbers, which follows from the labels
TEST_KEY: Final = "test"  # of the test split; a run trains on the same images whatever is in it
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
    an older version did not have counts as its default.
    """
    defaults = flatten_config(asdict(RunConfig()))
    old, new = defaults | flatten_config(saved), defaults | flatten_config(current)
    fixed = KEYS_FIXED_BY_BITWISE if checks.BITWISE in (old["train.reproducible"], new["train.reproducible"]) else ()
    keys = [key for key in {**new, **old} if key in fixed or not _may_differ(key)]
    return {key: (old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)}


def _may_differ(key: str) -> bool:
    return any(fnmatchcase(key, pattern) for pattern in KEYS_THAT_MAY_DIFFER)


def refuse_config_changes(saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Refuse a config that cannot resume the run with the `saved` config.

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
        fix="undo the change, give the new training another run.name, or start over with checkpoint.resume=never",
        code=ExitCode.DATA,
    )


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
    if (side := first_changed_split(before.get(DIGESTS_KEY) or {}, current.get(DIGESTS_KEY) or {})) is not None:
        name = SPLIT_NAMES[side]
        change = f"{name}: {current[side]} as before, but others, under other names or in another order"
        raise _changed_data_failure(change, f"{name}: the same {before[side]}", run)


def first_changed_split(before: Mapping[str, str], current: Mapping[str, str]) -> str | None:
    """The first split whose digests are known in both, and differ."""
    return next(
        (side for side in SPLIT_NAMES if side in before and side in current and before[side] != current[side]), None
    )


def _changed_data_failure(change: str, expected: str, run: Path) -> Failure:
    return Failure(
        "the data is not what this run began with",
        found=change,
        expected=expected,
        fix="give it the same files; or start over with checkpoint.resume=never; or start a new run from its weights: "
        f"{shlex.quote(f'model.weights={run}')} and another run.name, and {UNSEEN_VALIDATION_FIX}",
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
