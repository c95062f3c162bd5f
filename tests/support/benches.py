"""What a bench is asked for in a test: the CPU, the smallest sizes, a folder of its own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from processes import unmeasured

from entrypoint import LaunchOptions as Launch
from train.bench import options
from train.bench.options import Options
from train.bench.rows import Found, Row


def quick(folder: Path, **changes: Any) -> Options:
    """Options of `train bench NAME --quick --device cpu`."""
    own = argparse.Namespace(**changes.pop("own", {}))
    facts: dict[str, Any] = {
        "device": "cpu",
        "launch": Launch(device="cpu"),
        "scratch": folder,
        "peers": options.find_peers(None),
        "environ": unmeasured(),
        "tell": lambda line: None,
        "quick": True,
        "own": own,
    }
    return Options(**(facts | changes))


def by_number(found: list[Found]) -> dict[str, Row]:
    """Rows by their numbers."""
    return {one.number: one for one in found if isinstance(one, Row)}
