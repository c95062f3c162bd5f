"""What all tests of checkpoints share."""

from __future__ import annotations

import pytest

from train import files


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "RETRY_PAUSE_S", 0.0)
