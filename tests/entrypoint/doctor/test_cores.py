"""Processors against ranks."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from entrypoint.doctor import cores


@pytest.mark.parametrize(
    ("mine", "quota", "ranks", "state"),
    [(8, None, 4, "ok"), (1, None, 1, "warn"), (4, None, 4, "warn"), (8, 2.0, 4, "warn"), (8, 16.0, 4, "ok")],
    ids=["enough", "one core", "none for workers", "a small quota", "a large quota"],
)
def test_each_rank_wants_a_core_and_one_for_its_data(mine: int, quota: float | None, ranks: int, state: str) -> None:
    found = cores.finding(mine, 64, quota, ranks)
    assert (found.state, "--cpus-per-task" in found.fix) == (state, state != "ok")


def test_a_quota_below_the_affinity_is_told() -> None:
    assert "threads are started for 8" in cores.finding(8, 64, 1.5, 4).text


def test_all_on_one_core_is_seen_for_real() -> None:
    code = "from entrypoint.doctor import cores, scene; print(cores.check(scene.Scene(environ={}))[0])"
    core = min(os.sched_getaffinity(0))
    pinned = f"import os; os.sched_setaffinity(0, [{core}]); {code}"
    done = subprocess.run([sys.executable, "-c", pinned], capture_output=True, text=True, timeout=60, check=True)
    assert "state='warn'" in done.stdout
    assert "text='1 of " in done.stdout
