"""Numbers that no training tells are refused by name, and a training's own pass."""

from __future__ import annotations

from typing import Any

import pytest

from train.fields import check_fields
from train.state import STATE_RULES

RESULT = {"accuracy": 0.5, "loss": float("nan"), "samples": 8, "recall": [0.5, None]}
TOLD: dict[str, Any] = {
    "step": 3,
    "seconds": 1.5,
    "evaluated": 2,
    "best_step": None,
    "held": 0,
    "rollbacks": 0,
    "result": RESULT,
    "best": None,
    "window": {"sums": [[1.0, 2, 3.0]], "since": 0.5},
}
ODD = [
    ("step", -1),
    ("step", 10**400),
    ("step", True),
    ("evaluated", "3"),
    ("best_step", 2.5),
    ("held", None),
    ("seconds", float("inf")),
    ("seconds", -1.0),
    ("result", {"accuracy": "x"}),
    ("result", [1]),
    ("best", {"recall": "x"}),
    ("best", {"recall": [{}]}),
    ("window", []),
    ("window", {"sums": [], "since": 0.0}),
    ("window", {"sums": [[1, 2, 3], [1, 2]], "since": 0.0}),
    ("window", {"sums": [["1", 2, 3]], "since": 0.0}),
    ("window", {"sums": [[1, 2, 3]], "since": None}),
]


def test_what_a_training_tells_passes() -> None:
    check_fields(TOLD, STATE_RULES, optional=True)
    early = {name: value for name, value in TOLD.items() if name not in ("held", "rollbacks", "window")}
    check_fields(early, STATE_RULES, optional=True)


@pytest.mark.parametrize(("name", "value"), ODD)
def test_what_no_training_tells_is_named(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{name} is "):
        check_fields(TOLD | {name: value}, STATE_RULES, optional=True)
