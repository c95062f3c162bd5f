"""Options of a benchmark in a test: the CPU, the smallest sizes, a folder of its own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from processes import unmeasured

from bench.measurements import Measurement, Row
from bench.processes import BenchOptions
from entrypoint import LaunchOptions


def quick(folder: Path, **changes: Any) -> BenchOptions:
    """Options of a benchmark with `--quick --device cpu`. arguments: a mapping."""
    arguments = argparse.Namespace(**changes.pop("arguments", {}))
    options: dict[str, Any] = {
        "device": "cpu",
        "launch": LaunchOptions(device="cpu"),
        "scratch": folder,
        "environ": unmeasured(),
        "log": lambda line: None,
        "quick": True,
        "arguments": arguments,
    }
    return BenchOptions(**(options | changes))


def by_number(measurements: list[Measurement]) -> dict[str, Row]:
    """Rows by their numbers."""
    return {row.number: row for row in measurements if isinstance(row, Row)}
