"""The profiler records the steps that `profile.steps` names, as a timeline and a table, on rank 0."""

from __future__ import annotations

import gzip
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

from entrypoint import Heartbeat, file_writer, join_lines, pluralize
from train import files
from train.distributed.runtime import Runtime
from train.logging.progress import format_duration
from train.logging.running_mean import TrainingStopwatch

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
    return join_lines(lines)


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
        notes = ["note: the driver lets nobody see what the GPU does: these are the CPU's times"] if self._blind else []
        return join_lines([self._table(self._costs, "operation", most=most, width=width), *notes])

    def as_text(self) -> str:
        """The same at more length; on a GPU with its kernels, which a compiled model has without operations."""
        text = self.table(most=FILE_ROWS, width=FILE_COLUMNS)
        if not self._on_gpu:
            return text
        kernels = sort_by_cost(self._kernels, on_gpu=True)
        table = self._table(kernels, "kernel on the GPU", most=FILE_ROWS, width=FILE_COLUMNS)
        return join_lines([text, "", table])

    def _table(self, costs: Sequence[OperationCost], what: str, *, most: int, width: int) -> str:
        total, on_gpu = self._total_ms, self._on_gpu
        return format_cost_table(costs, total_ms=total, on_gpu=on_gpu, most=most, width=width, what=what)


def _operation_cost(event: Any) -> OperationCost:
    cpu_ms, gpu_ms = event.self_cpu_time_total / 1000, event.self_device_time_total / 1000
    return OperationCost(name=event.key, calls=event.count, cpu_ms=cpu_ms, gpu_ms=gpu_ms)


FOLDER: Final = "profile"
CONSOLE_ROWS, CONSOLE_COLUMNS = 10, 79
TIMELINE_END_BYTES: Final = 64  # they hold the end of a complete timeline


class StepProfiler:
    """Records the steps of `profile.steps` on rank 0 with torch's profiler.

    The other ranks wait for rank 0 where recording begins and where it is written, so that they do not look hung.
    No error here ends a run: it is printed once.
    """

    def __init__(
        self,
        steps: Sequence[int] | None,
        *,
        runtime: Runtime,
        folder: Path,
        stopwatch: TrainingStopwatch,
        heartbeat: Heartbeat,
        say: Callable[[str], None],
    ) -> None:
        """steps: the first and the last to record, counted from 1; None for no step. folder: of the run."""
        self._first, self._last = steps or (0, 0)
        self._runtime, self._folder = runtime, folder / FOLDER
        self._stopwatch, self._heartbeat, self._say = stopwatch, heartbeat, say
        self._profile: profile | None = None
        self._began = 0.0
        self._has_failed = False

    def before_step(self, step: int) -> None:
        """Start to record before optimizer step `step` (counted from 1)."""
        if step == self._first:
            self._on_rank_zero(step - 1, self._start)
            self._began = self._stopwatch.seconds

    def after_step(self, step: int) -> None:
        """Write the profile after the last of the steps."""
        if step == self._last:
            self._on_rank_zero(step, partial(self._stop, step, self._seconds()))

    def close(self, step: int) -> None:
        """Write the profile of a run that ends after `step`, before the last of the steps. Waits for no other rank."""
        if self._profile is not None:
            with self._report_errors():
                self._stop(step, self._seconds())

    def _seconds(self) -> float:
        """Training time since the first of the steps. Inside a pause the stopwatch cannot be read."""
        self._synchronize()
        return self._stopwatch.seconds - self._began

    def _on_rank_zero(self, step: int, action: Callable[[], None]) -> None:
        self._heartbeat.beat("save", step=step)  # it may take as long as a checkpoint
        with self._stopwatch.paused():
            self._runtime.run_on_rank_zero(action)

    def _start(self) -> None:
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._on_gpu else [])]
        with self._report_errors():
            self._synchronize()
            recording = profile(activities=activities)
            recording.start()
            self._profile = recording

    def _stop(self, step: int, seconds: float) -> None:
        recording, self._profile = self._profile, None
        if recording is None:
            return
        with self._report_errors():
            recording.stop()
            if step >= self._first:  # a run may end within the first of the steps
                self._write(recording, step, seconds)

    def _write(self, recording: profile, last: int, seconds: float) -> None:
        """Both files, and the lines on the console."""
        steps, duration = pluralize(last - self._first + 1, "step"), format_duration(seconds)
        title = f"profile of steps {self._first} to {last}, rank 0: {steps} in {duration} (watched, they are slower)"
        name = f"rank-0000-steps-{self._first}-{last}"
        timeline, table = self._folder / f"{name}.json.gz", self._folder / f"{name}.txt"
        costs = ProfilerCosts(recording.key_averages(), on_gpu=self._on_gpu)
        self._folder.mkdir(exist_ok=True)
        files.write_atomic(table, f"{title}\n\n{costs.as_text()}\n".encode())
        write_timeline(recording, timeline)
        shown = costs.table(most=CONSOLE_ROWS, width=CONSOLE_COLUMNS)
        hint = "          (open it at https://ui.perfetto.dev)"
        self._say(join_lines([title, shown, f"table     {table}", f"timeline  {timeline}", hint]))

    @property
    def _on_gpu(self) -> bool:
        return self._runtime.device.type == "cuda"

    def _synchronize(self) -> None:
        """Wait for the GPU: work that it was given before belongs to earlier steps."""
        if self._on_gpu:
            torch.cuda.synchronize(self._runtime.device)

    @contextmanager
    def _report_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not self._has_failed:
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
                self._say(f"warning: the profile is incomplete, training goes on: {reason}")
            self._has_failed = True


def steps_to_profile(
    configured: Sequence[int] | None, *, done: int, total: int, say: Callable[[str], None]
) -> tuple[int, int] | None:
    """The steps of `profile.steps` that this start trains, of a run that has done `done` of `total` steps."""
    if configured is None:
        return None
    first, last = configured
    if first > total:
        say(f"note: profile.steps [{first}, {last}]: nothing is recorded, the run has {pluralize(total, 'step')}")
    return None if last <= done or first > total else (max(first, done + 1), last)


def write_timeline(recording: profile, path: Path) -> None:
    """The profiler's own JSON, packed. It writes to a path only, and tells nobody of a full disk.

    Raises:
        OSError: it cannot be written, or was not written whole.
    """
    with tempfile.TemporaryDirectory(prefix=file_writer.TEMPORARY_PREFIX, dir=path.parent) as scratch:
        plain = Path(scratch) / "timeline.json"
        recording.export_chrome_trace(str(plain))
        with plain.open("rb") as source:
            source.seek(max(0, plain.stat().st_size - TIMELINE_END_BYTES))
            if not source.read().rstrip().endswith(b"}"):
                raise OSError(f"{path.name} was not written whole")
            source.seek(0)
            with file_writer.replace_file(path) as stream, gzip.open(stream, "wb", compresslevel=6) as target:
                shutil.copyfileobj(source, target)
