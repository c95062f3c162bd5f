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

# What may differ between two starts of one run, and why. Everything else would make it another training.
KEYS_THAT_MAY_DIFFER: dict[str, str] = {
    "run.name": "what the folder is called",
    "run.output_dir": "where the folder lies: scratch is moved and mounted elsewhere",
    "launch.*": "which processes compute: the global batch and all randomness do not depend on them",
    "data.root": "where the same images lie: another node, another mount",
    "data.download": "how the images came there",
    "data.mirror": "from where",
    "data.max_bad_images": "how many broken files are tolerated, not which",
    "data.cache": "a faster copy of the same images",
    "data.loader": "who reads the images: randomness belongs to the sample, not to the reader",
    "data.workers": "how many read the images",
    "train.epochs": "more epochs continue a run",
    "train.max_steps": "so do more steps",
    "train.micro_batch_size": "a part of the global batch: smaller after running out of memory, derived when auto",
    "train.compile": "the same mathematics, rounded otherwise, as on another number of ranks",
    "train.bucket_cap_mb": "in which portions ranks exchange gradients: with three or more it rounds otherwise",
    "train.spike": "what is done about a loss that jumps, if ever one does",
    "train.check_replicas_every_steps": "looking does not change the training",
    "eval.every_epochs": "measuring does not change the training",
    "eval.batch_size": "nor does the size of the pieces it is done in: the result is exact",
    "eval.target": "when to end is asked anew at each evaluation",
    "eval.patience": "so is this",
    "checkpoint.*": "how often the run is saved",
    "log.*": "what is written about it",
    "profile.*": "what is measured about it",
}
# What may not, after all, where the bits must stay: the leaves of the tree that gradients are added up in.
KEYS_FIXED_BY_BITWISE: Final = ("train.micro_batch_size",)
DIGESTS_KEY: Final = "digests"
SPLIT_NAMES: Final = ("training", "held_out")
UNSEEN_VALIDATION_FIX: Final = (
    "held-out images in a folder of their own that it was not trained on (data.root/train, data.root/val): what "
    "data.val_fraction holds out is drawn anew"
)


def changed_keys(saved: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """`section.key` -> (saved value, value now) for each difference that makes it another training.

    Both are configurations as nested mappings (`dataclasses.asdict`, or that read back from JSON). A key that an
    older version did not know counts as its default.
    """
    defaults = flatten_config(asdict(RunConfig()))
    old, new = defaults | flatten_config(saved), defaults | flatten_config(now)
    fixed = KEYS_FIXED_BY_BITWISE if checks.BITWISE in (old["train.reproducible"], new["train.reproducible"]) else ()
    keys = [key for key in {**new, **old} if key in fixed or not _may_differ(key)]
    return {key: (old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)}


def _may_differ(key: str) -> bool:
    return any(fnmatchcase(key, pattern) for pattern in KEYS_THAT_MAY_DIFFER)


def refuse_config_changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises Failure (DATA), listing the differences, when `now` cannot continue what `saved` began."""
    differences = changed_keys(saved, now)
    if not differences:
        return
    listed = "; ".join(f"{key}: {_format_json(old)} -> {_format_json(new)}" for key, (old, new) in differences.items())
    raise Failure(
        "the configuration is not the one that this run began with",
        found=listed,
        fix="undo the change, give the new training another run.name, or start over with checkpoint.resume=never",
        code=ExitCode.DATA,
    )


def refuse_data_changes(before: Mapping[str, Any] | None, now: Mapping[str, Any], run: Path) -> None:
    """Files that came, went or were renamed would give each sample another number, and the run another order and split.

    Args:
        before: what a checkpoint says of the data: classes, how many samples each side has, and their digests; None of
            a version that did not, and without digests of one that counted only. now: the same, as far as it is known.
        run: the run's folder.

    Raises:
        Failure: DATA, naming the first of them that differs.
    """
    if before is None:
        return
    if (key := next((key for key in now if key != DIGESTS_KEY and before[key] != now[key]), None)) is not None:
        raise _changed_data_failure(f"{key}: {_shorten(now[key])}", f"{key}: {_shorten(before[key])}", run)
    if (side := first_changed_split(before.get(DIGESTS_KEY) or {}, now.get(DIGESTS_KEY) or {})) is not None:
        found = f"{side}: {now[side]} as before, but others, under other names or in another order"
        raise _changed_data_failure(found, f"{side}: the same {before[side]}", run)


def first_changed_split(before: Mapping[str, str], now: Mapping[str, str]) -> str | None:
    """The first side of which both digests are known, and differ."""
    return next((side for side in SPLIT_NAMES if side in before and side in now and before[side] != now[side]), None)


def _changed_data_failure(found: str, expected: str, run: Path) -> Failure:
    return Failure(
        "the data is not what this run began with",
        found=found,
        expected=expected,
        fix="give it the same files; or start over with checkpoint.resume=never; or begin anew from its weights: "
        f"{shlex.quote(f'model.weights={run}')} and another run.name, and {UNSEEN_VALIDATION_FIX}",
        code=ExitCode.DATA,
    )


def _shorten(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def flatten_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """By `section.key`, as JSON would give it back (lists for tuples, text for keys)."""
    plain = json.loads(json.dumps(config))
    return {f"{section}.{key}": value for section, keys in plain.items() for key, value in keys.items()}


def _format_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
