"""argparse with our exit code and our two halves."""

from __future__ import annotations

import argparse
from typing import Final, NoReturn

from entrypoint import ExitCode, Failure

FIX: Final = "see `train --help`; settings are written without dashes: section.key=value"


class Parser(argparse.ArgumentParser):
    """Raises instead of leaving with 2."""

    def error(self, message: str) -> NoReturn:
        """Raises Failure: USAGE."""
        raise Failure(f"command line: {message}", fix=FIX, code=ExitCode.USAGE)
