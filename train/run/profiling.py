"""The steps that profile.steps names become a timeline and a table of what was costliest in them, on rank 0."""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch.profiler import ProfilerActivity, profile

from train.files import durable
from train.record.hotspots import Costs
from train.record.progress import Progress, duration, many
from train.run import step
from train.run.job import Job
from train.run.now import Now
from train.run.step import Stream

FOLDER: Final = "profile"
SHOWN, WIDTH = 10, 79  # rows and columns on the console
TAIL: Final = 64  # bytes that hold the end of a timeline that is whole
Take = Callable[[Job, Now, Stream], None]


@contextmanager
def recorded(todo: Job, now: Now, progress: Progress) -> Iterator[Take]:
    """How the loop inside is to take a step: `step.take` itself, unless there are steps to be profiled.

    What was begun is written at the end, however that comes.
    """
    recorder = _recorder(todo, now, progress)
    if recorder is None:
        yield step.take
        return
    try:
        yield recorder.take
    finally:
        recorder.close()


def _recorder(todo: Job, now: Now, progress: Progress) -> Recorder | None:
    if todo.config.profile.steps is None:
        return None
    first, last = todo.config.profile.steps
    if first > todo.steps.total:
        wanted, there = f"profile.steps [{first}, {last}]", many(todo.steps.total, "step")
        progress.say(f"note: {wanted}: nothing is recorded, the run has {there}")
    if last <= todo.state.step or first > todo.steps.total:
        return None
    return Recorder(todo, now, progress, first=max(first, todo.state.step + 1), last=last)


class Recorder:
    """Records steps on rank 0. The others wait for it where it begins and where it writes: they are no hang.

    Nothing that goes wrong here ends a run: it is said once.
    """

    def __init__(self, todo: Job, now: Now, progress: Progress, *, first: int, last: int) -> None:
        self._todo, self._now, self._progress = todo, now, progress
        self._first, self._last = first, last
        self._running: profile | None = None
        self._began = 0.0
        self._failed = False

    def take(self, todo: Job, now: Now, stream: Stream) -> None:
        """One optimizer step, recorded where it is one of those."""
        if todo.state.step + 1 == self._first:
            self._together(self._begin)
            self._began = now.stopwatch.seconds
        step.take(todo, now, stream)
        if todo.state.step == self._last:
            self._together(partial(self._end, self._seconds()))

    def close(self) -> None:
        """Write what there is, where the run ends before the last of the steps. Waits for no other rank."""
        if self._running is not None:
            with self._surviving():
                self._end(self._seconds())

    def _seconds(self) -> float:
        """Of training since the first of the steps began. Inside a pause the stopwatch cannot be read."""
        self._wait()
        return self._now.stopwatch.seconds - self._began

    def _together(self, action: Callable[[], None]) -> None:
        self._todo.pulse.beat("save", step=self._todo.state.step)  # has time for it, as for a checkpoint
        with self._now.stopwatch.paused():
            self._todo.runtime.shared(action)

    def _begin(self) -> None:
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._on_gpu else [])]
        with self._surviving():
            self._wait()
            running = profile(activities=activities)
            running.start()
            self._running = running

    def _end(self, seconds: float) -> None:
        found, self._running = self._running, None
        if found is None:
            return
        with self._surviving():
            found.stop()
            self._write(found, seconds)

    def _write(self, found: profile, seconds: float) -> None:
        """Both files, and the console's lines. A run that ended in its first step to be recorded has none."""
        done = self._todo.state.step - self._first + 1
        if done < 1:
            return
        folder = self._todo.folder / FOLDER
        name = f"rank-0000-steps-{self._first}-{self._todo.state.step}"
        title = f"profile of steps {self._first} to {self._todo.state.step}, rank 0: {many(done, 'step')} in "
        title += f"{duration(seconds)} (watched, they are slower)"
        timeline, listed = folder / f"{name}.json.gz", folder / f"{name}.txt"
        costs = Costs(found.key_averages(), on_gpu=self._on_gpu)
        folder.mkdir(exist_ok=True)
        durable.write(listed, f"{title}\n\n{costs.as_text()}\n".encode())
        write_timeline(found, timeline)
        places = f"table     {listed}\ntimeline  {timeline}\n          (open it at https://ui.perfetto.dev)"
        self._progress.say(f"{title}\n{costs.table(most=SHOWN, width=WIDTH)}\n{places}")

    @property
    def _on_gpu(self) -> bool:
        return self._todo.runtime.device.type == "cuda"

    def _wait(self) -> None:
        """For the GPU: what it was given before belongs to the steps before."""
        if self._on_gpu:
            torch.cuda.synchronize(self._todo.runtime.device)

    @contextmanager
    def _surviving(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not self._failed:
                said = f"{type(error).__name__}: {error}".splitlines()[0]
                self._progress.say(f"warning: the profile is incomplete, training goes on: {said}")
            self._failed = True


def write_timeline(found: profile, path: Path) -> None:
    """The profiler's own JSON, packed. It writes to a path only, and tells nobody of a full disk.

    Raises:
        OSError: it cannot be written, or was not written whole.
    """
    with tempfile.TemporaryDirectory(prefix=durable.TEMPORARY, dir=path.parent) as scratch:
        plain, packed = Path(scratch) / "timeline.json", Path(scratch) / path.name
        found.export_chrome_trace(str(plain))
        with plain.open("rb") as source:
            source.seek(max(0, plain.stat().st_size - TAIL))
            if not source.read().rstrip().endswith(b"}"):
                raise OSError(f"{path.name} was not written whole")
            source.seek(0)
            with gzip.open(packed, "wb", compresslevel=6) as target:
                shutil.copyfileobj(source, target)
        os.replace(packed, path)
