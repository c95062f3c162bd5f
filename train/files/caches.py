"""The caller's folder for what may be lost and is dear to make again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def folder(environ: Mapping[str, str]) -> Path | None:
    """Ours in XDG_CACHE_HOME or ~/.cache; not made yet. None without a home."""
    home = environ.get("HOME", "")
    caches = environ.get("XDG_CACHE_HOME") or (f"{home}/.cache" if os.path.isdir(home) else None)
    return Path(caches) / "train-image" if caches else None
