"""Real file systems that are full or read-only, where this machine lets a test mount one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(target: Path, options: str) -> Iterator[Path]:
    """A tmpfs on the new folder `place`; skips the test where mounting is not allowed."""
    target.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(target)]
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"machine: cannot mount a tmpfs: {error}")
    try:
        yield target
    finally:
        subprocess.run(["umount", "--lazy", str(target)], timeout=30, check=True)


def fill(folder: Path, leave: int = 0) -> Path:
    """Use up all space in `folder` but `leave` bytes; the file that takes it."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            file.truncate(max(0, file.tell() - leave))
    return ballast
