"""A worker of which every rank but the first reads a checkpoint late: once its folder was replaced, or never."""

from __future__ import annotations

import os
import time
from pathlib import Path

from train import worker
from train.checkpoint import manifest, store

PATIENCE_S = 1.0  # of a reader whose folder nobody replaces

_read = manifest.read_file


def late(folder: Path, name: str, *, limit: int) -> bytes:
    """Wait before the last file of a checkpoint is read."""
    if os.environ["RANK"] != "0" and name == store.STATE_FILE:
        there, until = folder.stat().st_ino, time.monotonic() + PATIENCE_S
        while time.monotonic() < until and folder.exists() and folder.stat().st_ino == there:
            time.sleep(0.01)
    return _read(folder, name, limit=limit)


if __name__ == "__main__":
    manifest.read_file = late
    worker.main()
