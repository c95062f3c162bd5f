"""argparse with our exit code and our two halves."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from entrypoint import ExitCode, Failure, say_help


class Parser(argparse.ArgumentParser):
    """Raises instead of leaving with 2."""

    def error(self, message: str) -> NoReturn:
        """Raises Failure: USAGE."""
        fix = f"see `{self.prog} --help`; settings are written without dashes: section.key=value"
        raise Failure(f"command line: {message}", fix=fix, code=ExitCode.USAGE)

    def print_help(self, file: Any = None) -> None:
        """As wide as the terminal, with what argparse would leave as it is."""
        say_help(self.format_help(), file)
