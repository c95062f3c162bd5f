"""The rows of docs/evidence/failures.md in rows/inputs.py, once each: the smaller size of `make chaos`."""

from __future__ import annotations

import chaos
import pytest
from rows import inputs


@pytest.mark.parametrize("row", chaos.cases(inputs.ROWS))
def test_the_row_is_as_specified(row: int) -> None:
    if reason := chaos.lacking(row):
        pytest.skip(reason)
    trial = chaos.play(row, seed=1)
    assert trial.ok, "\n".join([trial.injector, *trial.lines])
