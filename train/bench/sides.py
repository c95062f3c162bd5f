"""Our own parts as programs that a bench starts and leads: `main(words, environ)` of a module beside this one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

# Ranks of ours are started without PYTHONPATH; a checkout need not be installed.
START: Final = (
    "import importlib, os, sys; sys.path.insert(0, sys.argv[1]); "
    "importlib.import_module('train.bench.' + sys.argv[2]).main(sys.argv[3:], os.environ)"
)


def command(module: str, *words: str) -> list[str]:
    """The command line that calls `main` of train.bench.MODULE with these words."""
    return [sys.executable, "-c", START, str(Path(__file__).parents[2]), module, *words]
