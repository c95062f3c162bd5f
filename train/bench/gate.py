"""Our loop, held between two steps until a bench says to go on: so many steps at a time, and how long they took."""

from __future__ import annotations

import io
import json
import resource
import socket
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Final, TextIO

import torch

from train.logging.progress import Progress

LOOPBACK: Final = "127.0.0.1"


class Over(Exception):
    """The bench has hung up."""


class Line:
    """The connection to the bench: a line of JSON each way."""

    def __init__(self, address: str) -> None:
        """address: PORT:TOKEN. Raises OSError."""
        port, _, self._token = address.partition(":")
        with socket.create_connection((LOOPBACK, int(port))) as line:
            self._talk: TextIO = line.makefile("rw")  # holds the connection from now on

    def ready(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Say that warming up is over; returns what is asked for first."""
        return self.answer({"token": self._token, **facts})

    def answer(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Tell, and wait for what is asked for next. Raises Over."""
        self._talk.write(json.dumps(values) + "\n")
        self._talk.flush()
        asked = self._talk.readline()
        if not asked:
            self._talk.close()
            raise Over
        return dict(json.loads(asked))


class Gate(Progress):
    """Takes the place of what shows a run's progress: it is told of each step, right after it."""

    def __init__(
        self,
        line: Line,
        device: torch.device,
        facts: Mapping[str, Any],
        *,
        warm_up: int,
        counts: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        """counts: what is to be told with each block; at first as it was after the first step, so that what the rest of
        the warm-up adds shows."""
        super().__init__(main=False, terminal=False, out=io.StringIO())
        self._line, self._device, self._facts, self._counts = line, device, facts, counts
        self._done, self._until, self._warm = 0, 1, max(2, warm_up)
        self._stamps: list[Any] | None = None
        self._began, self._used = time.perf_counter(), time.process_time()
        self._opened, self._first, self._counted = False, 0.0, dict[str, Any]()

    def step(self) -> None:
        """One optimizer step is done; where it was the last of a block, wait for the next."""
        self._done += 1
        if self._stamps is not None:
            self._stamps.append(self._stamp())
        if self._done >= self._until:
            self._closed()

    def _closed(self) -> None:
        self._wait()
        seconds, used = time.perf_counter() - self._began, time.process_time() - self._used
        if self._done == 1:
            self._first, self._until, self._counted = seconds, self._warm, dict(self._counts())
            return
        if self._opened:
            measurement = {
                "seconds": seconds,
                "cpu": used,
                "last": self._done,
                "stamps": self._stamped(),
                "memory": self._most_memory(),
            }
            asked = self._line.answer({**measurement, **self._counts()})
        else:
            facts = {**self._facts, **self._counted, "first_step_s": self._first}
            asked, self._opened = self._line.ready(facts), True
        self._until = self._done + int(asked["steps"])
        self._wait()
        self._began, self._used = time.perf_counter(), time.process_time()
        self._stamps = [self._stamp()] if asked.get("stamps") else None

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _most_memory(self) -> int:
        """Bytes at most until now: of the GPU what torch has asked for, of the host what this process had."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_reserved(self._device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def _stamp(self) -> Any:
        """A GPU is behind the program: its own time counts."""
        if self._device.type == "cpu":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _stamped(self) -> list[float]:
        """Seconds from each step's end to the next one's."""
        stamps = self._stamps or []
        pairs = pairwise(stamps)
        if self._device.type == "cpu":
            return [after - before for before, after in pairs]
        return [before.elapsed_time(after) / 1e3 for before, after in pairs]
