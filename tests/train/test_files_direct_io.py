"""A large file has the given content, whether it is written with O_DIRECT or without."""

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


def memory_of(size: int, offset: int = 0) -> memoryview:
    """`size` bytes that repeat only after 251, from `offset` bytes after the start of a page."""
    memory = memoryview(mmap.mmap(-1, size + offset))[offset:]
    memory[:] = (bytes(range(251)) * (size // 251 + 1))[:size]
    return memory


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
def test_a_file_of_any_size_from_any_address_has_the_given_content(tmp_path: Path, size: int, offset: int) -> None:
    data = memory_of(size, offset)
    files.create_file(tmp_path / "a", data)
    assert (tmp_path / "a").read_bytes() == data


def test_complete_blocks_are_written_with_o_direct_and_the_rest_without(tmp_path: Path) -> None:
    data, writes = memory_of(files.MIN_DIRECT_BYTES + 7), []

    def record(_: int, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "write":
            writes.append((bool(fcntl.fcntl(arguments[0], fcntl.F_GETFL) & os.O_DIRECT), len(arguments[1])))

    with intercepted(record):
        files.create_file(tmp_path / "a", data)
    assert writes == [(True, files.MIN_DIRECT_BYTES), (False, 7)]


@pytest.mark.parametrize("error", sorted(files.DIRECT_UNSUPPORTED_ERRNOS), ids=errno.errorcode.get)
def test_without_o_direct_the_file_is_written_as_usual(tmp_path: Path, error: int) -> None:
    data = memory_of(files.DIRECT_CHUNK_BYTES * 2)
    with intercepted(fail(2, error, name="write")):
        files.create_file(tmp_path / "a", data)
    assert (tmp_path / "a").read_bytes() == data


def test_a_full_disk_raises_its_error(tmp_path: Path) -> None:
    with intercepted(fail(2, errno.ENOSPC, name="write")), pytest.raises(OSError, match="No space left"):
        files.create_file(tmp_path / "a", memory_of(files.DIRECT_CHUNK_BYTES * 2))
