"""Files and their manifest become a committed checkpoint folder, whole or not at all.

Order of a commit, and what a kill or a power cut leaves at each point:

1. a folder `.tmp-...`, each file written and fsynced: ignored, and swept at the next start;
2. the manifest, written last, by rename, and the folder fsynced: the same;
3. the folder renamed to `step-...`: whole, since all of it was on the disk before;
4. `checkpoints/` fsynced: **committed**. `save` returns after this point only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from train.checkpoint import manifest, shelf
from train.checkpoint.manifest import Damaged, Manifest
from train.files import durable


def holds(path: Path, contents: Manifest) -> bool:
    """Does this content stand at `path` already, with the right hashes?"""
    try:
        return shelf.examine(path) == contents
    except Damaged:
        return False


def make(final: Path, files: Mapping[str, bytes | memoryview], contents: Manifest) -> None:
    """Commit the checkpoint `final`. Raises OSError or Failure, and leaves no temporary folder."""
    temporary = final.with_name(f"{durable.TEMPORARY}{final.name}-{os.urandom(4).hex()}")
    try:
        temporary.mkdir(parents=True)
        for name, data in files.items():
            durable.create(temporary / name, data)
        durable.write(temporary / manifest.NAME, manifest.to_bytes(contents))
        _place(temporary, final, contents)
        durable.sync(final.parent)
    finally:
        durable.remove(temporary)
    durable.remove(final.with_name(shelf.REPLACED + final.name))


def _place(temporary: Path, final: Path, contents: Manifest) -> None:
    """Rename `temporary` to `final`; what stood there stays, and counts, until the new one is committed."""
    if final.exists():
        old = final.with_name(shelf.REPLACED + final.name)
        durable.remove(old)
        os.rename(final, old)
    try:
        durable.patiently(lambda: os.rename(temporary, final))
    except FileNotFoundError:  # a file server did it, lost its answer, and was asked again
        with suppress(Damaged):
            if shelf.listed(final) == contents:
                return
        raise
