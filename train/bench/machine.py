"""What figures hold for: this machine's processor, GPU and versions, and the day."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from train.run.record import installed_version

CPUINFO: Final = Path("/proc/cpuinfo")
LONGEST_S: Final = 150.0
ASK: Final = "from torch import cuda; print(*map(cuda.get_device_name, range(cuda.device_count())), sep='\\n')"
MODEL: Final = re.compile(r"^model name\s*:\s*(.+)$", re.M)


def facts(device: str, *, now: float, quick: bool = False) -> dict[str, str]:
    """In words. GPUs are those that torch may use. quick: the figures are of no use, and that is said with them."""
    told = {"cpu": f"{_processor()}, {len(os.sched_getaffinity(0))} cores", "device": _device(device)}
    told |= {name: installed_version(name) or "not installed" for name in ("torch", "accelerate")}
    told |= {"python": platform.python_version(), "date": time.strftime("%Y-%m-%d", time.gmtime(now))}
    return told | ({"quick": "yes, so the values mean nothing"} if quick else {})


def _processor(cpuinfo: Path = CPUINFO) -> str:
    try:
        found = MODEL.search(cpuinfo.read_text())
    except OSError:
        found = None
    return found[1].strip() if found else platform.machine()  # arm64 names no model


def _device(device: str, ask: str = ASK, limit_s: float = LONGEST_S) -> str:
    """What torch calls those that it may use: parts of one (MIG) have names of their own."""
    if device == "cpu":
        return "cpu"
    # A process of its own: in this one torch would take memory of the GPU for as long as the bench runs.
    try:
        asked = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return device
    return named(asked.stdout.splitlines()) if not asked.returncode else device


def named(names: Sequence[str]) -> str:
    """Each name once, with how many there are of it."""
    counts = Counter(names)
    return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in counts.items())
