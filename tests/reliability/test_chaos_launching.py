"""The rows of docs/evidence/failures.md that rows/ plays around the training, once each: see `make chaos`."""

from __future__ import annotations

import chaos
import pytest
from rows import containers, launching, network


@pytest.mark.parametrize("row", chaos.cases(launching.ROWS | network.ROWS | containers.ROWS))
def test_the_row_is_as_specified(row: int) -> None:
    if reason := chaos.lacking(row):
        pytest.skip(reason)
    trial = chaos.play(row, seed=1)
    assert trial.ok, "\n".join([trial.injector, *trial.lines])
