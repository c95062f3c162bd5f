"""The type between detection and plan."""

from __future__ import annotations

import dataclasses

import pytest
from machines import machine

from entrypoint import local


def test_an_allocation_is_a_value_that_nobody_changes() -> None:
    found = local.bare(machine())
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.task = 1  # type: ignore[misc]
