"""The `Trainer` trains a model on one rank, together with the other ranks.

`fit` is the table of contents of training; `train_step` is one optimizer step.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import torch

from entrypoint import Failure, Heartbeat, RunErrors, pluralize
from train import compilation, files, rng
from train.batch_size import MicroBatchFit
from train.checkpoint import format, store
from train.checkpoint.format import SnapshotBuffers
from train.checkpoint.writer import BackgroundWriter
from train.compilation import Compiled
from train.config.batches import BatchSizes, StepCounts
from train.config.schema import RunConfig
from train.data.loader import Batch, BatchLoader
from train.data.sampler import BatchSampler, MicroBatch
from train.distributed import replica_check, shared_memory
from train.distributed.runtime import Runtime
from train.distributed.vote import StopVote, Vote, open_vote_exchange
from train.evaluation import early_stopping, results
from train.evaluation.early_stopping import EarlyStop
from train.evaluation.evaluate import (
    Evaluation,
    evaluate,
    explain_out_of_memory,
    max_batch_size,
    rank_batches,
)
from train.evaluation.results import TEST_FILE, EvaluationResult, FinalScore
from train.evaluation.scores import Counter
from train.fault_injection import FaultInjector
from train.logging import running_mean
from train.logging.metrics_logger import MetricsLogger
from train.logging.progress import EpochStats, EpochStatsCounter, Progress
from train.logging.resources import UsageRecorder
from train.logging.running_mean import RunningMean, StepMetrics, TrainingStopwatch
from train.loss_monitor import (
    MAX_SKIPPED_STEPS,
    DivergenceRecord,
    LossJump,
    LossJumped,
    RecentLosses,
    diverged_failure,
    losses_by_step,
    no_checkpoint_failure,
    steps_since_log_point,
)
from train.models.freezing import Freezing
from train.optim.optimizer import set_learning_rate
from train.optim.schedule import Schedule
from train.parallel.base import Parallel, StepLoss
from train.profiler import StepProfiler, steps_to_profile
from train.run import resume
from train.run.deadline import Durations, estimate_first_save
from train.run.lock import RunLock
from train.run.record import BEST_CONFUSION_FILE, BEST_FILE, CONFUSION_FILE
from train.run.stop import StopRequest, StopSignals
from train.state import LogWindow, TrainState
from train.tasks import CLASSIFICATION, TASKS, TargetScale
from train.tasks.base import Task, TaskCriterion
from train.tasks.registry import open_task

T = TypeVar("T")
BatchStream = Iterator[tuple[MicroBatch, Batch]]
NO_VOTE: Final = Vote()
NO_STATS: Final = EpochStats(seconds=None, images_per_s=None, loss=None)
# Only an optimizer step changes these tensors: the writer may still copy them while the next step computes.
DEFERRED_GROUPS: Final = ("optimizer", "ema")


IMAGES_TO_NAME: Final = "IMAGES"  # stands in a command for image files that only the user knows


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetInfo:
    """num_training, num_validation, num_test: images. fingerprint: a resumed run must have the same.

    task, target: as in `DataSplits`. image: for `train predict`: a file of the data, or IMAGES_TO_NAME; None if the
    model takes no image files, or the data is drawn.
    """

    classes: tuple[str, ...]
    num_training: int
    num_validation: int
    num_test: int = 0
    fingerprint: Mapping[str, Any]
    task: str = CLASSIFICATION
    target: TargetScale | None = None
    image: str | None = None

    @property
    def description(self) -> str:
        """The model's outputs in words: 10 classes."""
        return TASKS[self.task].describe_outputs(self.classes)


@dataclass(slots=True, kw_only=True)
class PendingSave:
    """A checkpoint that is being written: the step and the last evaluation that it holds.

    stalled: seconds for which training was blocked while the snapshot was taken. waited: seconds for which the next
    optimizer step was blocked until the writer had copied the optimizer's state.
    """

    step: int
    evaluated: int
    stalled: float
    waited: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """A committed checkpoint, and the seconds it took."""

    path: Path
    seconds: float


@dataclass(slots=True, kw_only=True)
class LoopState:
    """What the training loop remembers from step to step. `Trainer.begin` makes a new one, also after a rollback.

    Checkpoints hold only the sums of running_mean and logged_at, as `TrainState.window`.

    saved_at is a time of the clock; logged_at and stepped_at are of the stopwatch. checkpoint: the newest committed
    one; checkpoint_evaluated: the step of the last evaluation that it holds. copied: the event that is set when the
    writer has copied all live tensors, so that the next optimizer step may run. finished_epoch: not printed yet.
    skipped_steps: in a row, by fp16's scaler. graphs: compiled so far. stop_noted: that the last save has begun.
    """

    running_mean: RunningMean
    stopwatch: TrainingStopwatch
    durations: Durations
    epoch_stats: EpochStatsCounter
    recent_losses: RecentLosses
    stop: StopRequest
    saved_at: float
    logged_at: float
    stepped_at: float
    checkpoint: Path | None
    checkpoint_evaluated: int
    graphs: int
    writer: BackgroundWriter[SavedCheckpoint] = field(default_factory=BackgroundWriter)
    snapshot_buffers: SnapshotBuffers = field(default_factory=SnapshotBuffers)
    pending_save: PendingSave | None = None
    copied: threading.Event | None = None
    finished_epoch: EpochStats | None = None
    skipped_steps: int = 0
    stop_noted: bool = False


@dataclass(slots=True, kw_only=True)
class Trainer:
    """All ranks call the same methods in the same order. `build_trainer` makes one.

    `state` is what checkpoints hold, `loop` what they do not; both change with each step. A *start* is one launch of
    the program on a run folder: a resumed run has several.

    parallel: owns the wrapped model and the optimizer; state.network is the model without a wrapper. micro_batch: what
    trials found, with train.micro_batch_size=auto on a GPU. start_step: the step from which this start continues.
    on_first_step: rank 0 calls it after the first step of this start, to update config.yaml and run.json.
    open_test_loader: opens a loader whose validation split is the test split; None without a test split.
    final_score: of an earlier start, and of this one at its end.
    freezing: with model.freeze.
    """

    config: RunConfig
    runtime: Runtime
    folder: Path
    dataset: DatasetInfo
    loader: BatchLoader
    sampler: BatchSampler
    batches: BatchSizes
    micro_batch: MicroBatchFit | None
    steps: StepCounts
    schedule: Schedule
    parallel: Parallel
    criterion: TaskCriterion
    compiled: Compiled | None
    state: TrainState
    faults: FaultInjector
    lock: RunLock | None
    heartbeat: Heartbeat
    signals: StopSignals
    usage: UsageRecorder
    metrics_logger: MetricsLogger
    progress: Progress
    notes: tuple[str, ...]
    class_table: tuple[str, ...]
    start_step: int
    on_first_step: Callable[[Trainer], None] | None = None
    open_test_loader: Callable[[], BatchLoader] | None = None
    final_score: FinalScore | None = None
    freezing: Freezing | None = None
    clock: Callable[[], float] = time.monotonic
    loop: LoopState = field(init=False)
    task: Task = field(init=False)

    def __post_init__(self) -> None:
        self.task = open_task(self.dataset.task, self.dataset.classes, self.dataset.target)

    # Training, from the first step to the last

    def fit(self) -> None:
        """Train from `state.step` to the end, or to the step at which all ranks agree to stop. Then all is committed.

        `is_finished` tells which of the two it was. With train.spike=rollback it trains again from the last checkpoint
        after a jump of the loss. A test split is measured once, after the last step.

        Raises:
            Failure: DIVERGED; IO and others from a save; DATA for images that cannot be read.
        """
        jump: LossJump | None = None
        while True:
            tested = self.final_score.trained_steps if self.final_score else 0
            with self.metrics_logger.opened(step=self.state.step, evaluated=self.state.evaluated, tested=tested):
                if jump is not None:
                    self._log_rollback(jump)
                jump = self._fit_until_jump()
                if jump is None:
                    if self.is_test_due:
                        self.measure_test_split()
                    self.usage.finish(self.metrics_logger, self.state.step, images=self.images_trained)
                    return
            self._roll_back(jump)

    def _fit_until_jump(self) -> LossJump | None:
        self.begin()
        self.runtime.run_on_rank_zero(self._write_best_file)
        profiler = self._build_profiler()
        try:
            with self._finish_pending_save():
                self._train(profiler)
                if not self.is_trained:
                    self._note_stop()
                self.save()
                self.wait_for_save()
        except LossJumped as error:
            return error.jump  # not the exception: its frames hold the stream of batches
        finally:
            profiler.close(self.state.step)
        return None

    def begin(self) -> None:
        """Start the clocks and counters where `state` stands."""
        state, world = self.state, self.runtime.world
        stopwatch = TrainingStopwatch(state.seconds, clock=self.clock)
        num_bytes = resume.checkpoint_bytes(self.config, state.network, state.optimizer)
        durations = Durations({"save": estimate_first_save(num_bytes)})
        if state.window is not None and len(state.window.sums[0]) != len(self.task.averaged) + 2:
            state.window = None  # a version that averaged other values: the next line's means begin here
        sums = state.window.sums_of(world.rank, world.world_size) if state.window else None
        self.loop = LoopState(
            running_mean=RunningMean(self.runtime.device, self.task.averaged, sums),
            stopwatch=stopwatch,
            durations=durations,
            epoch_stats=self._begin_epoch_stats(stopwatch.seconds),
            recent_losses=RecentLosses(self.task.choices_to_guess(self.config.optim)),
            stop=StopRequest(self.signals, durations, is_main=self.runtime.is_main, clock=self.clock),
            saved_at=self.clock(),
            logged_at=state.window.since if state.window else stopwatch.seconds,
            stepped_at=stopwatch.seconds,
            checkpoint=self.checkpoint_path(state.step) if state.step else None,
            checkpoint_evaluated=state.evaluated,
            graphs=compilation.count_compiled()["graphs"] if self.compiled else 0,
        )

    def _train(self, profiler: StepProfiler) -> None:
        """Train, log, evaluate and save until the run is finished, or until all ranks agree to stop."""
        state, first_step = self.state, self.state.step
        host_ranks = shared_memory.host_ranks(self.runtime.world, self.runtime.all_gather)
        vote = StopVote(open_vote_exchange(self.runtime.cpu_group, host_ranks), self._vote)
        batches = self.loader.train(self.sampler.micro_batches(state.step))
        while True:
            self.heartbeat.beat("step", "agreement", step=state.step)
            decision = vote.result()
            if decision.written and self.loop.pending_save is not None:
                self.wait_for_save()
            if decision.stop:
                return
            if self._evaluation_is_due():
                is_completed = self.evaluate()
                if not is_completed:
                    return
            if self.is_trained:
                return
            if decision.save or self._save_is_due():
                self.save()
            self._apply_freezing()
            vote.propose()
            profiler.before_step(state.step + 1)
            self.train_step(batches)
            profiler.after_step(state.step)
            if state.step == first_step + 1:
                self._record_first_step()
            self.progress.step()
            self._compare_replicas()
            if state.step % self.config.log.every_steps == 0:
                self.log_step()
            if state.step % self.steps.per_epoch == 0 or state.step == self.steps.total:
                self.end_epoch()
            self._measure_step()

    def _apply_freezing(self) -> None:
        """Freeze or unfreeze the backbone where model.freeze says so."""
        freezing = self.freezing
        if freezing is None or not freezing.update(self.state.step):
            return
        with self.loop.stopwatch.paused():
            self.parallel.parameters_changed()
        self.progress.say(
            f"step {self.state.step}: the backbone is {'frozen' if freezing.is_frozen else 'trained too'}"
        )

    # One optimizer step

    def train_step(self, batches: BatchStream) -> None:
        """One optimizer step: this rank's micro batches of the global batch, one exchange of gradients, one update.

        With fp16 the scaler may skip the update; the step, its samples and its learning rate count all the same.
        """
        state, loop = self.state, self.loop
        self.faults.strike("step", state.step)
        self.faults.flip_parameter_bit(state.step, state.network)
        set_learning_rate(self.parallel.optimizer, self.schedule(state.step))
        for values, samples in self.parallel.accumulate(partial(self._compute_loss, batches)):
            loop.running_mean.add(values, samples)
        self.heartbeat.at("optimizer")
        self._await_copy()  # the writer still reads what the update changes
        update = self.parallel.update(self.config.train.clip_grad_norm)
        state.step += 1
        if state.ema is not None:
            state.ema.update(state.step)
        loop.skipped_steps = 0 if update.applied else loop.skipped_steps + 1

    def _compute_loss(self, batches: BatchStream) -> StepLoss:
        """The loss of the next micro batch and its other averaged values, on the device.

        Dropout's generator is seeded by the micro batch's place in the run.
        """
        step, seed = self.state.step, self.config.run.seed
        self.heartbeat.beat("step", "reads data")
        self.faults.strike("data", step)
        micro_batch, batch = next(batches)
        self.parallel.seed(rng.derive_seed(rng.DROPOUT, seed, micro_batch.step, micro_batch.number))
        self.heartbeat.at("forward")
        self.faults.strike("fwd", step)
        if self.compiled is not None and self.compiled.replayed:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        logits = self.parallel.model(batch.images)
        loss = self.faults.corrupt_loss(step, self.criterion(logits, batch.labels, batch.weights, batch.mix))
        values = running_mean.measure_micro_batch(loss, logits, batch.labels, self.task, batch.mix)
        self.heartbeat.at("backward")  # nothing but the backward pass follows
        self.faults.strike("bwd", step)
        return StepLoss(loss=loss, values=values, samples=len(batch.labels))

    def _measure_step(self) -> None:
        before, self.loop.stepped_at = self.loop.stepped_at, self.loop.stopwatch.seconds
        self.loop.durations.add("step", self.loop.stepped_at - before)

    def _record_first_step(self) -> None:
        on_first_step = self.on_first_step
        if on_first_step is not None:
            with self.loop.stopwatch.paused():
                self.runtime.run_on_rank_zero(lambda: on_first_step(self))

    # Logging

    def log_step(self) -> None:
        """Read the sums since the last log point, on all ranks; write and print their means."""
        state, loop = self.state, self.loop
        self.heartbeat.beat("step", "device", step=state.step)
        means = self.check_finite_loss()
        loop.running_mean.clear()
        if means is None:
            return
        self._warn_of_jump(means.loss)
        self._warn_of_recompilation()
        unreadable = self._count_unreadable()
        seconds, loop.logged_at = loop.stopwatch.seconds - loop.logged_at, loop.stopwatch.seconds
        values = {
            **means.means,
            "lr": self.schedule(state.step - 1),
            "images_per_s": means.samples / seconds,
            **unreadable,
        }
        epoch = self._epoch_of(state.step)
        self.metrics_logger.write("train", step=state.step, epoch=epoch, **values)
        self.usage.log(self.metrics_logger, state.step)
        self.progress.log_point(values, step=state.step, epoch=epoch, epochs=self.config.train.epochs)

    def end_epoch(self) -> None:
        """Close the epoch's statistics. If it ends with an evaluation, its line is printed after that."""
        self.heartbeat.beat("step", "device", step=self.state.step)
        self.check_finite_loss()
        self.loop.finished_epoch = self.loop.epoch_stats.close(
            self.state.step, self.loop.stopwatch.seconds, epoch=self.steps.per_epoch
        )
        if not self._evaluation_is_due():
            self._print_epoch()

    def check_finite_loss(self) -> StepMetrics | None:
        """All-reduce the sums since the last log point; return the means if the loss is finite. All ranks call it.

        None if nothing was trained since then. With fp16 a single infinite loss only makes the scaler skip a step. The
        resource usage of all ranks travels along, so that it needs no all-reduce of its own.

        Raises:
            Failure: DIVERGED.
            LossJumped: with train.spike=rollback.
        """
        means = self.loop.running_mean.read(self.runtime.all_reduce_sum, self.usage.values_to_sum())
        self.usage.receive(means.extra_sums, trained=means.samples > 0)
        if not means.samples:
            return None
        fp16 = self.state.scaler is not None
        if (self.loop.skipped_steps >= MAX_SKIPPED_STEPS) if fp16 else not math.isfinite(means.loss):
            raise self._diverged(f"mean loss {means.loss} over the last {means.samples} samples")
        if self.config.train.spike == "rollback":
            self._refuse_jump(means.loss)
        self.loop.epoch_stats.read(self.state.step, means.loss, means.samples)
        return means

    def _refuse_jump(self, loss: float) -> None:
        jump = self.loop.recent_losses.find_jump(self.state.step, loss)
        if jump is None:
            return
        if self.state.rollbacks:
            raise self._diverged(f"{jump}, for the second time")
        raise LossJumped(jump)

    def _warn_of_jump(self, loss: float) -> None:
        jump = self.loop.recent_losses.add(self.state.step, loss)
        if jump and self.config.train.spike == "warn":
            self.metrics_logger.write("spike", step=jump.step, loss=jump.loss, usual=jump.usual)
            self.progress.say(f"warning: {jump}; train.spike=rollback would go back to the last checkpoint")

    def _warn_of_recompilation(self) -> None:
        """Code that is compiled after the first step makes all ranks wait, seconds to minutes."""
        if self.compiled is None or (graphs := compilation.count_compiled()["graphs"]) == self.loop.graphs:
            return
        new_graphs, self.loop.graphs = graphs - self.loop.graphs, graphs
        self.metrics_logger.write("compiled", step=self.state.step, graphs=new_graphs)
        self.progress.say(
            f"warning: graphs compiled again by step {self.state.step}: {new_graphs}; the model's code depends on what "
            "changes from step to step (TORCH_LOGS=recompiles says on what), or set train.compile=false"
        )

    def _diverged(self, evidence: str) -> Failure:
        """All ranks come here together, and leave errors/diverged.json behind."""
        steps = steps_since_log_point(self.state.step, self.config.log.every_steps)
        own_losses = losses_by_step(self.loop.running_mean.losses(), steps, self.parallel.losses_per_step)
        losses = self.runtime.all_gather(own_losses)
        if self.runtime.is_main:
            paths = self.loader.paths
            record = DivergenceRecord(evidence=evidence, steps=steps, losses=losses, sampler=self.sampler, paths=paths)
            record.write(self.folder)
        return diverged_failure(self.state.step, evidence, self.loop.checkpoint)

    def _count_unreadable(self) -> dict[str, int]:
        """Count the unreadable images of all ranks, so that all ranks end alike if there are too many."""
        if self.config.data.max_bad_images == 0:
            return {}
        log = self.loader.broken
        for rank_unreadable in self.runtime.all_gather(log.unreadable):
            log.merge(rank_unreadable)
        return {"bad_images": len(log.unreadable)}

    def _print_epoch(self, metrics_text: str | None = None) -> None:
        """Print one line for the current epoch, which may be incomplete.

        If this start trained no step of the epoch, the line shows only the evaluation.
        """
        step = self.state.step
        stats, self.loop.finished_epoch = self.loop.finished_epoch or NO_STATS, None
        self.progress.epoch(
            step=step,
            epoch=self._epoch_of(step),
            epochs=self.config.train.epochs,
            is_complete=step % self.steps.per_epoch == 0,
            stats=stats,
            metrics_text=metrics_text,
        )

    def _begin_epoch_stats(self, seconds: float) -> EpochStatsCounter:
        """A counter that continues the epoch that `state` stands in."""
        loss, *_, samples = self.state.window.totals() if self.state.window else (0.0, 0.0)
        return EpochStatsCounter(self.state.step, seconds, batch=self.batches.global_, loss=loss, samples=samples)

    # Evaluation

    def evaluate(self) -> bool:
        """Evaluate on the validation images, and save a checkpoint if it is the best so far.

        False if a rank had to stop before the end.
        """
        state, loop, batch_size = self.state, self.loop, self.config.eval.batch_size
        num_validation = self.dataset.num_validation
        own_samples = rank_batches(num_validation, batch_size, self.runtime.world)
        batches = self._until_stop(self.heartbeat.each("evaluation", self.loader.evaluate(own_samples)))
        self.heartbeat.beat("evaluation", step=state.step)
        self.faults.strike("eval", state.step)
        began = self.clock()
        largest = max_batch_size(num_validation, batch_size)
        ema_weights = state.ema.applied() if state.ema else nullcontext()
        autocast = self.runtime.accelerator.autocast()  # with DataParallel, state.network has none itself
        with loop.stopwatch.paused(), ema_weights, autocast, explain_out_of_memory(largest):
            evaluation = evaluate(
                state.network,
                batches,
                self.runtime,
                classes=len(self.dataset.classes),
                padded_size=largest if self.compiled else None,
                new_counter=self._new_counter(),
                flip=self.config.eval.flip,
            )
        self._count_unreadable()
        if any(self.runtime.all_gather(loop.stop.is_made())):
            return False
        loop.durations.add("evaluation", self.clock() - began)
        state.result, state.unflipped, state.evaluated = evaluation.result, evaluation.unflipped, state.step
        self._log_evaluation(evaluation)
        self._compare_with_best(evaluation.result)
        self._log_early_stop()
        if state.best_step == state.step:
            self._write_confusion(BEST_CONFUSION_FILE, evaluation)
            self.save()
        return True

    def _until_stop(self, batches: Iterable[T]) -> Iterator[T]:
        """The batches of an evaluation until this rank must stop: an evaluation may outlast the grace time."""
        for batch in batches:
            yield batch
            if self.loop.stop.is_made():
                break

    def _log_evaluation(self, evaluation: Evaluation) -> None:
        """Never fails: what cannot be written is counted and printed."""
        step, result = self.state.step, evaluation.result
        self.metrics_logger.write("eval", step=step, epoch=self._epoch_of(step), **results.metrics_to_log(result))
        self._write_confusion(CONFUSION_FILE, evaluation)
        self._print_epoch(results.format_epoch_line(result, self.config.eval.metric))

    def _write_confusion(self, name: str, evaluation: Evaluation) -> None:
        if evaluation.confusion is not None and self.runtime.is_main:
            classes, matrix = self.dataset.classes, evaluation.confusion.tolist()
            self.metrics_logger.replace(name, results.confusion_json(self.state.step, classes, matrix))

    def _compare_with_best(self, result: EvaluationResult) -> None:
        """Update best, best_step and the counts for early stopping. Rank 0 decides, so that no rank stops alone."""
        state, config = self.state, self.config.eval
        decision = (
            results.is_better(config.metric, result, state.best),
            early_stopping.count_target_streak(config, state.target_streak, result),
        )
        is_best, state.target_streak = self.runtime.run_on_rank_zero(lambda: decision)
        state.stale_evaluations = 0 if is_best else state.stale_evaluations + 1
        if is_best:
            state.best, state.best_step = result, state.step

    def _log_early_stop(self) -> None:
        step, config, state = self.state.step, self.config.eval, self.state
        if config.early_stop is not None and state.stale_evaluations >= config.early_stop and step < self.steps.total:
            values = {"metric": config.metric, "evaluations": state.stale_evaluations, "best_step": state.best_step}
            self.metrics_logger.write("early_stop", step=step, epoch=self._epoch_of(step), **values)

    # Test

    def measure_test_split(self) -> None:
        """Measure the best checkpoint's weights on the test split; without it, those of the last step.

        If a rank has to stop before the end, nothing is written, and the next start measures it.
        """
        open_loader, state, num_test = self.open_test_loader, self.state, self.dataset.num_test
        assert open_loader is not None
        step = self.runtime.run_on_rank_zero(
            lambda: store.tested_step(self.checkpoints, best_step=state.best_step, last_step=state.step)
        )
        if state.best_step not in (None, step):
            best = self.checkpoint_path(state.best_step)
            self.progress.say(f"warning: {best} is gone: the test split is measured with the weights of step {step}")
        self.heartbeat.beat("data", step=state.step)
        batch_size = self.config.eval.batch_size
        if self.compiled is not None and self.dataset.num_validation:  # the size that the model was compiled for
            batch_size = max_batch_size(self.dataset.num_validation, batch_size)
        largest = max_batch_size(num_test, batch_size)
        own_samples = rank_batches(num_test, batch_size, self.runtime.world)
        loader = open_loader()
        self.heartbeat.beat("evaluation", step=state.step)
        batches = self._until_stop(self.heartbeat.each("evaluation", loader.evaluate(own_samples)))
        with self._weights_of(step), self.runtime.accelerator.autocast(), explain_out_of_memory(largest):
            evaluation = evaluate(
                state.network,
                batches,
                self.runtime,
                classes=len(self.dataset.classes),
                padded_size=batch_size if self.compiled and isinstance(batch_size, int) else None,
                new_counter=self._new_counter(thresholds=self._thresholds_of(step)),
                flip=self.config.eval.flip,
            )
        if any(self.runtime.all_gather(self.loop.stop.is_made())):
            return
        path = str(self.checkpoint_path(step).relative_to(self.folder))
        score = FinalScore(step=step, trained_steps=state.step, checkpoint=path, result=evaluation.result)
        values = {"weights_step": step, **results.metrics_to_log(evaluation.result)}
        self.metrics_logger.write("test", step=state.step, epoch=self._epoch_of(state.step), **values)
        self.runtime.run_on_rank_zero(lambda: files.write_json(self.folder / TEST_FILE, score.to_json()))
        self.final_score = score

    def _new_counter(self, *, thresholds: tuple[float, ...] | None = None) -> Callable[[int, torch.device], Counter]:
        """What an evaluation of the task counts. thresholds: of several labels, instead of eval.threshold."""
        threshold = thresholds or self.config.eval.threshold
        return partial(self.task.build_counter, optim=self.config.optim, threshold=threshold)

    def _thresholds_of(self, step: int) -> tuple[float, ...] | None:
        """The thresholds that the validation images chose for the weights of a step; None without an evaluation."""
        state = self.state
        results = {state.evaluated: state.result, state.best_step: state.best}
        result = results.get(step)
        return None if result is None else result.thresholds

    @contextmanager
    def _weights_of(self, step: int) -> Iterator[None]:
        """Inside, the network has the weights of a step that a checkpoint holds: their EMA, if there is one."""
        state = self.state
        if step == state.step:
            with state.ema.applied() if state.ema else nullcontext():
                yield
            return
        try:
            tensors, _ = format.load_checkpoint(format.checkpoint_at_step(self.checkpoints, step), ("model", "ema"))
        except Failure as failure:
            failure.fix = store.damaged_best_fix(self.checkpoint_path(step))
            raise
        last = {name: tensor.to("cpu", copy=True) for name, tensor in state.network.state_dict().items()}
        state.network.load_state_dict({**tensors["model"], **tensors.get("ema", {})})
        try:
            yield
        finally:
            state.network.load_state_dict(last)

    # Checkpoints

    def save(self) -> None:
        """Take a snapshot and let it be written while training continues; `wait_for_save` waits for it.

        All ranks call it. Nothing is written if the state is saved already, or for a loss, weights or buffers that are
        not finite. There is one save at a time.

        Raises:
            Failure: DIVERGED; whatever `wait_for_save` raises for the save before.
            LossJumped: with train.spike=rollback.
        """
        state, loop = self.state, self.loop
        self.check_finite_loss()
        if state.step == 0 or not self.has_unsaved_progress:
            return
        self.wait_for_save()
        self._check_replicas_before_save()
        self.heartbeat.beat("save", step=state.step)
        with loop.stopwatch.paused():
            began = loop.saved_at = self.clock()
            state.seconds = loop.stopwatch.seconds
            sums = self.runtime.all_gather(loop.running_mean.sums())
            state.window = LogWindow(sums=sums, since=loop.logged_at)
            if self.runtime.is_main:
                loop.writer.begin(self._take_snapshot(began))
            stalled = self.clock() - began
        loop.pending_save = PendingSave(step=state.step, evaluated=state.evaluated, stalled=stalled)

    def wait_for_save(self) -> None:
        """Wait until the pending checkpoint is committed. All ranks learn of it, or of what went wrong.

        Raises:
            Failure: as `format.write_snapshot`.
        """
        loop, pending = self.loop, self.loop.pending_save
        if pending is None:
            return
        loop.pending_save = None
        self.heartbeat.beat("save", step=self.state.step)
        with loop.stopwatch.paused():
            saved = self.runtime.run_on_rank_zero(lambda: loop.writer.result(self._note_stop_while_waiting))
        loop.checkpoint, loop.checkpoint_evaluated = saved.path, pending.evaluated
        loop.durations.add("save", saved.seconds)
        stalled = pending.stalled + pending.waited
        self.metrics_logger.write("checkpoint", step=pending.step, seconds=saved.seconds, stalled_seconds=stalled)

    def _take_snapshot(self, began: float) -> Callable[[], SavedCheckpoint]:
        """Copy the state; returns the action that commits it, for the writer. On rank 0 only.

        On a CPU the action itself copies the optimizer and EMA tensors, while the next step computes its gradients.
        best.json names a checkpoint only once it is committed, and older checkpoints are deleted after that.
        """
        step, best_step = self.state.step, self.state.best_step
        metadata = resume.checkpoint_metadata(self.config, self.runtime, self.dataset.fingerprint, self.state)
        pending = format.begin_snapshot(
            step, self.state.tensors(), metadata, self.loop.snapshot_buffers, deferred=DEFERRED_GROUPS
        )
        self.loop.copied, best = pending.copied, self._best_record()

        def commit() -> SavedCheckpoint:
            snapshot = pending.finish()
            self.faults.strike("save", step)
            if self.lock:
                self.lock.refuse_lost()
            path = format.write_snapshot(self.checkpoints, snapshot)
            if best is not None and best_step == step:
                files.write_json(self.folder / BEST_FILE, best)
            store.prune_checkpoints(self.checkpoints, self.config.checkpoint, best=best_step, trusted=step)
            return SavedCheckpoint(path=path, seconds=self.clock() - began)

        return commit

    def _await_copy(self) -> None:
        """Before an update, wait until the writer has copied what the update changes."""
        loop = self.loop
        if loop.copied is None:
            return
        began = self.clock()
        with loop.stopwatch.paused():
            loop.copied.wait()
        loop.copied = None
        if loop.pending_save is not None:
            loop.pending_save.waited += self.clock() - began

    @contextmanager
    def _finish_pending_save(self) -> Iterator[None]:
        """However training ends inside, the pending checkpoint is finished first, and the error names it."""
        writer = self.loop.writer
        try:
            with writer:
                try:
                    yield
                finally:
                    self.heartbeat.beat("save", step=self.state.step)  # the writer may outlast a step's time-out
        except Failure as failure:
            with suppress(Failure, RuntimeError):  # it failed too, or there was none
                failure.kept = str(writer.result().path)
            raise

    def _write_best_file(self) -> None:
        """Make best.json agree with `state`. On rank 0 only.

        A kill may have come between the checkpoint and the file, or the run went back to before there was a best.
        """
        best = self._best_record()
        if best is None:
            files.remove(self.folder / BEST_FILE)
        else:
            files.write_json(self.folder / BEST_FILE, best)

    def _best_record(self) -> dict[str, Any] | None:
        step, best = self.state.best_step, self.state.best
        if step is None or best is None:
            return None
        path = self.checkpoint_path(step).relative_to(self.folder)
        return {"step": step, "checkpoint": str(path), **best.to_json()}

    def _check_replicas_before_save(self) -> None:
        """Refuse weights and buffers that are not finite; compare the replicas if the config asks for it.

        Raises:
            Failure: DIVERGED; NODE or PEER, see `replica_check.check_replicas`.
        """
        self._refuse_nonfinite_state()
        if self.config.train.check_replicas_every_steps is not None:
            replica_check.check_replicas(self.runtime, self.state.network, self.state.optimizer, self.state.step)

    def _refuse_nonfinite_state(self) -> None:
        """Refuse numbers that are not finite in what a checkpoint holds of the network.

        The loss shows bad weights one step later, which may be after a save. BatchNorm's statistics differ from rank to
        rank, so every rank checks its own. Buffers that no checkpoint holds, such as masks, may hold anything.
        The sum of the numbers shows it: on a CPU it takes half as long as a norm, and a tenth of `isfinite`.

        Raises:
            Failure: DIVERGED.
        """
        network, zero = self.state.network, torch.zeros((), device=self.runtime.device)
        parameters = dict(network.named_parameters(remove_duplicate=False))
        weights, statistics = [zero], [zero]
        for name, tensor in network.state_dict().items():
            if tensor.is_floating_point() or tensor.is_complex():
                sums = weights if name in parameters else statistics
                sums.append((tensor.float() if tensor.itemsize < 4 else tensor).sum())  # in 16 bits it may overflow
        finite = torch.stack([torch.stack(sums).isfinite().all() for sums in (weights, statistics)])
        bad_weights, bad_statistics = self.runtime.all_reduce_sum(1.0 - finite.float()).tolist()
        if bad_weights or bad_statistics:
            raise self._diverged(f"{'weights' if bad_weights else 'running statistics'} that are not finite")

    def _compare_replicas(self) -> None:
        """Raises Failure: NODE or PEER, see `replica_check.check_replicas`."""
        every = self.config.train.check_replicas_every_steps
        if every is not None and self.state.step % every == 0:
            self.heartbeat.beat("step", step=self.state.step)
            replica_check.check_replicas(self.runtime, self.state.network, self.state.optimizer, self.state.step)

    # Rollback

    def _roll_back(self, jump: LossJump) -> None:
        """Restore the last checkpoint on every rank, then write it again with one more rollback.

        The next step is the one after that checkpoint, with the same samples.

        Raises:
            Failure: DIVERGED if there is no checkpoint; IO and others if it cannot be written.
        """
        state = self.state
        self.heartbeat.beat("save", step=state.step)  # reading a checkpoint may take as long as a save
        step = self.runtime.run_on_rank_zero(lambda: self._last_checkpoint_step(jump))
        tensors, metadata = format.load_checkpoint(format.checkpoint_at_step(self.checkpoints, step))
        state.restore(tensors, metadata["state"])
        self.runtime.barrier()  # rank 0 replaces the folder: not while a rank reads it
        state.rollbacks += 1
        metadata = metadata | {"state": metadata["state"] | {"rollbacks": state.rollbacks}}

        def rewrite() -> None:
            if self.lock:
                self.lock.refuse_lost()
            format.write_snapshot(self.checkpoints, format.take_snapshot(step, tensors, metadata))

        self.runtime.run_on_rank_zero(rewrite)

    def _last_checkpoint_step(self, jump: LossJump) -> int:
        checkpoint = format.newest_checkpoint(self.checkpoints)
        if checkpoint is None:
            raise no_checkpoint_failure(jump)
        return checkpoint.step

    def _log_rollback(self, jump: LossJump) -> None:
        """The metrics were opened again, without the steps after the checkpoint."""
        step = self.state.step
        self.metrics_logger.write("rollback", step=step, seen_at=jump.step, loss=jump.loss, usual=jump.usual)
        self.progress.rewind(step)
        lost = pluralize(jump.step - step, "step")
        self.progress.say(
            f"warning: {jump}; back by {lost} to {self.checkpoint_path(step)}, once in a run (train.spike: rollback)"
        )

    # When to evaluate, to save and to stop

    @property
    def is_finished(self) -> bool:
        """Whether the run is trained to its end, and its test split, if it has one, is measured."""
        return self.is_trained and not self.is_test_due

    @property
    def is_test_due(self) -> bool:
        """Whether the run is trained, and nobody has measured its test split since its last step."""
        is_measured = self.final_score is not None and self.final_score.trained_steps == self.state.step
        return self.open_test_loader is not None and self.is_trained and not is_measured

    @property
    def is_trained(self) -> bool:
        """Whether all steps are trained and evaluated, or the run has stopped early."""
        is_done = self.state.step >= self.steps.total and not self._evaluation_is_due()
        return is_done or bool(self.early_stops)

    @property
    def early_stops(self) -> tuple[EarlyStop, ...]:
        """The reasons to end before the last step: eval.target is reached, or the metric no longer improves."""
        return early_stopping.find_early_stops(
            self.config.eval,
            target_streak=self.state.target_streak,
            stale_evaluations=self.state.stale_evaluations,
        )

    @property
    def has_unsaved_progress(self) -> bool:
        """Whether this step, or its evaluation, is in no checkpoint, not even in the pending one."""
        state, loop = self.state, self.loop
        if loop.pending_save is not None:
            return (loop.pending_save.step, loop.pending_save.evaluated) != (state.step, state.evaluated)
        is_saved = loop.checkpoint is not None and loop.checkpoint.name == store.step_folder_name(state.step)
        return state.step > 0 and not (is_saved and loop.checkpoint_evaluated == state.evaluated)

    def _evaluation_is_due(self, steps_ahead: int = 0) -> bool:
        """After every eval.every_epochs epochs and at the end; not twice for a run that resumed after one."""
        step = self.state.step + steps_ahead
        every = self.steps.per_epoch * self.config.eval.every_epochs
        is_due = step % every == 0 or step >= self.steps.total
        return is_due and self.dataset.num_validation > 0 and self.state.evaluated < step

    def _save_is_due(self) -> bool:
        every = self.config.checkpoint.every_steps
        return every is not None and self.state.step > 0 and self.state.step % every == 0

    def _vote(self) -> Vote:
        """This rank's vote. Each rank looks at its signals; rank 0 also at the clock and at its writer."""
        loop, minutes = self.loop, self.config.checkpoint.every_minutes
        save = self.runtime.is_main and minutes is not None and self.clock() - loop.saved_at >= 60 * minutes
        has_deadline = self.signals.deadline is not None
        # An evaluation may come before all ranks have agreed.
        evaluation = has_deadline and any(self._evaluation_is_due(ahead) for ahead in range(3))
        stop = loop.stop.is_made(evaluation=evaluation)
        written = loop.pending_save is not None and loop.writer.over
        return Vote(stop=stop, save=save, written=written) if stop or save or written else NO_VOTE

    def _note_stop(self) -> None:
        """Note on disk that the last save has begun: if no exit.json follows, the grace time was too short."""
        is_locked_out = self.lock is not None and self.lock.is_lost()
        if self.runtime.is_main and self.has_unsaved_progress and not is_locked_out:
            save_s = self.loop.durations.longest("save")
            RunErrors.in_run(self.folder).write_stopping(by=self.loop.stop.cause, save_s=save_s)
        self.loop.stop_noted = True

    def _note_stop_while_waiting(self) -> None:
        """A stop signal may come while a save is waited for, and the grace time may end before the wait does."""
        if self.loop.stop.is_made() and not self.loop.stop_noted:
            self._note_stop()

    # Paths and numbers

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.folder / "checkpoints"

    def checkpoint_path(self, step: int) -> Path:
        """The folder of the checkpoint of a step."""
        return self.checkpoints / store.step_folder_name(step)

    @property
    def images_trained(self) -> int:
        """Images of the steps that this start trained and did not roll back."""
        return (self.state.step - self.start_step) * self.batches.global_

    def _epoch_of(self, step: int) -> int:
        """The epoch that contains finished step `step`; both count from 1."""
        return -(-step // self.steps.per_epoch)

    def _build_profiler(self) -> StepProfiler:
        say, config = self.progress.say, self.config.profile
        steps = steps_to_profile(config.steps, done=self.state.step, total=self.steps.total, say=say)
        return StepProfiler(
            steps,
            runtime=self.runtime,
            folder=self.folder,
            stopwatch=self.loop.stopwatch,
            heartbeat=self.heartbeat,
            say=say,
        )
