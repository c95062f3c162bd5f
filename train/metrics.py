"""Events of training become lines of metrics.jsonl (the record) and TensorBoard curves (a view of it)."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from train import durable

NAME = "metrics.jsonl"


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a metrics file that are whole; a line torn by a kill or a full disk is left out."""
    raise NotImplementedError


class Metrics:
    """The run's record, kept by rank 0; on the other ranks it takes everything and writes nothing.

    A writer that fails (disk full, TensorBoard broken) never stops training: `lost` counts what was not written, and
    `warn` is told once per writer.
    """

    def __init__(
        self,
        run_folder: Path,
        *,
        main: bool,
        step: int,
        tensorboard: bool,
        warn: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open the record to go on after `step` (0: from the start).

        Lines of later steps are dropped, since the same steps are computed again: each step stands there once.
        TensorBoard is told to hide them.
        """
        raise NotImplementedError

    def write(self, event: str, *, step: int, **values: Any) -> None:
        """Add one line `{"event", "step", "time", **values}`; NaN and infinities become null.

        Numbers become TensorBoard scalars `event/name`.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Flush and close; never fails."""
        raise NotImplementedError
