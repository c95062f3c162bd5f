"""Numbers by step become one TensorBoard event file per start."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from train.record import eventfile


class Curves:
    """An open event file in `folder`. Every method raises OSError when the disk refuses.

    Not torch's SummaryWriter: that writes from a thread of its own, whose errors reach the console as a traceback and
    whose full queue stops training. The file is the same.
    """

    def __init__(self, folder: Path, *, step: int, now: float) -> None:
        """Start a file whose first events say that earlier files end at `step`; `now` in seconds since 1970."""
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(_next(folder), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        self._file = os.fdopen(handle, "wb")
        try:
            # TensorBoard hides what earlier files say about this step and later ones (torch calls it purge_step).
            self._add(eventfile.version(now) + eventfile.begins(step + 1, now))
        except BaseException:
            with suppress(OSError):
                self._file.close()
            raise

    def write(self, values: Mapping[str, float], *, step: int, now: float) -> None:
        """Add one point to each named curve."""
        self._add(eventfile.points(values, step=step, now=now))

    def close(self) -> None:
        """Close the file; what was written is there already."""
        self._file.close()

    def _add(self, records: bytes) -> None:
        self._file.write(records)
        self._file.flush()


def _next(folder: Path) -> Path:
    """A new name. TensorBoard reads files in the order of their names: a count, since clocks differ between nodes."""
    numbers = itertools.count(len(list(folder.glob("events.out.tfevents.*"))))
    names = (folder / f"events.out.tfevents.{number:06d}" for number in numbers)
    return next(path for path in names if not path.exists())
