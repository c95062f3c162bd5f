"""A Tee writes a rank's output to its log file, to the console and to a short memory.

Only rank 0's output goes to the console; error reports repeat the memory.
"""

from __future__ import annotations

import errno
import os
import select
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from entrypoint.console import fold_complete_lines, fold_text, terminal_columns
from entrypoint.errors import ExitCode, Failure

_MAX_LINE_BYTES = 65_536
_MAX_REMEMBERED_BYTES = 2_000  # bytes of a line that a report repeats
CONSOLE_TIMEOUT_S = 1.0  # for a console that does not take what it is given


@dataclass(slots=True)
class Console:
    """The parent's own two streams, by descriptor.

    A reader that goes away (`| head -1`) or stands still (a paused pager) must not end or hold up a training: what it
    does not take in time is dropped. The logs have everything.

    folds: on a terminal, also what the ranks say, since it is our own; messages of the parent are folded anyway.
    """

    out: int = 1
    err: int = 2
    is_terminal: bool = False
    folds: bool = False
    _closed: set[int] = field(default_factory=set)
    _open: set[int] = field(default_factory=set)  # those on which a line has begun and not ended, as a bar's

    def write(self, descriptor: int, data: bytes) -> None:
        """Pass bytes on for at most CONSOLE_TIMEOUT_S."""
        view, deadline = memoryview(data), time.monotonic() + CONSOLE_TIMEOUT_S
        self._note(descriptor, data)
        while view and descriptor not in self._closed:
            if not _accepts_write(descriptor, deadline - time.monotonic()):
                return
            try:
                view = view[os.write(descriptor, view[: select.PIPE_BUF]) :]
            except BlockingIOError:
                continue
            except OSError as error:
                if error.errno not in (errno.EPIPE, errno.EBADF, errno.EIO):
                    return  # a full disk under it may have room again later
                self._closed.add(descriptor)

    def relay(self, descriptor: int, data: bytes) -> None:
        """What a rank says."""
        columns = terminal_columns(descriptor) if self.folds else None
        begun = descriptor in self._open
        self.write(descriptor, data if columns is None else fold_complete_lines(data, columns, begun=begun))

    def say(self, text: str) -> None:
        """One message of the parent's own, on a line of its own."""
        self.end_line()
        self.write(self.err, (fold_text(text, terminal_columns(self.err)) + "\n").encode(errors="replace"))

    def end_line(self) -> None:
        """A bar that was broken off does not share its line with what follows."""
        if self.err in self._open or (self.is_terminal and self._open):
            self.write(self.err, b"\n")

    def _note(self, descriptor: int, data: bytes) -> None:
        if data.endswith((b"\n", b"\r")):
            self._open = set() if self.is_terminal else self._open - {descriptor}
        elif data:
            self._open.add(descriptor)


@dataclass(slots=True)
class Tee:
    """Splits one rank's bytes. Of a line that a progress bar rewrote with carriage returns, the log keeps the last."""

    log: IO[bytes]
    console: Console | None
    memory: deque[str] = field(default_factory=lambda: deque(maxlen=15))
    _pending: dict[int, bytes] = field(default_factory=dict)

    def feed(self, descriptor: int, data: bytes) -> None:
        """`descriptor` is where these bytes would have gone: 1 or 2."""
        if self.console:
            self.console.relay(self.console.out if descriptor == 1 else self.console.err, data)
        *lines, rest = (self._pending.get(descriptor, b"") + data).split(b"\n")
        for line in lines:
            self._keep(line)
        if len(rest) > _MAX_LINE_BYTES:
            rest = rest.rpartition(b"\r")[2]
        if len(rest) > _MAX_LINE_BYTES:  # no line at all: kept in pieces, or each read would copy all before it again
            self._keep(rest)
            rest = b""
        self._pending[descriptor] = rest

    def was_shown(self, others: Iterable[Tee]) -> bool:
        """Whether one of `others` has put this rank's error on the console: all ranks refuse some things together."""
        shown = {line for other in others if other.console for line in other.memory}
        return any(line.startswith("ERROR[") for line in self.memory) and shown.issuperset(self.memory)

    def close(self) -> None:
        """Write what has no newline yet."""
        for rest in self._pending.values():
            if rest:
                self._keep(rest)
        self._pending.clear()
        with suppress(OSError):  # what a full disk did not take is tried once more, and lost
            self.log.close()

    def _keep(self, line: bytes) -> None:
        text = line.removesuffix(b"\r").rpartition(b"\r")[2]
        self.memory.append(text[:_MAX_REMEMBERED_BYTES].decode(errors="replace"))
        try:
            self.log.write(text + b"\n")
            self.log.flush()
        except OSError:
            pass  # a full disk must not end a training over its log; a save that fails says so itself


def _accepts_write(descriptor: int, seconds: float) -> bool:
    """Whether a write of PIPE_BUF bytes would not block, or comes to its own error at once."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(max(seconds, 0) * 1000))


def open_log(folder: Path, rank: int) -> IO[bytes]:
    """The rank's log, appended to: a requeued job goes on in the same file.

    Raises:
        Failure: OUTPUT, where it cannot be written.
    """
    path = folder / f"rank-{rank:04d}.log"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return path.open("ab")
    except OSError as error:
        raise Failure(
            f"the log of rank {rank} cannot be written: {error.strerror}",
            found=str(path),
            fix="choose a folder that you can write: run.output_dir=FOLDER for train, --logs FOLDER for entrypoint run",
            code=ExitCode.OUTPUT,
        ) from error
