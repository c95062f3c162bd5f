"""A Tee writes a rank's output to its log file and to the console, and remembers the last lines.

Only rank 0's output goes to the console; error reports repeat the remembered lines.
"""

from __future__ import annotations

import codecs
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

from entrypoint.console import (
    color_labels,
    count_lost_output,
    escape_output,
    fold_complete_lines,
    fold_text,
    terminal_columns,
    to_printable,
)
from entrypoint.errors import ExitCode, Failure

_MAX_LINE_BYTES = 65_536
_MAX_REMEMBERED_BYTES = 2_000  # bytes of a line that a report repeats
_DECODER = codecs.getincrementaldecoder("utf-8")
CONSOLE_TIMEOUT_S = 1.0  # for a console that blocks


@dataclass(slots=True)
class Console:
    """The parent's stdout and stderr, by descriptor.

    A reader that goes away (`| head -1`) or blocks (a paused pager) must not end or delay a
    training: what it does not read in time is dropped. The logs have everything.

    folds: also fold the ranks' output on a terminal, if they are our own workers; the parent's
    messages always are.
    """

    out: int = 1
    err: int = 2
    is_terminal: bool = False
    folds: bool = False
    uses_color: bool = False
    _closed: set[int] = field(default_factory=set)
    _unfinished: set[int] = field(default_factory=set)  # streams with an unfinished line, as of a progress bar

    def write(self, descriptor: int, data: bytes) -> None:
        """Pass bytes on for at most CONSOLE_TIMEOUT_S."""
        view, deadline = memoryview(data), time.monotonic() + CONSOLE_TIMEOUT_S
        if data.endswith((b"\n", b"\r")):
            self._unfinished = set() if self.is_terminal else self._unfinished - {descriptor}
        elif data:
            self._unfinished.add(descriptor)
        ready = select.poll()
        ready.register(descriptor, select.POLLOUT)
        while view and descriptor not in self._closed:
            if not ready.poll(max(deadline - time.monotonic(), 0) * 1000):  # PIPE_BUF bytes would block
                self._lose(descriptor)
                return
            try:
                view = view[os.write(descriptor, view[: select.PIPE_BUF]) :]
            except BlockingIOError:
                continue
            except OSError as error:
                if error.errno not in (errno.EPIPE, errno.EBADF, errno.EIO):
                    self._lose(descriptor)
                    return  # a full disk may have room again later
                self._closed.add(descriptor)

    def _lose(self, descriptor: int) -> None:
        if descriptor == self.out:
            count_lost_output()

    def relay(self, descriptor: int, data: bytes) -> None:
        """Write a rank's output, folded and coloured if `folds` is set."""
        if self.folds:
            columns, begun = terminal_columns(descriptor), descriptor in self._unfinished
            data = fold_complete_lines(data, columns, begun=begun, color=self.uses_color)
        self.write(descriptor, data)

    def say(self, text: str) -> None:
        """Write a message of the parent on a new line."""
        self.end_line()
        folded = fold_text(to_printable(text), terminal_columns(self.err))
        self.write(self.err, ((color_labels(folded) if self.uses_color else folded) + "\n").encode(errors="replace"))

    def end_line(self) -> None:
        """End the line of an interrupted progress bar before the next message."""
        if self.err in self._unfinished or (self.is_terminal and self._unfinished):
            self.write(self.err, b"\n")


@dataclass(slots=True)
class Tee:
    """Splits one rank's output.

    Of a line that a progress bar rewrote with carriage returns, the log keeps the last state.

    escapes: escape what controls a terminal, as our own workers do already: libraries in C write past them.
    """

    log: IO[bytes]
    console: Console | None
    escapes: bool = False
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=15))
    _pending: dict[int, bytes] = field(default_factory=dict)
    _decoders: dict[int, codecs.IncrementalDecoder] = field(default_factory=dict)

    def feed(self, descriptor: int, data: bytes) -> None:
        """Take bytes that the rank wrote to `descriptor` 1 or 2."""
        if self.escapes:  # the last bytes may be the first ones of a character
            decoder = self._decoders.setdefault(descriptor, _DECODER("backslashreplace"))
            data = escape_output(decoder.decode(data)).encode()
        if self.console:
            self.console.relay(self.console.out if descriptor == 1 else self.console.err, data)
        *lines, unfinished = (self._pending.get(descriptor, b"") + data).split(b"\n")
        for line in lines:
            self._log_line(line)
        if len(unfinished) > _MAX_LINE_BYTES:
            unfinished = unfinished.rpartition(b"\r")[2]
        if (
            len(unfinished) > _MAX_LINE_BYTES
        ):  # a line without end is logged in pieces: each read would copy all of it again
            self._log_line(unfinished)
            unfinished = b""
        self._pending[descriptor] = unfinished

    def was_shown(self, others: Iterable[Tee]) -> bool:
        """Whether one of `others` has printed the same error on the console.

        Some errors are raised by all ranks.
        """
        console_lines = {line for other in others if other.console for line in other.last_lines}
        return any(line.startswith("ERROR[") for line in self.last_lines) and console_lines.issuperset(self.last_lines)

    def close(self) -> None:
        """Write the unfinished lines and close the log."""
        for unfinished in self._pending.values():
            if unfinished:
                self._log_line(unfinished)
        self._pending.clear()
        with suppress(OSError):  # closing writes once more what a full disk refused; then it is lost
            self.log.close()

    def _log_line(self, line: bytes) -> None:
        text = line.removesuffix(b"\r").rpartition(b"\r")[2]
        self.last_lines.append(text[:_MAX_REMEMBERED_BYTES].decode(errors="replace"))
        try:
            self.log.write(text + b"\n")
            self.log.flush()
        except OSError:
            pass  # a full disk must not end a training over its log; a failing save reports itself


def open_log(folder: Path, rank: int) -> IO[bytes]:
    """Open the rank's log for appending: a requeued job continues the same file.

    Raises:
        Failure: OUTPUT if it cannot be written.
    """
    path = folder / f"rank-{rank:04d}.log"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # A link could lead to another file, and a pipe would wait for its reader.
        safe_flags = os.O_NOFOLLOW | os.O_NONBLOCK
        return open(path, "ab", opener=lambda name, flags: os.open(name, flags | safe_flags, 0o666))
    except OSError as error:
        raise Failure(
            f"the log of rank {rank} cannot be written: {error.strerror}",
            found=str(path),
            fix="choose a folder that you can write: run.output_dir=FOLDER for train, --logs FOLDER for entrypoint run",
            code=ExitCode.OUTPUT,
        ) from error
