"""The `Trainer` trains a model on one rank, together with the other ranks.

`fit` is the table of contents of training; `train_step` is one optimizer step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from entrypoint import Failure, Heartbeat, pluralize
from train import files, rng
from train.batch_size import MicroBatchFit
from train.checkpoint import store
from train.checkpoint.checkpointer import Checkpointer, find_nonfinite
from train.compilation import Compiled
from train.config.batches import BatchSizes, StepCounts
from train.config.schema import RunConfig
from train.data.batch import Batch
from train.data.loader import BatchLoader
from train.data.sampler import BatchSampler, MicroBatch
from train.distributed import shared_memory
from train.distributed.runtime import Runtime
from train.distributed.vote import StopVote, Vote, open_vote_exchange
from train.evaluation import early_stopping, results
from train.evaluation.early_stopping import EarlyStop
from train.evaluation.results import TEST_FILE, EvaluationResult, FinalScore
from train.evaluation.validator import Evaluation, Validator, max_batch_size
from train.fault_injection import FaultInjector
from train.hooks import StepHook, open_hooks
from train.logging.metrics_logger import MetricsLogger
from train.logging.progress import EpochStats, EpochStatsCounter, Progress
from train.logging.resources import UsageRecorder
from train.logging.running_mean import RunningMean, StepMetrics, TrainingStopwatch
from train.loss_monitor import (
    MAX_SKIPPED_STEPS,
    LossJump,
    RecentLosses,
    diverged_failure,
    losses_by_step,
    steps_since_log_point,
    write_divergence,
)
from train.models.freezing import Freezing
from train.optim.optimizer import set_learning_rate
from train.optim.schedule import Schedule
from train.parallel.base import Parallel, Update
from train.run import resume
from train.run.deadline import Durations, estimate_first_save
from train.run.lock import RunLock
from train.run.record import BEST_CONFUSION_FILE, CONFUSION_FILE
from train.run.stop import StopRequest, StopSignals
from train.state import LogWindow, TrainState
from train.tasks import CLASSIFICATION, TASKS, TargetScale
from train.tasks.base import StepLoss, Task

BatchStream = Iterator[tuple[MicroBatch, Batch]]
NO_VOTE: Final = Vote()
NO_STATS: Final = EpochStats(seconds=None, images_per_s=None, loss=None)


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
class LoopState:
    """What the training loop remembers from step to step. `Trainer.begin` makes a new one, also after a rollback.

    Checkpoints hold only the sums of running_mean and logged_at, as `TrainState.window`.
    """

    running_mean: RunningMean
    stopwatch: TrainingStopwatch
    epoch_stats: EpochStatsCounter
    recent_losses: RecentLosses
    stop: StopRequest
    logged_at: float  # by the stopwatch
    stepped_at: float  # by the stopwatch
    finished_epoch: EpochStats | None = None  # until it is printed
    skipped_steps: int = 0  # in a row, by fp16's scaler


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
    task: Task
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
    checkpointer: Checkpointer = field(init=False)
    validator: Validator = field(init=False)
    hooks: list[StepHook] = field(default_factory=list)

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
            self.checkpointer.roll_back(jump)

    def _fit_until_jump(self) -> LossJump | None:
        self.begin()
        self.runtime.run_on_rank_zero(self.checkpointer.write_best_file)
        self.hooks = open_hooks(
            self.config,
            self.runtime,
            self.state,
            self.folder,
            total_steps=self.steps.total,
            is_compiled=self.compiled is not None,
            heartbeat=self.heartbeat,
            stopwatch=self.loop.stopwatch,
            metrics_logger=self.metrics_logger,
            say=self.progress.say,
        )
        try:
            with self.checkpointer.finishing():
                self._train()
                if not self.is_trained:
                    self.checkpointer.note_stop()
                self.save()
                self.checkpointer.wait()
        except LossJump as jump:
            return jump.with_traceback(None)  # whose frames hold the stream of batches
        finally:
            for hook in self.hooks:
                hook.close(self.state.step)
        return None

    def begin(self) -> None:
        """Start the clocks and counters where `state` stands, and make what saves and evaluates."""
        config, runtime, state = self.config, self.runtime, self.state
        stopwatch = TrainingStopwatch(state.seconds, clock=self.clock)
        num_bytes = resume.checkpoint_bytes(config.train, state.network, self.parallel.optimizer)
        durations = Durations({"save": estimate_first_save(num_bytes)})
        stop = StopRequest(self.signals, durations, is_main=runtime.is_main, clock=self.clock)
        if state.window is not None and len(state.window.sums[0]) != len(self.task.averaged) + 2:
            state.window = None  # a version that averaged other values: the next line's means begin here
        sums, loss, samples, logged_at = None, 0.0, 0.0, stopwatch.seconds
        if state.window is not None:
            sums = state.window.sums_of(runtime.world.rank, runtime.world.world_size)
            loss, *_, samples = state.window.totals()
            logged_at = state.window.since
        self.loop = LoopState(
            running_mean=RunningMean(runtime.device, self.task.averaged, sums),
            stopwatch=stopwatch,
            epoch_stats=EpochStatsCounter(
                state.step, stopwatch.seconds, batch=self.batches.global_, loss=loss, samples=samples
            ),
            recent_losses=RecentLosses(self.task.choices_to_guess),
            stop=stop,
            logged_at=logged_at,
            stepped_at=stopwatch.seconds,
        )
        self.checkpointer = Checkpointer(
            config=config,
            runtime=runtime,
            folder=self.folder / "checkpoints",
            data_fingerprint=self.dataset.fingerprint,
            state=state,
            faults=self.faults,
            lock=self.lock,
            heartbeat=self.heartbeat,
            metrics_logger=self.metrics_logger,
            stopwatch=stopwatch,
            stop=stop,
            clock=self.clock,
            saved_at=self.clock(),
            # A start stands where it restored a checkpoint, or at step 0, of which there is none.
            committed=(state.step, state.evaluated) if state.step else None,
        )
        validation = config.eval
        if self.compiled is not None and self.dataset.num_validation:  # compiled for batches of this size
            validation = replace(
                validation, batch_size=max_batch_size(self.dataset.num_validation, validation.batch_size)
            )
        self.validator = Validator(
            network=state.network,
            runtime=runtime,
            config=validation,
            task=self.task,
            heartbeat=self.heartbeat,
            is_padded=self.compiled is not None,
            must_stop=stop.is_made,
        )

    def _train(self) -> None:
        """Train, log, evaluate and save until the run is finished, or until all ranks agree to stop."""
        state, loop, first_step = self.state, self.loop, self.state.step
        save_every = self.config.checkpoint.every_steps
        host_ranks = shared_memory.host_ranks(self.runtime.world, self.runtime.all_gather)
        vote = StopVote(open_vote_exchange(self.runtime.cpu_group, host_ranks), self._vote)
        batches = self.loader.train(self.sampler.micro_batches(state.step))
        while True:
            self.heartbeat.beat("step", "agreement", step=state.step)
            decision = vote.result()
            if decision.written:
                self.checkpointer.wait()
            if decision.stop:
                return
            if self._evaluation_is_due():
                is_completed = self.evaluate()
                if not is_completed:
                    return
            if self.is_trained:
                return
            if decision.save or (save_every and state.step and state.step % save_every == 0):
                self.save()
            self._apply_freezing()
            vote.propose()
            for hook in self.hooks:
                hook.before_step(state.step + 1)
            update = self.train_step(batches)
            if state.step == first_step + 1 and (on_first_step := self.on_first_step) is not None:
                with loop.stopwatch.paused():
                    self.runtime.run_on_rank_zero(lambda: on_first_step(self))
            self.progress.step()
            for hook in self.hooks:
                hook.after_step(state.step, update)
            if state.step % self.config.log.every_steps == 0:
                self.log_step()
            if state.step % self.steps.per_epoch == 0 or state.step == self.steps.total:
                self.end_epoch()
            before, loop.stepped_at = loop.stepped_at, loop.stopwatch.seconds
            loop.stop.durations.add("step", loop.stepped_at - before)

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

    def train_step(self, batches: BatchStream) -> Update:
        """One optimizer step: this rank's micro batches of the global batch, one exchange of gradients, one update.

        With fp16 the scaler may skip the update; the step, its samples and its learning rate count all the same.
        """
        state, loop = self.state, self.loop
        self.faults.strike("step", state.step)
        self.faults.flip_parameter_bit(state.step, state.network)
        set_learning_rate(self.parallel.optimizer, self.schedule(state.step))
        for step_loss in self.parallel.accumulate(partial(self._compute_loss, batches)):
            loop.running_mean.add(step_loss)
        self.heartbeat.at("optimizer")
        self.checkpointer.wait_for_copy()  # the writer still reads what the update changes
        update = self.parallel.update(self.config.train.clip_grad_norm)
        state.step += 1
        if state.ema is not None:
            state.ema.update(state.step)
        loop.skipped_steps = 0 if update.applied else loop.skipped_steps + 1
        return update

    def _compute_loss(self, batches: BatchStream) -> StepLoss:
        """Take the next micro batch, and compute its loss and other averaged values, on the device.

        `Parallel.accumulate` calls it for each micro batch of the step: DDP exchanges gradients in the last only.
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
        result = self.task.loss(self.parallel.model, batch)
        result.loss = self.faults.corrupt_loss(step, result.loss)
        self.heartbeat.at("backward")  # nothing but the backward pass follows
        self.faults.strike("bwd", step)
        return result

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
        for hook in self.hooks:
            hook.at_log(state.step)
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
            LossJump: with train.spike=rollback.
        """
        means = self.loop.running_mean.read(self.runtime.all_reduce_sum, self.usage.values_to_sum())
        self.usage.receive(means.extra_sums, trained=means.samples > 0)
        if not means.samples:
            return None
        fp16 = self.runtime.accelerator.scaler is not None
        if (self.loop.skipped_steps >= MAX_SKIPPED_STEPS) if fp16 else not math.isfinite(means.loss):
            raise self._diverged(f"mean loss {means.loss} over the last {means.samples} samples")
        jump = self.loop.recent_losses.find_jump(self.state.step, means.loss)
        if jump is not None and self.config.train.spike == "rollback":
            if self.state.rollbacks:
                raise self._diverged(f"{jump}, for the second time")
            raise jump
        self.loop.epoch_stats.read(self.state.step, means.loss, means.samples)
        return means

    def _warn_of_jump(self, loss: float) -> None:
        jump = self.loop.recent_losses.add(self.state.step, loss)
        if jump and self.config.train.spike == "warn":
            self.metrics_logger.write("spike", step=jump.step, loss=jump.loss, usual=jump.usual)
            self.progress.say(f"warning: {jump}; train.spike=rollback would go back to the last checkpoint")

    def _diverged(self, evidence: str) -> Failure:
        """All ranks come here together, and leave errors/diverged.json behind."""
        steps = steps_since_log_point(self.state.step, self.config.log.every_steps)
        own_losses = losses_by_step(self.loop.running_mean.losses(), steps, self.parallel.losses_per_step)
        losses = self.runtime.all_gather(own_losses)
        if self.runtime.is_main:
            paths = self.loader.paths
            write_divergence(
                self.folder, evidence=evidence, steps=steps, losses=losses, sampler=self.sampler, paths=paths
            )
        return diverged_failure(self.state.step, evidence, self.checkpointer.newest)

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

    # Evaluation

    def evaluate(self) -> bool:
        """Evaluate on the validation images, and save a checkpoint if it is the best so far.

        False if a rank had to stop before the end.
        """
        state, loop = self.state, self.loop
        self.heartbeat.beat("evaluation", step=state.step)
        self.faults.strike("eval", state.step)
        began = self.clock()
        with loop.stopwatch.paused():
            evaluation = self.validator.measure(
                self.loader, self.dataset.num_validation, weights=self.checkpointer.weights_of(state.step)
            )
        if evaluation is None:
            return False
        self._count_unreadable()
        loop.stop.durations.add("evaluation", self.clock() - began)
        state.result, state.unflipped, state.evaluated = evaluation.result, evaluation.unflipped, state.step
        epoch, result, chosen = self._epoch_of(state.step), evaluation.result, self.config.eval.metric
        self.metrics_logger.write("eval", step=state.step, epoch=epoch, **results.metrics_to_log(result))
        self._write_confusion(CONFUSION_FILE, evaluation)
        self._print_epoch(results.format_epoch_line(result, chosen))
        self._compare_with_best(result)
        patience, stale = self.config.eval.early_stop, state.stale_evaluations
        if patience is not None and stale >= patience and state.step < self.steps.total:
            values = {"metric": chosen, "evaluations": stale, "best_step": state.best_step}
            self.metrics_logger.write("early_stop", step=state.step, epoch=epoch, **values)
        if state.best_step == state.step:
            self._write_confusion(BEST_CONFUSION_FILE, evaluation)
            self.save()
        return True

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

    # Test

    def measure_test_split(self) -> None:
        """Measure the best checkpoint's weights on the test split; without it, those of the last step.

        If a rank has to stop before the end, nothing is written, and the next start measures it.
        """
        open_loader, state = self.open_test_loader, self.state
        assert open_loader is not None
        step = self.runtime.run_on_rank_zero(
            lambda: store.tested_step(self.checkpointer.folder, best_step=state.best_step, last_step=state.step)
        )
        if state.best_step not in (None, step):
            best = self.checkpointer.path(state.best_step)
            self.progress.say(f"warning: {best} is gone: the test split is measured with the weights of step {step}")
        self.heartbeat.beat("data", step=state.step)
        loader = open_loader()
        self.heartbeat.beat("evaluation", step=state.step)
        chosen = {state.evaluated: state.result, state.best_step: state.best}.get(step)
        evaluation = self.validator.measure(
            loader,
            self.dataset.num_test,
            weights=self.checkpointer.weights_of(step),
            thresholds=chosen.thresholds if chosen else None,
        )
        if evaluation is None:
            return
        path = str(self.checkpointer.path(step).relative_to(self.folder))
        score = FinalScore(step=step, trained_steps=state.step, checkpoint=path, result=evaluation.result)
        values = {"weights_step": step, **results.metrics_to_log(evaluation.result)}
        self.metrics_logger.write("test", step=state.step, epoch=self._epoch_of(state.step), **values)
        self.runtime.run_on_rank_zero(lambda: files.write_json(self.folder / TEST_FILE, score.to_json()))
        self.final_score = score

    # Saving and going back

    def save(self) -> None:
        """Save the state while training continues; `checkpointer.wait` waits for the commit. All ranks call it.

        Nothing is written if the state is saved already, or for a loss, weights or buffers that are not finite.

        Raises:
            Failure: DIVERGED; whatever `Checkpointer.wait` raises for the save before.
            LossJump: with train.spike=rollback.
        """
        self.check_finite_loss()
        if not self.checkpointer.has_unsaved_progress:
            return
        self.checkpointer.wait()
        if evidence := find_nonfinite(self.runtime, self.state.network):
            raise self._diverged(evidence)
        for hook in self.hooks:
            hook.before_save(self.state.step)
        loop, gather = self.loop, self.runtime.all_gather
        self.checkpointer.save(lambda: LogWindow(sums=gather(loop.running_mean.sums()), since=loop.logged_at))

    def _log_rollback(self, jump: LossJump) -> None:
        """The metrics were opened again, without the steps after the checkpoint."""
        step, path = self.state.step, self.checkpointer.path(self.state.step)
        self.metrics_logger.write("rollback", step=step, seen_at=jump.step, loss=jump.loss, usual=jump.usual)
        self.progress.rewind(step)
        lost = pluralize(jump.step - step, "step")
        self.progress.say(f"warning: {jump}; back by {lost} to {path}, once in a run (train.spike: rollback)")

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

    def _evaluation_is_due(self, steps_ahead: int = 0) -> bool:
        """After every eval.every_epochs epochs and at the end; not twice for a run that resumed after one."""
        step = self.state.step + steps_ahead
        every = self.steps.per_epoch * self.config.eval.every_epochs
        is_due = step % every == 0 or step >= self.steps.total
        return is_due and self.dataset.num_validation > 0 and self.state.evaluated < step

    def _vote(self) -> Vote:
        """This rank's vote. Each rank looks at its signals; rank 0 also at the clock and at its writer."""
        checkpointer, minutes = self.checkpointer, self.config.checkpoint.every_minutes
        save = self.runtime.is_main and minutes is not None and self.clock() - checkpointer.saved_at >= 60 * minutes
        has_deadline = self.signals.deadline is not None
        # An evaluation may come before all ranks have agreed.
        evaluation = has_deadline and any(self._evaluation_is_due(ahead) for ahead in range(3))
        stop = self.loop.stop.is_made(evaluation=evaluation)
        written = checkpointer.is_written
        return Vote(stop=stop, save=save, written=written) if stop or save or written else NO_VOTE

    # Numbers

    @property
    def images_trained(self) -> int:
        """Images of the steps that this start trained and did not roll back."""
        return (self.state.step - self.start_step) * self.batches.global_

    def _epoch_of(self, step: int) -> int:
        """The epoch that contains finished step `step`; both count from 1."""
        return -(-step // self.steps.per_epoch)
