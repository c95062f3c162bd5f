"""What figures hold for: this machine's processor, GPU and versions, and the day."""

from __future__ import annotations

import os
import platform
import re
import time
from importlib import metadata
from pathlib import Path
from typing import Final

CPUINFO: Final = Path("/proc/cpuinfo")
MODEL: Final = re.compile(r"^model name\s*:\s*(.+)$", re.M)


def facts(device: str, *, now: float) -> dict[str, str]:
    """In words. GPUs are those of the machine."""
    told = {"cpu": f"{_processor()}, {len(os.sched_getaffinity(0))} cores", "device": _device(device)}
    versions = {name: _version(name) for name in ("torch", "accelerate")}
    return told | versions | {"python": platform.python_version(), "date": time.strftime("%Y-%m-%d", time.gmtime(now))}


def _processor(cpuinfo: Path = CPUINFO) -> str:
    try:
        found = MODEL.search(cpuinfo.read_text())
    except OSError:
        found = None
    return found[1].strip() if found else platform.machine()  # arm64 names no model


def _device(device: str) -> str:
    if device == "cpu":
        return "cpu"
    import pynvml  # torch would take memory of the GPU for its answer

    pynvml.nvmlInit()
    count, name = pynvml.nvmlDeviceGetCount(), pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
    return str(name) if count == 1 else f"{count} x {name}"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
