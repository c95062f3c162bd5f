"""A step hook only watches training; `open_hooks` makes those that the config asks for, and no others.

To watch something else, write a `StepHook` and make it in `open_hooks`: the Trainer does not change. What steers a run
(rollback, stop, refusing a state that is not finite) is no hook: the Trainer does it, where a reader looks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch.profiler import ProfilerActivity, profile

from entrypoint import Heartbeat, join_lines, pluralize
from train import compilation, files, profiler
from train.config.schema import RunConfig
from train.distributed import replica_check
from train.distributed.runtime import Runtime
from train.logging.metrics_logger import MetricsLogger
from train.logging.progress import format_duration
from train.logging.running_mean import TrainingStopwatch
from train.parallel.base import Update
from train.state import TrainState

PROFILE_FOLDER: Final = "profile"


class StepHook:
    """All ranks call each method at the same steps, which count from 1. So a hook may exchange values between ranks.

    Whatever a hook raises, it must raise on all ranks.
    """

    def before_step(self, step: int) -> None:
        """Called before an optimizer step."""

    def after_step(self, step: int, update: Update) -> None:
        """Called after an optimizer step, before its values are logged. update: what became of it, such as the norm."""

    def at_log(self, step: int) -> None:
        """Called at a log point, before its line is written."""

    def before_save(self, step: int) -> None:
        """Called before a snapshot of the state is taken."""

    def close(self, step: int) -> None:
        """Called when training has ended after this step, also by an error of this rank: wait for no other rank."""


def open_hooks(
    config: RunConfig,
    runtime: Runtime,
    state: TrainState,
    folder: Path,
    *,
    total_steps: int,
    is_compiled: bool,
    heartbeat: Heartbeat,
    stopwatch: TrainingStopwatch,
    metrics_logger: MetricsLogger,
    say: Callable[[str], None],
) -> list[StepHook]:
    """The hooks of a run, in the order in which they are called. folder: of the run."""
    hooks: list[StepHook] = []
    if steps := steps_to_profile(config.profile.steps, done=state.step, total=total_steps, say=say):
        hooks.append(
            StepProfiler(steps, runtime=runtime, folder=folder, stopwatch=stopwatch, heartbeat=heartbeat, say=say)
        )
    if config.train.check_replicas_every_steps is not None:
        hooks.append(ReplicaCheck(config.train.check_replicas_every_steps, runtime, state, heartbeat))
    if is_compiled:
        hooks.append(RecompilationWarning(metrics_logger, say))
    return hooks


class ReplicaCheck(StepHook):
    """Compares the weights of all ranks, every so many steps and before each save: see `replica_check.check_replicas`.

    So no checkpoint holds a bit that has flipped on one rank.
    """

    def __init__(self, every_steps: int, runtime: Runtime, state: TrainState, heartbeat: Heartbeat) -> None:
        self._every_steps, self._runtime, self._state, self._heartbeat = every_steps, runtime, state, heartbeat

    def after_step(self, step: int, update: Update) -> None:
        """Raises Failure: NODE or PEER."""
        if step % self._every_steps == 0:
            self._heartbeat.beat("step", step=step)
            self._check(step)

    def before_save(self, step: int) -> None:
        """Raises Failure: NODE or PEER."""
        self._check(step)

    def _check(self, step: int) -> None:
        replica_check.check_replicas(self._runtime, self._state.network, self._state.parallel.optimizer, step)


class RecompilationWarning(StepHook):
    """Code that is compiled after the first step makes all ranks wait, seconds to minutes: say so."""

    def __init__(self, metrics_logger: MetricsLogger, say: Callable[[str], None]) -> None:
        self._metrics_logger, self._say = metrics_logger, say
        self._graphs = compilation.count_compiled()["graphs"]

    def at_log(self, step: int) -> None:
        """Write an event and a line if graphs were compiled since the last log point."""
        graphs, before = compilation.count_compiled()["graphs"], self._graphs
        if graphs == before:
            return
        self._graphs = graphs
        self._metrics_logger.write("compiled", step=step, graphs=graphs - before)
        self._say(
            f"warning: graphs compiled again by step {step}: {graphs - before}; the model's code depends on what "
            "changes from step to step (TORCH_LOGS=recompiles says on what), or set train.compile=false"
        )


class StepProfiler(StepHook):
    """Records the steps of `profile.steps` on rank 0 with torch's profiler.

    The other ranks wait for rank 0 where recording begins and where it is written, so that they do not look hung.
    No error here ends a run: it is printed once.
    """

    def __init__(
        self,
        steps: tuple[int, int],
        *,
        runtime: Runtime,
        folder: Path,
        stopwatch: TrainingStopwatch,
        heartbeat: Heartbeat,
        say: Callable[[str], None],
    ) -> None:
        """steps: the first and the last to record. folder: of the run."""
        self._first, self._last = steps
        self._runtime, self._folder = runtime, folder / PROFILE_FOLDER
        self._stopwatch, self._heartbeat, self._say = stopwatch, heartbeat, say
        self._profile: profile | None = None
        self._began = 0.0

    def before_step(self, step: int) -> None:
        """Start to record before the first of the steps."""
        if step == self._first:
            self._on_rank_zero(step - 1, self._start)
            self._began = self._stopwatch.seconds

    def after_step(self, step: int, update: Update) -> None:
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
        console, text = profiler.describe_costs(recording.key_averages(), on_gpu=self._on_gpu)
        self._folder.mkdir(exist_ok=True)
        files.write_atomic(table, f"{title}\n\n{text}\n".encode())
        profiler.write_timeline(recording, timeline)
        hint = "          (open it at https://ui.perfetto.dev)"
        self._say(join_lines([title, console, f"table     {table}", f"timeline  {timeline}", hint]))

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
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            self._say(f"warning: the profile is incomplete, training goes on: {reason}")


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
