"""A Failure says what went wrong and how to fix it, and carries the exit code.

Batch scripts act on the exit code. EAGAIN and EMFILE (process, thread and file limits) are
translated into a Failure that names the limit to raise.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from enum import IntEnum
from functools import partial
from typing import Any, Final, Self

from entrypoint import engines

# Not loaded where a Failure is made: with no file descriptor left, that would fail too.
from entrypoint.console import join_lines
from entrypoint.redaction import redact

# What an exit code does.
REQUEUE: Final = "requeue"
SYMPTOM: Final = "symptom"
RESTART: Final = "restart"


class ExitCode(IntEnum):
    """Why a run ended, as its exit status: number, meaning, and what it does.

    This is the only definition of a code. 64-78 follow BSD's sysexits where one fits; 90-93 are
    ours. docs/reference.md is written from it, and a test compares it with the job scripts.

    Attributes:
        meaning: one line for people.
        requeue: whether a batch script puts its job back into the queue: the next start may succeed.
        symptom: whether a rank usually ends so because of another one, which knows the cause.
        restart: whether all ranks may be started again in place: an accident, while other failures would recur.
    """

    meaning: str
    requeue: bool
    symptom: bool
    restart: bool

    OK = 0, "done"
    USAGE = 64, "the config or the command line is wrong"
    DATA = 65, "bad data or checkpoint, or a changed config"
    NO_INPUT = 66, "an input is missing"
    PEER = 69, "a rank died, or the network failed", REQUEUE, SYMPTOM, RESTART
    BUG = 70, "a bug in this program, the only code with a traceback"
    RESOURCE = 71, "out of memory (host or GPU), shared memory, processes or open files"
    IMAGE_MISMATCH = 72, "the driver, its libraries or the type of GPU do not fit this image"
    OUTPUT = 73, "the output folder cannot be used, or another start uses it"
    IO = 74, "disk full, quota, input/output error"
    STOPPED = 75, "stopped cleanly after a signal or before the deadline", REQUEUE, SYMPTOM
    LAUNCH_CONFLICT = 76, "the variables of Slurm, torchrun or MPI contradict each other"
    SECURITY = 77, "refused for security"
    NODE = 78, "a GPU or a node cannot be used, or ranks have different parameters", REQUEUE
    DIVERGED = 90, "training diverged: the loss is not finite"
    HANG = 91, "a hang: alive but silent", REQUEUE, RESTART
    NO_PROGRESS = 93, "no progress over the last starts of this job"

    # A default, so that type checkers accept `ExitCode(75)`. A test refuses a member without one.
    def __new__(cls, number: int, meaning: str = "", *effects: str) -> Self:
        code = int.__new__(cls, number)
        code._value_ = number
        code.meaning = meaning
        code.requeue, code.symptom, code.restart = (effect in effects for effect in (REQUEUE, SYMPTOM, RESTART))
        return code


MAX_ALSO_LINES: Final = 5  # lines of what else is wrong


class Failure(Exception):
    """A failure that the user can act on. Raised deep, shown once by `main`, never with a traceback.

    Args:
        what: one sentence: what is wrong.
        fix: one command or edit that mends it.
        code: the exit code.
        found: the value seen, with the variable or key that it came from.
        expected: what would have been right.
        kept: the last good checkpoint, once there is one.
        also: what else is wrong, each in one line with its fix.
    """

    def __init__(
        self,
        what: str,
        *,
        fix: str,
        code: ExitCode,
        found: str | None = None,
        expected: str | None = None,
        kept: str | None = None,
        also: Sequence[str] = (),
    ) -> None:
        what = redact(what)  # here, since several places show and write it
        super().__init__(what)
        self.what, self.fix, self.code = what, redact(fix), ExitCode(code)
        self.found, self.expected, self.kept = (text and redact(text) for text in (found, expected, kept))
        self.also = tuple(map(redact, also))

    def __str__(self) -> str:
        """The block a user reads: `ERROR[code] what`, and one indented line for each fact. A clean stop is no error."""
        stop = self.code == ExitCode.STOPPED
        fix_label = "next" if stop else "fix"
        facts = [("found", self.found), ("expected", self.expected), (fix_label, self.fix), ("kept", self.kept)]
        facts += [("also", other) for other in self.also[:MAX_ALSO_LINES]]
        facts += [("also", "more, once these are mended")] if len(self.also) > MAX_ALSO_LINES else []
        head = self.what if stop else f"ERROR[{int(self.code)}] {self.what}"
        return join_lines([head, *(f"  {name}: {value}" for name, value in facts if value is not None)])

    def arguments(self) -> dict[str, Any]:
        """Plain values for another process, which builds the same failure: `Failure(**arguments)`."""
        named = {name: getattr(self, name) for name in ("what", "fix", "found", "expected", "kept", "also")}
        return named | {"code": int(self.code)}

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Failure, **self.arguments()), ()  # an exception is made from `args` otherwise, the text alone

    def as_json(self) -> dict[str, Any]:
        """The same facts for `entrypoint show --json` and `errors/`."""
        facts = {"found": self.found, "expected": self.expected, "kept": self.kept, "also": [*self.also]}
        return {"code": int(self.code), "what": self.what, "fix": self.fix} | {k: v for k, v in facts.items() if v}


# By errno, and by message where Python's threads, gloo or torch keep no errno.
LIMIT_BY_ERRNO: Final = {
    errno.EAGAIN: "processes",
    errno.EMFILE: "files",
    errno.ENFILE: "files",
    errno.ENOMEM: "memory",
    errno.EFBIG: "size",
}
LIMIT_BY_MESSAGE: Final = {
    "can't start new thread": "processes",
    "Resource temporarily unavailable": "processes",
    "Too many open files": "files",
    "annot allocate memory": "memory",
    "std::bad_alloc": "memory",
}
LIMIT_FAILURES: Final = {
    "processes": (
        "the system starts no further process or thread",
        f"raise the limit on processes and threads (ulimit -u, {engines.fix('processes')}), or lower data.workers or "
        "the number of ranks",
    ),
    "files": (
        "the system opens no further file",
        f"raise the limit on open files (ulimit -n, {engines.fix('open files')}), or lower data.workers or the "
        "number of ranks",
    ),
    "memory": (
        "the system gives no further memory",
        f"raise the limits on memory (ulimit -v, {engines.fix('memory')}, sbatch --mem), or lower "
        "train.micro_batch_size, data.workers or the number of ranks",
    ),
    "size": ("the system lets no file grow larger", "raise the limit on the size of files (ulimit -f)"),
}


def resource_limit_failure(error: BaseException) -> Failure | None:
    """Translate an error of a process, thread or file limit into a Failure; None for any other error."""
    limit = LIMIT_BY_ERRNO.get(error.errno or 0) if isinstance(error, OSError) else None
    if limit is None and isinstance(error, RuntimeError):
        message = str(error)
        limit = next((limit for text, limit in LIMIT_BY_MESSAGE.items() if text in message), None)
    if limit is None:
        return None
    what, fix = LIMIT_FAILURES[limit]
    return Failure(what, found=str(error).strip().partition("\n")[0], fix=fix, code=ExitCode.RESOURCE)


def refuse_lost_output() -> None:
    """Raise if text for stdout was lost, as on a full disk. A reader that has left (`| head`) wants no more of it.

    Raises:
        Failure: IO.
    """
    sys.stdout.flush()
    if getattr(sys.stdout, "lost", 0) and not os.path.samestat(os.fstat(1), os.stat(os.devnull)):
        what, fix = "the lines could not all be written to stdout", "free space on that disk, and start again"
        raise Failure(what, fix=fix, code=ExitCode.IO)
