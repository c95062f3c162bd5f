"""This module writes metrics as TensorBoard curves."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]
from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

# TensorBoard opens with the first group of curves by name. These events come under `usage`, after `eval` and `train`.
RESOURCE_EVENTS: Final = frozenset({"checkpoint", "compiled", "gpu", "rank"})


class TensorBoardWriter:
    """Writes an event file in `folder`. Every method raises OSError if the disk refuses.

    torch's SummaryWriter writes the same file, but from another thread: its errors reach the console as a traceback,
    and its full queue stops training.
    """

    def __init__(self, folder: Path, *, step: int, wall_time: float) -> None:
        """Start a file whose first events say that earlier files end at `step`. wall_time: seconds since 1970."""
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(
            _next_event_file(folder), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666
        )
        self._file = os.fdopen(handle, "wb")
        try:
            self._records = RecordWriter(self._file)
            self._begin(step, wall_time)
        except BaseException:
            with suppress(OSError):
                self._file.close()
            raise

    def _begin(self, step: int, wall_time: float) -> None:
        self._add(Event(wall_time=wall_time, file_version="brain.Event:2"))
        # TensorBoard hides what earlier files say about this step and later ones (torch calls it purge_step).
        self._add(Event(wall_time=wall_time, step=step + 1, session_log=SessionLog(status=SessionLog.START)))
        self._file.flush()

    def write(self, values: Mapping[str, float], *, step: int, wall_time: float) -> None:
        """Add one point to each named curve."""
        points = [
            Summary.Value(tag=f"usage/{tag}" if tag.partition("/")[0] in RESOURCE_EVENTS else tag, simple_value=value)
            for tag, value in values.items()
        ]
        self._add(Event(wall_time=wall_time, step=step, summary=Summary(value=points)))
        self._file.flush()

    def close(self) -> None:
        """Close the file. All points are written already."""
        self._file.close()

    def _add(self, event: Event) -> None:
        self._records.write(event.SerializeToString())


def _next_event_file(folder: Path) -> Path:
    """A new, numbered file name. TensorBoard reads files by name, and clocks differ between nodes."""
    numbers = itertools.count(len(list(folder.glob("events.out.tfevents.*"))))
    names = (folder / f"events.out.tfevents.{number:06d}" for number in numbers)
    return next(path for path in names if not path.exists())
