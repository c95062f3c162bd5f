"""A plan comes from the environment and from this machine."""

from __future__ import annotations

import pytest

from entrypoint import LaunchOptions, make_plan
from entrypoint.accelerators import nvidia


def test_what_is_asked_for_is_planned() -> None:
    planned = make_plan({}, LaunchOptions(device="cpu", procs_per_node=3))
    assert (planned.device, planned.spawn, planned.world.world_size) == ("cpu", 3, 3)


def test_nobody_counts_gpus_that_are_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "list_gpus", lambda root: 1 / 0)
    assert make_plan({}, LaunchOptions(device="cpu")).device == "cpu"
