"""A program that is measured is run to its end, with all that it starts, or killed with it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from entrypoint import ExitCode, Failure

TAIL: Final = 2000  # characters of an output that are shown


def done(words: Sequence[str], environ: Mapping[str, str], cwd: Path, limit_s: float) -> None:
    """Run to the end.

    Raises:
        Failure: PEER, with the last that it said, where it fails or takes longer than that.
    """
    with subprocess.Popen(
        words,
        env=dict(environ),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=limit_s)
            why = f"exit code {process.returncode}" if process.returncode else None
        except BaseException as error:
            with suppress(ProcessLookupError):  # what it has started would keep the pipe open
                os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            said, why = error.output or b"", f"not done in {limit_s:g} s"
    if why is not None:
        found = f"{why}\n{said.decode(errors='replace')[-TAIL:].strip()}"
        fix = f"run it alone: {' '.join(words)}"
        raise Failure("a process that is measured has failed", found=found, fix=fix, code=ExitCode.PEER)
