"""The profiler records the steps that `profile.steps` names, as a timeline and a table, on rank 0."""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from train import files
from train.logging.progress import Progress, format_duration, pluralize
from train.run import step
from train.run.job import Job
from train.run.now import Now
from train.run.step import Stream

COLUMN_HEADERS: Final = ("calls", "CPU ms", "GPU ms", "share")
COLUMN_WIDTH: Final = 9  # of a column of numbers
FILE_ROWS, FILE_COLUMNS = 50, 120  # rows and columns of the file


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationCost:
    """Of one operation, all its calls together and without the operations that it calls: milliseconds."""

    name: str
    calls: int
    cpu_ms: float
    gpu_ms: float


def sort_by_cost(costs: Iterable[OperationCost], *, on_gpu: bool) -> list[OperationCost]:
    """The same, those that a run waits for longest first: the GPU's time counts where there is one."""
    return sorted(costs, key=lambda cost: (-cost.gpu_ms if on_gpu else 0.0, -cost.cpu_ms, cost.name))


def format_cost_table(
    costs: Sequence[OperationCost], *, total_ms: float, on_gpu: bool, most: int, width: int, what: str
) -> str:
    """The first `most` of them, one a line of at most `width` letters, with each one's share of `total_ms`."""
    heads = [head for head in COLUMN_HEADERS if on_gpu or head != "GPU ms"]
    names = width - COLUMN_WIDTH * len(heads)
    lines = [what.ljust(names) + "".join(head.rjust(COLUMN_WIDTH) for head in heads)]
    for cost in costs[:most]:
        share = (cost.gpu_ms if on_gpu else cost.cpu_ms) / total_ms if total_ms > 0 else 0.0
        cells = [f"{cost.calls:,}", f"{cost.cpu_ms:,.1f}", *([f"{cost.gpu_ms:,.1f}"] if on_gpu else []), f"{share:.1%}"]
        lines.append(_shorten_name(cost.name, names).ljust(names) + "".join(cell.rjust(COLUMN_WIDTH) for cell in cells))
    return "\n".join(lines)


def _shorten_name(name: str, width: int) -> str:
    """With a space behind it. Names come from the user's code too: what is no letter is left out."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in name)
    return plain if len(plain) < width else f"{plain[: width - 2]}…"


class ProfilerCosts:
    """What torch's profiler counted. On a GPU each kernel counts for the operation that has started it."""

    def __init__(self, events: Sequence[Any], *, on_gpu: bool) -> None:
        on_cpu = [event for event in events if event.device_type == DeviceType.CPU]
        kernels = [event for event in events if event.device_type != DeviceType.CPU and not event.is_user_annotation]
        self._kernels = [_operation_cost(event) for event in kernels]
        self._on_gpu = any(kernel.gpu_ms for kernel in self._kernels)
        self._blind = on_gpu and not self._on_gpu
        self._costs = sort_by_cost(map(_operation_cost, on_cpu), on_gpu=self._on_gpu)
        gpu_ms, cpu_ms = sum(one.gpu_ms for one in self._kernels), sum(one.cpu_ms for one in self._costs)
        self._total_ms = gpu_ms if self._on_gpu else cpu_ms

    def table(self, *, most: int, width: int) -> str:
        """The costliest operations."""
        note = "\nnote: the driver lets nobody see what the GPU does: these are the CPU's times" if self._blind else ""
        return self._table(self._costs, "operation", most=most, width=width) + note

    def as_text(self) -> str:
        """The same at more length; on a GPU with its kernels, which a compiled model has without operations."""
        text = self.table(most=FILE_ROWS, width=FILE_COLUMNS)
        if not self._on_gpu:
            return text
        kernels = sort_by_cost(self._kernels, on_gpu=True)
        return f"{text}\n\n{self._table(kernels, 'kernel on the GPU', most=FILE_ROWS, width=FILE_COLUMNS)}"

    def _table(self, costs: Sequence[OperationCost], what: str, *, most: int, width: int) -> str:
        total, on_gpu = self._total_ms, self._on_gpu
        return format_cost_table(costs, total_ms=total, on_gpu=on_gpu, most=most, width=width, what=what)


def _operation_cost(event: Any) -> OperationCost:
    cpu_ms, gpu_ms = event.self_cpu_time_total / 1000, event.self_device_time_total / 1000
    return OperationCost(name=event.key, calls=event.count, cpu_ms=cpu_ms, gpu_ms=gpu_ms)


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
        wanted, there = f"profile.steps [{first}, {last}]", pluralize(todo.steps.total, "step")
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
        title = f"profile of steps {self._first} to {self._todo.state.step}, rank 0: {pluralize(done, 'step')} in "
        title += f"{format_duration(seconds)} (watched, they are slower)"
        timeline, listed = folder / f"{name}.json.gz", folder / f"{name}.txt"
        costs = ProfilerCosts(found.key_averages(), on_gpu=self._on_gpu)
        folder.mkdir(exist_ok=True)
        files.write_atomic(listed, f"{title}\n\n{costs.as_text()}\n".encode())
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
    with tempfile.TemporaryDirectory(prefix=files.TEMPORARY_PREFIX, dir=path.parent) as scratch:
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
