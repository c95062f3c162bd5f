"""One optimizer step: where a fault can strike in it. What it computes: test_loop, test_same_numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import fit, opened

from train import faults


@pytest.mark.parametrize("site", ["step", "data", "fwd", "bwd"])
def test_a_fault_strikes_in_its_step(site: str, tmp_path: Path) -> None:
    with opened(tmp_path) as todo:
        todo.faults.waiting = faults.parse(f"{site}:0:2:oom", 0).waiting
        with pytest.raises(MemoryError):
            fit(todo)
    assert todo.state.step == 2
