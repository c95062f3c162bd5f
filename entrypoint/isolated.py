"""The installed commands start Python so that no variable can replace their modules."""

from __future__ import annotations

import importlib
import os
import sys

# They put the caller's modules before ours, or make Python wait for input at its end. (The image's
# commands use -I.)
UNSAFE_PYTHON_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "PYTHONINSPECT")


def train() -> None:
    """The command `train`."""
    _start_program("train")


def entrypoint() -> None:
    """The command `entrypoint`."""
    _start_program("entrypoint")


def _start_program(package: str) -> None:
    if not sys.flags.isolated and any(os.environ.get(name) for name in UNSAFE_PYTHON_VARIABLES):
        os.execv(sys.executable, [sys.executable, "-I", "-X", "utf8", "-m", package, *sys.argv[1:]])
    sys.exit(importlib.import_module(f"{package}.__main__").main())
