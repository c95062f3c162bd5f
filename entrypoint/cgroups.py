"""This process's control groups to the processors that it may keep busy: those of its affinity, or the time it gets."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

Place = str | os.PathLike[str]  # pathlib alone would be a tenth of what `entrypoint show` takes


def processors(root: Place = "/") -> int:
    """How many threads of this process can work at once."""
    return in_time(len(os.sched_getaffinity(0)), root)


def in_time(cores: int, root: Place = "/") -> int:
    """As many of `cores` as there is time for. A quota (docker run --cpus, Kubernetes' limits.cpu) hides none of the
    machine's processors; threads beyond it stand still.
    """
    quota = cores_quota(root)
    return cores if quota is None else min(cores, math.ceil(quota))


def cores_quota(root: Place = "/") -> float | None:
    """Processors' worth of time that the control group gives; None where it gives all."""
    return min(filter(None, (_quota(folder) for folder in groups(root, "cpu"))), default=None)


def groups(root: Place, controller: str) -> Iterator[str]:
    """This process's control group for it and those around it, innermost first; a container's may lie at the root."""
    for line in _text(os.path.join(root, "proc/self/cgroup")).splitlines():
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        base = os.path.join(root, "sys/fs/cgroup", names)
        if names and not os.path.isdir(base):
            base = os.path.join(root, "sys/fs/cgroup", controller)
        inner = path.strip("/")
        while inner:
            yield os.path.join(base, inner)
            inner = os.path.dirname(inner)
        yield base


def _quota(folder: str) -> float | None:
    words = _text(os.path.join(folder, "cpu.max")).split()
    if len(words) != 2:
        words = [_text(os.path.join(folder, f"cpu.cfs_{name}_us")).strip() for name in ("quota", "period")]
    return int(words[0]) / int(words[1]) if all(word.isdigit() for word in words) and int(words[1]) else None


def _text(file: Place) -> str:
    """Empty where it cannot be read."""
    try:
        with open(file, encoding="utf-8", errors="replace") as opened:
            return opened.read()
    except OSError:
        return ""
