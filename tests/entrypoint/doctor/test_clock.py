"""Clocks that are wrong, through the clock that a check is given."""

from __future__ import annotations

import time
from pathlib import Path

from entrypoint.doctor import host
from entrypoint.doctor.context import CheckContext, Finding

DAY_S = 86_400


def told(output: Path, off_s: float) -> Finding:
    """With this machine's clock set wrong by so many seconds; the file system keeps the right one."""
    (finding,) = host.check_clock(CheckContext(environ={}, output=output), clock=lambda: time.time() + off_s)
    return finding


def test_a_right_clock_is_ok(tmp_path: Path) -> None:
    assert told(tmp_path, 0.0).state == "ok"


def test_a_clock_ahead_of_the_file_server_is_named(tmp_path: Path) -> None:
    found = told(tmp_path, 30.0)
    assert (found.state, "behind" in found.text, "chronyc" in found.fix) == ("warn", True, True)


def test_a_clock_behind_the_file_server_is_named(tmp_path: Path) -> None:
    found = told(tmp_path, -30.0)
    assert (found.state, "ahead" in found.text) == ("warn", True)


def test_a_time_before_the_installation_is_named(tmp_path: Path) -> None:
    found = told(tmp_path, -20_000 * DAY_S)
    assert (found.state, "before this program was installed" in found.text) == ("warn", True)


def test_a_slow_file_server_is_no_wrong_clock(tmp_path: Path) -> None:
    start = time.time()
    ticks = iter([start - 60.0, start + 1.0])
    assert host.file_server_clock_offset_s(tmp_path, lambda: next(ticks)) == 0.0


def test_where_nothing_can_be_written_only_the_date_is_judged() -> None:
    found = told(Path("/proc"), 0.0)
    assert (found.state, "file system" in found.text) == ("ok", False)
