"""The rows of docs/evidence/failures.md in rows/processes.py, once each: the smaller size of `make chaos`."""

from __future__ import annotations

import chaos
import pytest
from rows import processes


@pytest.mark.parametrize("row", chaos.cases(processes.ROWS))
def test_the_row_is_as_specified(row: int) -> None:
    if reason := chaos.lacking(row):
        pytest.skip(reason)
    trial = chaos.play(row, seed=1)
    assert trial.ok, "\n".join([trial.injector, *trial.lines])
