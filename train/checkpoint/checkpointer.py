"""The `Checkpointer` saves a run's state while training continues, and takes the run back to its last checkpoint.

There is one save at a time. Rank 0 copies the state, and one of its threads commits the copy; the other ranks learn in
`wait` whether that worked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import torch

from entrypoint import ExitCode, Failure, Heartbeat, RunErrors, start_daemon_thread
from train import files
from train.checkpoint import format, store
from train.checkpoint.format import FileData, SnapshotBuffers
from train.checkpoint.store import EMA_GROUP, OPTIMIZER_GROUP
from train.config.schema import RunConfig
from train.distributed.runtime import Runtime
from train.fault_injection import FaultInjector
from train.logging.metrics_logger import MetricsLogger
from train.logging.running_mean import TrainingStopwatch
from train.loss_monitor import LossJump
from train.parallel.base import TensorGroups
from train.run import resume
from train.run.lock import RunLock
from train.run.record import BEST_FILE
from train.run.stop import StopRequest
from train.state import LogWindow, TrainState

T = TypeVar("T")
# Only an optimizer step changes these tensors: the writer may still copy them while the next step computes gradients.
DEFERRED_GROUPS: Final = (OPTIMIZER_GROUP, EMA_GROUP)
POLL_INTERVAL_S: Final = 0.01
SavedProgress = tuple[int, int]  # the step of a checkpoint, and the step of the last evaluation that it holds


@dataclass(slots=True, kw_only=True)
class Checkpointer:
    """All ranks call the same methods in the same order. `Trainer.begin` makes one, also after a rollback."""

    config: RunConfig
    runtime: Runtime
    folder: Path  # checkpoints/ in the run's folder
    data_fingerprint: Mapping[str, Any]  # a resumed run must have the same
    state: TrainState
    faults: FaultInjector
    lock: RunLock | None
    heartbeat: Heartbeat
    metrics_logger: MetricsLogger
    stopwatch: TrainingStopwatch
    stop: StopRequest
    clock: Callable[[], float]
    saved_at: float  # by the clock: when the last save began
    committed: SavedProgress | None  # by the newest checkpoint
    pending: SavedProgress | None = None  # by the checkpoint that is being written
    stalled: float = 0.0  # seconds for which its snapshot has blocked training
    waited: float = 0.0  # seconds for which the update after it had to wait for the writer's copy
    copied: threading.Event | None = None  # set when the writer of rank 0 has copied all live tensors
    commit: Future[float] | None = None  # rank 0's writer, until its result was read: the seconds that the save took
    buffers: SnapshotBuffers = field(default_factory=SnapshotBuffers)
    is_stop_noted: bool = False

    def path(self, step: int) -> Path:
        """The folder of the checkpoint of a step."""
        return self.folder / store.step_folder_name(step)

    @property
    def newest(self) -> Path | None:
        """The newest committed checkpoint."""
        return self.path(self.committed[0]) if self.committed else None

    @property
    def has_unsaved_progress(self) -> bool:
        """Whether this step, or its evaluation, is in no checkpoint, not even in the pending one."""
        progress = (self.state.step, self.state.evaluated)
        return self.state.step > 0 and (self.pending or self.committed) != progress

    @property
    def is_written(self) -> bool:
        """Whether this rank's writer is done with the pending checkpoint, committed or failed."""
        return self.pending is not None and self.commit is not None and self.commit.done()

    # Saving

    def save(self, window: Callable[[], LogWindow]) -> None:
        """Take a snapshot, and let it be written while training continues. The previous save must have ended.

        window: gathers the sums since the last log point from all ranks.
        """
        state = self.state
        self.heartbeat.beat("save", step=state.step)
        state.seconds = self.stopwatch.seconds  # inside a pause it cannot be read
        with self.stopwatch.paused():
            began = self.saved_at = self.clock()
            state.window = window()
            self.pending = (state.step, state.evaluated)
            snapshot = state.snapshot()
            if self.runtime.is_main:
                self._begin_commit(*snapshot, began)
            self.stalled, self.waited = self.clock() - began, 0.0

    def _begin_commit(self, groups: TensorGroups, values: Mapping[str, Any], began: float) -> None:
        """Copy what `TrainState.snapshot` returned, and start the thread that commits the copy. On rank 0 only.

        On a CPU the thread itself copies the optimizer and EMA tensors, while the next step computes its gradients.
        best.json names a checkpoint only once it is committed, and older checkpoints are deleted after that.
        """
        state, best = self.state, self._best_record()
        step, best_step = state.step, state.best_step
        metadata = resume.checkpoint_metadata(self.config, self.runtime, self.data_fingerprint, values)
        snapshot = format.begin_snapshot(groups, metadata, self.buffers, deferred=DEFERRED_GROUPS)
        self.copied = snapshot.copied

        def commit() -> float:
            data_by_name = snapshot.finish()
            self.faults.strike("save", step)
            self._write(step, data_by_name)
            if best is not None and best_step == step:
                files.write_json(self.folder.parent / BEST_FILE, best)
            store.prune_checkpoints(self.folder, self.config.checkpoint, best=best_step, trusted=step)
            return self.clock() - began

        self.commit = run_in_background(commit)

    def _write(self, step: int, data_by_name: Mapping[str, FileData]) -> None:
        if self.lock:
            self.lock.refuse_lost()
        format.write_snapshot(self.folder, step, data_by_name)

    def wait(self) -> None:
        """Wait until the pending checkpoint, if there is one, is committed. All ranks learn of what went wrong.

        Raises:
            Failure: as `format.write_snapshot`.
        """
        pending, self.pending = self.pending, None
        if pending is None:
            return
        self.heartbeat.beat("save", step=self.state.step)
        with self.stopwatch.paused():
            seconds = self.runtime.run_on_rank_zero(self._read_commit)
        self.committed = pending
        self.stop.durations.add("save", seconds)
        stalled = self.stalled + self.waited
        self.metrics_logger.write("checkpoint", step=pending[0], seconds=seconds, stalled_seconds=stalled)

    def _read_commit(self) -> float:
        """Wait for the writer; return its seconds or raise its error. It polls, so that a stop signal is noted."""
        assert self.commit is not None
        while not self.commit.done():
            # The grace time may end before this wait does.
            if self.stop.is_made() and not self.is_stop_noted:
                self.note_stop()
            time.sleep(POLL_INTERVAL_S)
        commit, self.commit = self.commit, None
        return commit.result()

    def wait_for_copy(self) -> None:
        """Before an update, wait until the writer has copied what the update changes."""
        if self.copied is None:
            return
        began = self.clock()
        with self.stopwatch.paused():
            self.copied.wait()
        self.copied = None
        self.waited += self.clock() - began

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """However training ends inside, the writer ends first, and the error names the checkpoint that it committed."""
        try:
            try:
                yield
            finally:
                self.heartbeat.beat("save", step=self.state.step)  # the writer may outlast a step's time-out
                if self.commit is not None:
                    futures.wait([self.commit])
        except Failure as failure:
            if self.pending and self.commit and self.commit.exception() is None:
                failure.kept = str(self.path(self.pending[0]))
            raise

    def note_stop(self) -> None:
        """Note on disk that the last save has begun: if no exit.json follows, the grace time was too short."""
        is_locked_out = self.lock is not None and self.lock.is_lost()
        if self.runtime.is_main and self.has_unsaved_progress and not is_locked_out:
            save_s = self.stop.durations.longest("save")
            RunErrors.in_run(self.folder.parent).write_stopping(by=self.stop.cause, save_s=save_s)
        self.is_stop_noted = True

    # The best checkpoint

    def write_best_file(self) -> None:
        """Make best.json agree with `state`. On rank 0 only.

        A kill may have come between the checkpoint and the file, or the run went back to before there was a best.
        """
        path, best = self.folder.parent / BEST_FILE, self._best_record()
        if best is None:
            files.remove(path)
        else:
            files.write_json(path, best)

    def _best_record(self) -> dict[str, Any] | None:
        step, best = self.state.best_step, self.state.best
        if step is None or best is None:
            return None
        path = self.path(step).relative_to(self.folder.parent)
        return {"step": step, "checkpoint": str(path), **best.to_json()}

    # Going back

    @contextmanager
    def weights_of(self, step: int) -> Iterator[None]:
        """Inside, the network has the weights of a step that a checkpoint holds, or of this step: averaged with EMA.

        Raises:
            Failure: DATA for a damaged checkpoint.
        """
        if step == self.state.step:
            tensors = self.state.ema.tensors if self.state.ema else {}
        else:
            try:
                tensors, _ = format.load_model(store.checkpoint_at_step(self.folder, step))
            except Failure as failure:
                failure.fix = store.damaged_best_fix(self.path(step))
                raise
        with self.state.parallel.replaced_weights(tensors):
            yield

    def roll_back(self, jump: LossJump) -> None:
        """Restore the last checkpoint on every rank, then write it again with one more rollback.

        The next step is the one after that checkpoint, with the same samples.

        Raises:
            Failure: DIVERGED if there is no checkpoint; IO and others if it cannot be written.
        """
        state = self.state
        self.heartbeat.beat("save", step=state.step)  # reading a checkpoint may take as long as a save
        step = self.runtime.run_on_rank_zero(self._newest_step)
        if step is None:
            raise Failure(
                f"{jump}, and there is no checkpoint to go back to",
                fix="lower optim.lr, lengthen optim.warmup_epochs, or save earlier: checkpoint.every_steps",
                code=ExitCode.DIVERGED,
            )
        tensors, metadata = format.load_checkpoint(store.checkpoint_at_step(self.folder, step))
        state.restore(tensors, metadata["state"])
        self.runtime.barrier()  # rank 0 replaces the folder: not while a rank reads it
        state.rollbacks += 1
        metadata = metadata | {"state": metadata["state"] | {"rollbacks": state.rollbacks}}
        self.runtime.run_on_rank_zero(lambda: self._write(state.step, format.take_snapshot(tensors, metadata)))

    def _newest_step(self) -> int | None:
        """The step of the newest checkpoint. Ranks exchange no path: a node may have mounted the folder elsewhere."""
        checkpoint = store.newest_checkpoint(self.folder)
        return checkpoint.step if checkpoint else None


def run_in_background(action: Callable[[], T]) -> Future[T]:
    """Run the action in a daemon thread; the future holds its result, or its error, whatever that is."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(action())
        except BaseException as error:
            future.set_exception(error)

    start_daemon_thread(run)
    return future


def find_nonfinite(runtime: Runtime, network: torch.nn.Module) -> str | None:
    """What a checkpoint would hold of the network that is not finite on some rank; None if all is. All ranks call it.

    The loss shows bad weights one step later, which may be after a save. BatchNorm's statistics differ from rank to
    rank, so every rank checks its own. Buffers that no checkpoint holds, such as masks, may hold anything.
    The sum of the numbers shows it: on a CPU it takes half as long as a norm, and a tenth of `isfinite`.
    """
    zero = torch.zeros((), device=runtime.device)
    parameters = dict(network.named_parameters(remove_duplicate=False))
    weights, statistics = [zero], [zero]
    for name, tensor in network.state_dict().items():
        if tensor.is_floating_point() or tensor.is_complex():
            sums = weights if name in parameters else statistics
            sums.append((tensor.float() if tensor.itemsize < 4 else tensor).sum())  # in 16 bits it may overflow
    finite = torch.stack([torch.stack(sums).isfinite().all() for sums in (weights, statistics)])
    bad_weights, bad_statistics = runtime.all_reduce_sum(1.0 - finite.float()).tolist()
    if bad_weights or bad_statistics:
        return f"{'weights' if bad_weights else 'running statistics'} that are not finite"
    return None
