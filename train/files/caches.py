"""The caller's folder for what may be lost and is dear to make again."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path


def folder(environ: Mapping[str, str]) -> Path | None:
    """Ours in XDG_CACHE_HOME or ~/.cache; not made yet. None without a home."""
    home = environ.get("HOME", "")
    caches = environ.get("XDG_CACHE_HOME") or (f"{home}/.cache" if os.path.isdir(home) else None)
    return Path(caches) / "train-image" if caches else None


def private(environ: Mapping[str, str], name: str) -> Path | None:
    """A folder in it that its owner alone can write, made if need be: for what is run. None where there is no such."""
    ours = folder(environ)
    if ours is None:
        return None
    place = ours / name
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = place.lstat()
    except OSError:
        return None
    own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    return place if own and os.access(place, os.W_OK) else None
