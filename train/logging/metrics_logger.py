"""The metrics logger writes training events to metrics.jsonl, TensorBoard and the trackers.

metrics.jsonl is the record, TensorBoard a view of it with one event file per start.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from train import files

if TYPE_CHECKING:
    from train.logging.tensorboard import TensorBoardWriter
    from train.logging.trackers import Trackers


METRICS_FILE, TENSORBOARD_FOLDER = "metrics.jsonl", "tensorboard"
TAIL_BYTES = 2**16  # of a metrics file, read first in the search for the lines to drop
LATE_EVENT = "checkpoint"  # written at a later step than its own: wandb ignores an event that goes back
EventLabels = Mapping[str, str | int]


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """The complete lines of a metrics file, without lines cut by a kill or a full disk. Raises OSError.

    They are read one by one: the file of a long run may be larger than the memory.
    """
    with path.open("rb") as file:
        yield from filter(None, map(_parse_event, file))


def _parse_event(line: bytes) -> dict[str, Any] | None:
    with suppress(ValueError, RecursionError):
        event = json.loads(line)
        return event if isinstance(event, dict) else None
    return None


class MetricsLogger:
    """Writes the run's metrics on rank 0; on the other ranks it accepts them and writes nothing.

    A writer that fails (disk full, TensorBoard broken) never stops training: `lost` counts the failed writes, and
    `warn` is called once per writer. trackers: of this start, on rank 0; they outlive `close`.
    """

    def __init__(
        self,
        run_folder: Path,
        *,
        main: bool,
        tensorboard: bool,
        warn: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.lost = 0
        self._folder, self._main, self._tensorboard = run_folder, main, tensorboard
        self._warn, self._clock = warn, clock
        self._warned: set[str] = set()
        self._lines: JsonLinesFile | None = None
        self._curves: TensorBoardWriter | None = None
        self.trackers: Trackers | None = None

    @contextmanager
    def opened(self, *, step: int, evaluated: int | None = None, tested: int = 0) -> Iterator[Self]:
        """`open`, and `close` at the end."""
        self.open(step=step, evaluated=evaluated, tested=tested)
        try:
            yield self
        finally:
            self.close()

    def open(self, *, step: int, evaluated: int | None = None, tested: int = 0) -> None:
        """Open the files to continue after `step` (0: from the start), and after the evaluation of step `evaluated`.

        tested: the step of the last `test` event that counts; a later one was cut off before test.json was written.

        Lines of later steps are removed, because these steps are computed again: each step is in the file once.
        TensorBoard gets a mark to hide them.
        """
        if not self._main:
            return
        last = {"eval": step if evaluated is None else evaluated, "test": tested}
        with self._surviving(METRICS_FILE):
            self._lines = JsonLinesFile(self._folder / METRICS_FILE, step=step, last=last)
        if self._tensorboard:
            with self._surviving(TENSORBOARD_FOLDER):
                # TensorBoard's library takes 0.3 s to load: import it only if it is used.
                from train.logging.tensorboard import TensorBoardWriter

                self._curves = TensorBoardWriter(self._folder / TENSORBOARD_FOLDER, step=step, wall_time=self._clock())

    def write(self, event: str, *, step: int, **values: Any) -> None:
        """Add one line `{"event", "step", "time", **values}`; NaN and infinities become null.

        Numbers become curves `event/name` of TensorBoard and of the trackers.
        """
        self.write_each(event, step=step, of=[("", {}, values)])

    def write_each(self, event: str, *, step: int, of: Iterable[tuple[str, EventLabels, Mapping[str, Any]]]) -> None:
        """Add a line for each item of a group, for example for each GPU.

        of: for each item its name, its labels in the line, and its values. The curves are `event/name/value`. All
        lines are written with one system call, and all points as one record.
        """
        wall_time, lines, points = self._clock(), list[dict[str, Any]](), dict[str, float]()
        for name, labels, values in of:
            lines.append({"event": event, "step": step, "time": wall_time} | dict(labels) | _non_finite_to_none(values))
            points |= _curve_points(f"{event}/{name}" if name else event, values)
        if self._lines and lines:
            with self._surviving(METRICS_FILE):
                self._lines.add(*lines)
        if self._curves and points:
            with self._surviving(TENSORBOARD_FOLDER):
                self._curves.write(points, step=step, wall_time=wall_time)
        if self.trackers and points and event != LATE_EVENT:
            self.trackers.log(points, step=step)

    def replace(self, name: str, text: str) -> None:
        """On rank 0, replace the file `name` of the run's folder by `text`, atomically."""
        if self._main:
            with self._surviving(name):
                files.write_atomic(self._folder / name, text.encode())

    def close(self) -> None:
        """Close the files. Never fails, and may be called twice."""
        for name, writer in ((METRICS_FILE, self._lines), (TENSORBOARD_FOLDER, self._curves)):
            if writer is not None:
                with self._surviving(name):
                    writer.close()
        self._lines = self._curves = None

    @contextmanager
    def _surviving(self, writer: str) -> Iterator[None]:
        """Count and report any error instead of raising it: logging must never end a run."""
        try:
            yield
        except Exception as error:
            self.lost += 1
            if writer not in self._warned:
                self._warned.add(writer)
                summary = f"{type(error).__name__}: {error}".splitlines()[0]
                self._warn(f"{writer} is incomplete, training goes on: {summary}")


class JsonLinesFile:
    """A file of JSON lines. Each call writes its lines with one system call, so a kill cuts at most the last line."""

    def __init__(self, path: Path, *, step: int, last: Mapping[str, int] | None = None) -> None:
        """Open `path` for appending, and remove incomplete lines and lines of later steps from its end.

        last: the last step to keep, for events whose last step is not `step`. Lines before the last log point of an
        earlier step are not read: after five days on 8 GPUs there are 300 MB of them.

        Raises:
            OSError: the file cannot be opened.
        """
        if path.exists() and not path.is_file():  # opening or reading a pipe or a device could wait for ever
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._handle = os.open(path, flags, 0o666)
        with open(self._handle, "r+b", buffering=0, closefd=False) as raw, suppress(OSError):
            _drop_later_events(raw, step, last or {})
        size = os.fstat(self._handle).st_size
        self._torn = size > 0 and os.pread(self._handle, 1, size - 1) != b"\n"

    def add(self, *events: dict[str, Any]) -> None:
        """Write one line per event, and first end a line that was cut off. Raises OSError."""
        lines = b"".join(json.dumps(event, allow_nan=False).encode() + b"\n" for event in events)
        text = (b"\n" if self._torn else b"") + lines
        written = os.write(self._handle, text)
        self._torn = written < len(text)
        if self._torn:
            raise OSError(f"{written} of {len(text)} bytes were written")

    def close(self) -> None:
        """Close the file. Raises OSError."""
        os.close(self._handle)


def _drop_later_events(raw: io.FileIO, step: int, last: Mapping[str, int]) -> None:
    """Cut the file off at its first line that goes, and append the later lines that stay. Raises OSError."""
    file = io.BufferedReader(raw)
    position = _find_tail(file, step)
    file.seek(position)
    cut, kept = None, list[bytes]()
    for line in file:
        event = _parse_event(line)
        if event is None or _is_later(event, last.get(str(event.get("event")), step)):
            cut = position if cut is None else cut
        elif cut is not None:
            kept.append(line)
        position += len(line)
    file.detach()
    if cut is not None:
        raw.truncate(cut)
        raw.write(b"".join(kept))  # it is open for appending


def _find_tail(file: BinaryIO, step: int) -> int:
    """The offset of a line after which all lines of `step` and of later steps stand.

    The steps of log points (`train`) only grow, since each start drops the later ones. Other lines of a step come after
    the log points of earlier steps.
    """
    size, length = file.seek(0, os.SEEK_END), TAIL_BYTES
    while length < size:
        file.seek(size - length)
        file.readline()  # the rest of a line
        start = file.tell()
        events = filter(None, map(_parse_event, file))
        log_point = next((event for event in events if event.get("event") == "train"), None)
        if log_point is not None and not _is_later(log_point, step - 1):
            return start
        length *= 2
    return 0


def _is_later(event: dict[str, Any], step: int) -> bool:
    at = event.get("step")
    return isinstance(at, int) and at > step


def _non_finite_to_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace NaN and infinities, which JSON does not have, by None."""
    return {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in values.items()}


def _curve_points(event: str, values: Mapping[str, Any]) -> dict[str, float]:
    return {
        f"{event}/{k}": float(v) for k, v in values.items() if isinstance(v, int | float) and not isinstance(v, bool)
    }
