"""This machine's clock against the file server's, and against the day on which this program was installed."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from entrypoint.doctor import places
from entrypoint.doctor.findings import Finding, ok, warn
from entrypoint.doctor.scene import Scene

ALLOWED_S = 2.0  # the same as between ranks of a run
_FIX = "ask the administrator to set the clock (chronyc tracking shows its state)"
_DAY_S = 86_400


def check(scene: Scene, clock: Callable[[], float] = time.time) -> list[Finding]:
    """Both. clock: seconds since 1970, as this machine tells them."""
    return [finding(clock(), os.stat(__file__).st_mtime, server_says(places.nearest(scene.output.absolute()), clock))]


def server_says(folder: Path, clock: Callable[[], float]) -> float | None:
    """How far the clock of who keeps `folder` is ahead of ours, seconds; None where nothing can be written."""
    try:
        with tempfile.NamedTemporaryFile(prefix=".doctor-", dir=folder) as file:
            before = clock()
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
            ahead = os.fstat(file.fileno()).st_mtime - before
            late = clock() - before
    except OSError:
        return None
    return ahead if ahead < 0 else max(0.0, ahead - late)  # how long the writing took is nobody's fault


def finding(now: float, installed: float, ahead: float | None) -> Finding:
    """installed: when this program's files were written. ahead: the file server's clock against ours."""
    said = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < installed - _DAY_S:
        text = f"it says {said}, a time before this program was installed"
        return warn("clock", f"{text}: certificates and tokens are refused", _FIX)
    if ahead is not None and abs(ahead) > ALLOWED_S:
        text = f"the file server of the output folder is {abs(ahead):.1f} s {'ahead' if ahead > 0 else 'behind'}"
        return warn("clock", f"{text}: times in logs and of files do not compare", _FIX)
    return ok("clock", said + ("" if ahead is None else ", and the file system of the output folder agrees"))
