"""The installed commands start programs whose modules no caller's variable can replace."""

from __future__ import annotations

import gc
import importlib
import os
import sys

# What puts modules of the caller's before ours, or waits for input at the end. (The image's commands give -I.)
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
    gc.disable()  # imports leave no garbage: looking for it is a fifth of what `entrypoint show` takes
    program = importlib.import_module(f"{package}.__main__")
    gc.freeze()
    gc.enable()
    sys.exit(program.main())
