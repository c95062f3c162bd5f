"""The type between detection and plan."""

from __future__ import annotations

import dataclasses

import pytest
from machines import machine

from entrypoint.launchers import local


def test_an_allocation_is_a_value_that_nobody_changes() -> None:
    allocation = local.single_node_allocation(machine())
    with pytest.raises(dataclasses.FrozenInstanceError):
        allocation.task = 1  # type: ignore[misc]
