"""Training, from its first step to its last: `fit` is the table of contents."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Final

from train.distributed import shared_memory
from train.distributed.vote import StopVote, Vote, open_vote_exchange
from train.evaluation import early_stopping
from train.evaluation import metrics as scores
from train.evaluation.evaluate import evaluate, explain_out_of_memory, max_batch_size, rank_batches
from train.evaluation.metrics import EvaluationResult
from train.logging.metrics import MetricsLogger
from train.logging.progress import Progress
from train.run import announce, profiler, saving, stop
from train.run.health import compare_replicas, sound, tell_jump
from train.run.job import Job
from train.run.now import Now, begin
from train.run.profiler import Take
from train.run.saving import save
from train.run.signals import Watch

NONE: Final = Vote()


def fit(
    todo: Job, watch: Watch, metrics: MetricsLogger, progress: Progress, clock: Callable[[], float] = time.monotonic
) -> Now:
    """Train from where the state stands to the end, or to the step at which all ranks agree to stop.

    Returns with the last step committed. `is_finished` tells which of the two it was.

    Raises:
        Failure: DIVERGED; IO and others from a save; DATA for images that cannot be read.
    """
    now = begin(todo, watch, clock)
    todo.runtime.shared(lambda: saving.tell_best(todo))
    with profiler.recorded(todo, now, progress) as take, saving.finished(todo, now):
        _train(todo, now, metrics, progress, take)
        if not is_finished(todo):
            stop.note(todo, now)
        save(todo, now, metrics)
        saving.settle(todo, now, metrics)
    return now


def _train(todo: Job, now: Now, metrics: MetricsLogger, progress: Progress, take: Take) -> None:
    state, host = todo.state, shared_memory.host_ranks(todo.runtime.world, todo.runtime.gathered)
    begun = state.step
    agreement = StopVote(open_vote_exchange(todo.runtime.control, host), lambda: _wishes(todo, now))
    stream = todo.loader.train(todo.course.micro_batches(state.step))
    while True:
        todo.pulse.beat("step", "agreement", step=state.step)
        decision = agreement.decided()
        if decision.written and now.saving is not None:
            saving.settle(todo, now, metrics)
        if decision.stop or (_evaluation_is_due(todo) and not measure(todo, now, metrics, progress)):
            return
        if is_finished(todo):
            return
        if decision.save or _save_is_due(todo):
            save(todo, now, metrics)
        agreement.propose()
        take(todo, now, stream)
        if todo.first_step is not None and state.step == begun + 1:
            with now.stopwatch.paused():
                todo.runtime.shared(todo.first_step)
        progress.step()
        compare_replicas(todo)
        if state.step % todo.config.log.every_steps == 0:
            log(todo, now, metrics, progress)
        if state.step % todo.steps.per_epoch == 0 or state.step == todo.steps.total:
            lap(todo, now, progress)
        now.stepped()


def is_finished(todo: Job) -> bool:
    """Whether all steps are done and measured, or the target was reached."""
    done = todo.state.step >= todo.steps.total and not _evaluation_is_due(todo)
    return done or early_stopping.should_stop(todo.config.eval, todo.state.held)


def log(todo: Job, now: Now, metrics: MetricsLogger, progress: Progress) -> None:
    """Read the sums of the last steps, on all ranks; write and show them."""
    todo.pulse.beat("step", step=todo.state.step)
    means = sound(todo, now)
    now.tally.clear()
    if means is None:
        return
    tell_jump(todo, now, means.loss, metrics, progress)
    announce.recompiled(todo, now, metrics, progress)
    bad = _agree_on_broken(todo)
    seconds, now.logged_at = now.stopwatch.seconds - now.logged_at, now.stopwatch.seconds
    at, per_s = todo.state.step, means.samples / seconds
    epoch = (at - 1) // todo.steps.per_epoch + 1
    values = {"loss": means.loss, "accuracy": means.accuracy, "lr": todo.schedule(at - 1), "images_per_s": per_s}
    metrics.write("train", step=at, epoch=epoch, **values, **bad)
    todo.usage.write(metrics, at)
    progress.measured(step=at, epoch=epoch, epochs=todo.config.train.epochs, loss=means.loss, images_per_s=per_s)


def lap(todo: Job, now: Now, progress: Progress) -> None:
    """An epoch is over, or all of training. Its line comes with its evaluation, if there is one."""
    todo.pulse.beat("step", step=todo.state.step)
    sound(todo, now)
    now.epoch = now.lap.close(todo.state.step, now.stopwatch.seconds, epoch=todo.steps.per_epoch)
    if not _evaluation_is_due(todo):
        announce.epoch_line(todo, now, progress)


def measure(todo: Job, now: Now, metrics: MetricsLogger, progress: Progress) -> bool:
    """Evaluate, and commit what is better than all before. False where a rank had to stop on the way."""
    state, world = todo.state, todo.runtime.world
    mine = rank_batches(todo.held_out, todo.config.eval.batch_size, world)
    batches = stop.until_wanted(todo.pulse.each("evaluation", todo.loader.evaluate(mine)), todo, now)
    averaged = state.average.worn() if state.average else nullcontext()
    todo.pulse.beat("evaluation", step=state.step)
    todo.faults.strike("eval", state.step)
    began = now.clock()
    size = max_batch_size(todo.held_out, todo.config.eval.batch_size)
    autocast = todo.runtime.accelerator.autocast()  # of dp, state.network has none itself
    with now.stopwatch.paused(), averaged, autocast, explain_out_of_memory(size):
        whole = size if todo.compiled else None
        found = evaluate(state.network, batches, todo.runtime, classes=len(todo.classes), whole=whole)
    _agree_on_broken(todo)
    if any(todo.runtime.gathered(stop.wanted(todo, now))):
        return False
    now.times.add("evaluation", now.clock() - began)
    state.result, state.evaluated = found.result, state.step
    announce.evaluation(todo, now, found, metrics, progress)
    _judge(todo, found.result)
    if state.best_step == state.step:
        announce.best(todo, found, metrics)
        save(todo, now, metrics)
    return True


def _agree_on_broken(todo: Job) -> dict[str, int]:
    """Count the images that could not be read over all ranks, so that all end alike where there are too many."""
    if todo.config.data.max_bad_images == 0:
        return {}
    for known in todo.runtime.gathered(todo.loader.broken.known):
        todo.loader.broken.merge(known)
    return {"bad_images": len(todo.loader.broken.known)}


def _judge(todo: Job, result: EvaluationResult) -> None:
    """Whether this result is the best, and good enough to end. Rank 0 decides: no rank may leave the others alone."""
    state, wanted = todo.state, todo.config.eval
    best, held = (
        scores.is_better(wanted.metric, result, state.best),
        early_stopping.count_target_streak(wanted, state.held, result),
    )
    best, state.held = todo.runtime.shared(lambda: (best, held))
    if best:
        state.best, state.best_step = result, state.step


def _evaluation_is_due(todo: Job, ahead: int = 0) -> bool:
    """After every so many epochs, and at the end. Not again where a resumed run has it already."""
    at = todo.state.step + ahead
    on_time = at % (todo.steps.per_epoch * todo.config.eval.every_epochs) == 0 or at >= todo.steps.total
    return on_time and todo.held_out > 0 and todo.state.evaluated < at


def _save_is_due(todo: Job) -> bool:
    every = todo.config.checkpoint.every_steps
    return every is not None and todo.state.step > 0 and todo.state.step % every == 0


def _wishes(todo: Job, now: Now) -> Vote:
    """What this rank alone would do: each looks at its signals, rank 0 at the clock and at its writer."""
    minutes = todo.config.checkpoint.every_minutes
    late = minutes is not None and now.clock() - now.saved_at >= 60 * minutes
    limited = now.watch.deadline is not None
    soon = limited and any(_evaluation_is_due(todo, ahead) for ahead in range(3))  # before all ranks have agreed
    halt, written = stop.wanted(todo, now, evaluation=soon), saving.written(now)
    return Vote(stop=halt, save=todo.runtime.is_main and late, written=written) if halt or late or written else NONE
