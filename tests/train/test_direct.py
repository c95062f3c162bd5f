"""Large files hold what was given, however they came to the disk."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from pathlib import Path
from typing import Any

import pytest
from calls import fail, intercepted

from train import files


def filled(size: int, offset: int = 0) -> memoryview:
    """So many bytes, none like the next, at so many bytes from the start of a page."""
    area = memoryview(mmap.mmap(-1, size + offset))[offset:]
    area[:] = (bytes(range(251)) * (size // 251 + 1))[:size]
    return area


@pytest.mark.parametrize("offset", [0, 8, 512])
@pytest.mark.parametrize(
    "size",
    [
        files.MIN_DIRECT_BYTES - 1,
        files.MIN_DIRECT_BYTES,
        files.MIN_DIRECT_BYTES + 1,
        files.DIRECT_CHUNK_BYTES + files.DIRECT_BLOCK_BYTES + 7,
    ],
)
def test_a_file_of_any_size_from_any_place_in_memory_holds_what_was_given(
    tmp_path: Path, size: int, offset: int
) -> None:
    data = filled(size, offset)
    files.create_file(tmp_path / "a", data)
    assert (tmp_path / "a").read_bytes() == data


def test_whole_blocks_go_past_the_page_cache_and_the_rest_does_not(tmp_path: Path) -> None:
    data, how = filled(files.MIN_DIRECT_BYTES + 7), []

    def look(_: int, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "write":
            how.append((bool(fcntl.fcntl(arguments[0], fcntl.F_GETFL) & os.O_DIRECT), len(arguments[1])))

    with intercepted(look):
        files.create_file(tmp_path / "a", data)
    assert how == [(True, files.MIN_DIRECT_BYTES), (False, 7)]


@pytest.mark.parametrize("error", [errno.EINVAL, errno.EOPNOTSUPP, errno.EFAULT], ids=errno.errorcode.get)
def test_a_file_system_or_memory_that_cannot_gets_it_as_usual(tmp_path: Path, error: int) -> None:
    data = filled(files.DIRECT_CHUNK_BYTES * 2)
    with intercepted(fail(2, error, name="write")):
        files.create_file(tmp_path / "a", data)
    assert (tmp_path / "a").read_bytes() == data


def test_a_full_disk_is_still_told(tmp_path: Path) -> None:
    with intercepted(fail(2, errno.ENOSPC, name="write")), pytest.raises(OSError, match="No space left"):
        files.create_file(tmp_path / "a", filled(files.DIRECT_CHUNK_BYTES * 2))


def test_memory_that_may_not_be_written_is_written_from_too(tmp_path: Path) -> None:
    files.create_file(tmp_path / "a", bytes(files.MIN_DIRECT_BYTES))
    assert (tmp_path / "a").stat().st_size == files.MIN_DIRECT_BYTES
