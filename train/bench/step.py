"""Time of a step, against scripts that do the same by hand: rows 1, 2, 3, 4, 6, 10 and 13."""

from __future__ import annotations

from collections.abc import Iterator

from train.bench import rows
from train.bench.options import Options
from train.bench.rows import Found


def run(options: Options) -> Iterator[Found]:
    """The rows that this machine can measure, and why it cannot measure the others."""
    for number in ("1", "2"):
        yield rows.unmeasured(number, "needs a GPU")
