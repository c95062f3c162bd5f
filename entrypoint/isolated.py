"""The installed commands: each starts its package as a program whose modules no variable of the caller can replace."""

from __future__ import annotations

import gc
import importlib
import os
import sys

# What puts modules of the caller's before ours, or waits for input at the end. (The image's commands give -I.)
REACHING = ("PYTHONPATH", "PYTHONHOME", "PYTHONINSPECT")


def train() -> None:
    """The command `train`."""
    _start("train")


def entrypoint() -> None:
    """The command `entrypoint`."""
    _start("entrypoint")


def _start(package: str) -> None:
    if not sys.flags.isolated and any(os.environ.get(name) for name in REACHING):
        os.execv(sys.executable, [sys.executable, "-I", "-X", "utf8", "-m", package, *sys.argv[1:]])
    gc.disable()  # imports leave no garbage: looking for it is a fifth of what `entrypoint show` takes
    program = importlib.import_module(f"{package}.__main__")
    gc.freeze()
    gc.enable()
    sys.exit(program.main())
