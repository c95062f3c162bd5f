"""What all tests of checkpoints share."""

from __future__ import annotations

import pytest

from entrypoint import file_writer


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_writer, "RETRY_PAUSE_S", 0.0)
