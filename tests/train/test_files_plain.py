"""What somebody put in a small file's place is an error at once, whatever it is."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from train import files


def test_a_file_of_json_gives_its_value(tmp_path: Path) -> None:
    (tmp_path / "a").write_text('{"step": 3}')
    assert files.read_json(tmp_path / "a") == {"step": 3}


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "9" * 5000, '"\xff'])
def test_what_is_no_json_is_a_value_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "a").write_text(text, "latin-1")
    with pytest.raises(ValueError):
        files.read_json(tmp_path / "a")


def test_nobody_waits_for_the_other_end_of_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a")
    with pytest.raises(OSError, match="not a regular file"):
        files.read_json(tmp_path / "a")


@pytest.mark.parametrize("place", ["/dev/zero", ".", "nowhere", "a"])
def test_a_link_to_what_is_no_file_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "a").symlink_to(place)
    with pytest.raises(OSError):
        files.read_json(tmp_path / "a")


def test_reading_a_short_file_takes_little_memory(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"short")
    tracemalloc.start()
    try:
        files.read_regular_file(tmp_path / "a")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_a_file_that_is_too_long_is_not_read_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 11)
    with pytest.raises(OSError, match="longer than 10 bytes"):
        files.read_regular_file(tmp_path / "a", limit=10)
