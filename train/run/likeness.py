"""What a checkpoint tells is held against what a training tells: right hashes do not show that a training wrote it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from torch import Tensor
from torch.optim import Optimizer

COUNTS: Final = ("step", "evaluated", "held", "rollbacks")
MOST: Final = 1 << 62  # steps
SUMS: Final = 3  # of a window, for each rank: see record/tally.py


def refuse_odd(told: Mapping[str, Any]) -> None:
    """Raises ValueError, naming the first number that no training has."""
    counts = {name: told.get(name, 0) for name in COUNTS} | {"best_step": told["best_step"] or 0}
    for name, value in counts.items():
        _hold(type(value) is int and 0 <= value < MOST, name, value)
    _hold(_is_number(told["seconds"]) and 0 <= told["seconds"] < math.inf, "seconds", told["seconds"])
    for name in ("result", "best"):
        _hold(told[name] is None or _is_result(told[name]), name, told[name])
    window = told.get("window")
    _hold(window is None or _is_window(window), "window", window)


def groups(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The optimizer's settings as they are now, to be held against those that it gets."""
    return [dict(group) for group in optimizer.param_groups]


def refuse_strange(optimizer: Optimizer, before: Sequence[Mapping[str, Any]]) -> None:
    """Raises ValueError where the optimizer got settings or moments that it could not step with.

    What a class outside torch.optim keeps beside its settings, only that class knows.
    """
    for old, new in zip(before, optimizer.param_groups, strict=True):
        for name in old.keys() - {"params"}:
            _hold(name in new and _alike(old[name], new[name]), f"optimizer {name}", new.get(name))
    inner = getattr(optimizer, "optimizer", optimizer)  # as Accelerate wraps it
    if not type(inner).__module__.startswith("torch.optim"):
        return
    for moments in optimizer.state.values():
        _hold(isinstance(moments, dict), "optimizer state", moments)
        for name, value in moments.items():
            _hold(value is None or isinstance(value, Tensor) or _is_number(value), f"optimizer {name}", value)


def _hold(holds: bool, name: str, value: Any) -> None:
    if not holds:
        raise ValueError(f"{name} is {value!r:.60}")


def _alike(old: Any, new: Any) -> bool:
    """None and switches may come as the other: torch's versions differ there."""
    if isinstance(old, tuple):
        return isinstance(new, tuple) and len(new) == len(old) and all(map(_alike, old, new))
    if isinstance(old, str | list | dict):
        return isinstance(new, type(old))
    return (_is_number(new) or isinstance(new, Tensor)) if _is_number(old) else not isinstance(new, str | list | dict)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_result(told: Any) -> bool:
    if not isinstance(told, dict):
        return False
    recall = told.get("recall") or []
    values = [value for name, value in told.items() if name != "recall"] + (
        recall if isinstance(recall, list) else [recall]
    )
    return isinstance(recall, list) and all(value is None or _is_number(value) for value in values)


def _is_window(told: Any) -> bool:
    if not isinstance(told, dict) or not _is_number(told.get("since")):
        return False
    sums = told.get("sums")
    ranks = sums if isinstance(sums, list) else []
    return bool(ranks) and all(
        isinstance(one, list) and len(one) == SUMS and all(map(_is_number, one)) for one in ranks
    )
