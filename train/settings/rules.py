"""What a value may be beyond its type: known names, ranges, and the keys whose feature this version does not have."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from re import _parser  # type: ignore[attr-defined]  # Python's own: sre_parse, until 3.11
from typing import Any

from train.settings import names


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A test of one value, and what it asks for in words. `auto` and null always pass."""

    holds: Callable[[Any], bool]
    expected: str


def known(*some: str, factory: bool = False) -> Rule:
    listed = ", ".join(some[:SHOWN]) + (f" and {len(some) - SHOWN} more" if len(some) > SHOWN else "")
    expected = f"one of {listed}" + (", or package.module:factory" if factory else "")
    return Rule(holds=lambda value: value in some or (factory and names.is_factory(value)), expected=expected)


def at_least(least: int) -> Rule:
    return Rule(holds=lambda value: value >= least, expected=f"{least} or more")


def between(least: int, most: int) -> Rule:
    return Rule(holds=lambda value: least <= value <= most, expected=f"from {least} to {most}")


SHOWN = 12  # names in one message
ABOVE_ZERO = Rule(holds=lambda value: value > 0, expected="more than 0")
RATE = Rule(holds=lambda value: 0 < value <= 1e6, expected="more than 0, up to 1000000")  # products stay finite
FRACTION = Rule(holds=lambda value: 0 <= value < 1, expected="0 or more, and less than 1")
FOLDER_NAME = Rule(
    holds=lambda name: name == name.strip() and name not in ("", ".", "..") and "/" not in name and len(name) < 200,
    expected="a plain folder name: no slash, not `..`, no space at its ends, shorter than 200 characters",
)
# A ~ that no shell has expanded would become a folder of that name.
PATH = Rule(holds=lambda path: path.strip() != "" and path[0] != "~", expected="a path that is not empty, without ~")
# It stands in config.yaml and in logs. Names of files are put behind it: a query could not be used either.
URL = Rule(
    holds=lambda url: (
        url.startswith(("http://", "https://", "file:///"))
        and not set(" ?#") & set(url)
        and "@" not in url.partition("://")[2].partition("/")[0]
    ),
    expected="an address that begins with http://, https:// or file:///, without user, password and query string",
)


def is_pattern(text: str) -> bool:
    try:
        return re.compile(text).pattern != "" and not _explodes(_parser.parse(text))
    except (re.error, RecursionError, OverflowError):
        return False


FEW = 9  # times that a group with a choice inside may be repeated: 2**9 ways to go through it
CHOICES = (_parser.MAX_REPEAT, _parser.MIN_REPEAT, _parser.BRANCH)


def _explodes(parsed: Iterable[Any], repeated: bool = False) -> bool:
    """Whether `(a+)+` or `(a|aa)*` is inside: a path that does not match would be searched for years."""
    for kind, argument in parsed:
        loop = kind in CHOICES[:2]
        varies = kind is _parser.BRANCH or (loop and argument[0] != argument[1])
        if varies and repeated:
            return True
        often = repeated or (loop and argument[1] > FEW)
        if any(_explodes(inner, often) for inner in _parts(argument)):
            return True
    return False


def _parts(argument: Any) -> list[Any]:
    """The patterns inside one part of a pattern."""
    if isinstance(argument, _parser.SubPattern):
        return [argument]
    return [part for one in argument for part in _parts(one)] if isinstance(argument, (tuple, list)) else []


PATTERN = Rule(holds=is_pattern, expected="a regular expression of Python's, without a repeat or a choice in a repeat")
WEIGHTS = Rule(
    holds=lambda value: value in ("none", "balanced") or (all(0 <= one <= 1e6 for one in value) and any(value)),
    expected="none, balanced, or one number for each class: from 0 to 1000000, not all 0",
)


def go_together(augment: str | list[str]) -> bool:
    """Whether no word of data.augment says what another one says, or its contrary."""
    one = [augment] if isinstance(augment, str) else augment
    acts = {"standard": ("shift", "mirror"), "translate": ("shift",)}
    said = [act for word in one for act in acts.get(word, (word,))]
    return len(said) == len(set(said)) > 0 and (one == ["none"] or "none" not in one)


AUGMENT = Rule(
    holds=go_together,
    expected="none, or what goes together: one of standard and translate, mirror where there is no standard, cutout",
)

MOST_STEPS = 200  # a timeline of more fills the memory of who writes it, and no browser opens it
STEPS = Rule(
    holds=lambda value: len(value) == 2 and 1 <= value[0] <= value[1] < value[0] + MOST_STEPS,
    expected=f"[first, last], counted from 1, both recorded: at most {MOST_STEPS} steps",
)

# The names that this version knows. Their first is the quickstart's.
NAMES: dict[str, tuple[str, ...]] = {
    "data.name": names.DATA,
    "model.name": names.MODELS,
    "optim.name": names.OPTIMIZERS + names.TORCH_OPTIMIZERS,
    "optim.schedule": names.SCHEDULES,
    "eval.metric": names.METRICS,
}
# Where package.module:factory of the user's own may stand instead of a name.
FACTORIES = ("data.name", "model.name")

RULES: dict[str, Rule] = {key: known(*some, factory=key in FACTORIES) for key, some in NAMES.items()} | {
    "run.name": FOLDER_NAME,
    "run.output_dir": PATH,
    "run.seed": between(0, 2**32 - 1),  # what numpy's and torch's generators both take
    "launch.procs_per_node": between(1, 1024),
    "launch.timeouts.start": ABOVE_ZERO,
    "launch.timeouts.step": ABOVE_ZERO,
    "launch.timeouts.save": ABOVE_ZERO,
    "launch.timeouts.evaluation": ABOVE_ZERO,
    "launch.timeouts.data": ABOVE_ZERO,
    "launch.max_restarts": between(0, 1000),
    "data.root": PATH,
    "data.image_size": between(8, 4096),
    "data.classes": between(2, 1_000_000),
    "data.samples": between(1, 10**9),
    "data.mirror": URL,
    "data.frames": between(2, 4096),
    "data.imbalance": between(1, 1_000_000),
    "data.val_fraction": FRACTION,
    "data.group": PATTERN,
    "data.augment": AUGMENT,
    "data.max_bad_images": at_least(0),
    "data.workers": between(0, 1024),
    "data.cache": PATH,
    "model.weights": PATH,
    "optim.lr": RATE,
    "optim.base_batch_size": at_least(1),
    "optim.momentum": FRACTION,
    "optim.weight_decay": between(0, 1_000_000),
    "optim.warmup_epochs": between(0, 1_000_000),
    "optim.label_smoothing": FRACTION,
    "optim.class_weights": WEIGHTS,
    "train.epochs": between(1, 1_000_000),
    "train.max_steps": at_least(1),
    "train.global_batch_size": between(1, 10**6),
    "train.micro_batch_size": between(1, 10**6),
    "train.clip_grad_norm": ABOVE_ZERO,
    "train.compile": Rule(holds=lambda value: value is not True, expected="false, default or reduce-overhead"),
    "train.bucket_cap_mb": between(1, 1024),
    "train.ema_decay": FRACTION,
    "train.check_replicas_every_steps": at_least(1),
    "eval.every_epochs": at_least(1),
    "eval.batch_size": at_least(1),
    "eval.patience": at_least(1),
    "checkpoint.every_steps": at_least(1),
    "checkpoint.every_minutes": ABOVE_ZERO,
    "checkpoint.keep": at_least(1),
    "log.every_steps": at_least(1),
    "log.gpu_every_seconds": ABOVE_ZERO,
    "profile.steps": STEPS,
}

# Promised names without their feature: accepted at the default, so that files written now stay valid.
NOT_YET = frozenset(
    [
        "log.trackers",
    ]
)


def broken(key: str, value: Any) -> str | None:
    """What `key` asks for, where `value` is not that."""
    if not finite(value):
        return "finite numbers"
    if not printable(value):
        return "text without control characters"
    rule = RULES.get(key)
    return None if rule is None or value in (None, "auto") or rule.holds(value) else rule.expected


def finite(value: Any) -> bool:
    """Whether no number inside is infinite or NaN, which no setting means and no JSON can hold."""
    return all(math.isfinite(leaf) for leaf in leaves(value) if isinstance(leaf, float))


def printable(value: Any) -> bool:
    """Whether all text inside can be shown on one line and written as UTF-8."""
    return all(leaf.isprintable() for leaf in leaves(value) if isinstance(leaf, str))


def leaves(value: Any) -> list[Any]:
    """All scalars inside lists and dicts, keys included."""
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in (key, *leaves(inner))]
    if isinstance(value, list):
        return [leaf for inner in value for leaf in leaves(inner)]
    return [value]
