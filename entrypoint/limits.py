"""What the system refuses for want of processes, threads or open files becomes a failure with the limit to raise."""

from __future__ import annotations

import errno
from typing import Final

from entrypoint.errors import ExitCode, Failure

# By what an OSError holds, and by what libraries write where they keep no number: Python's threads, gloo's, torch's.
NUMBERS: Final = {errno.EAGAIN: "processes", errno.EMFILE: "files", errno.ENFILE: "files"}
TEXTS: Final = {
    "can't start new thread": "processes",
    "Resource temporarily unavailable": "processes",
    "Too many open files": "files",
}
FAILURES: Final = {
    "processes": (
        "the system starts no further process or thread",
        "raise the limit on processes and threads (ulimit -u, docker run --pids-limit), or lower data.workers or the "
        "number of ranks",
    ),
    "files": (
        "the system opens no further file",
        "raise the limit on open files (ulimit -n, docker run --ulimit nofile=4096), or lower data.workers or the "
        "number of ranks",
    ),
}


def met(error: BaseException) -> Failure | None:
    """The failure that `error` is, where a limit was met; None where it is anything else."""
    kind = NUMBERS.get(error.errno or 0) if isinstance(error, OSError) else None
    if kind is None and isinstance(error, RuntimeError):
        kind = next((kind for text, kind in TEXTS.items() if text in str(error)), None)
    if kind is None:
        return None
    what, fix = FAILURES[kind]
    return Failure(what, found=str(error).strip().partition("\n")[0], fix=fix, code=ExitCode.RESOURCE)
