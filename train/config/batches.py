"""The global batch size and the world size determine micro batch, accumulation and steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from entrypoint import ExitCode, Failure, pluralize
from train.config import schema
from train.config.schema import DataConfig, TrainConfig

# `auto` chooses at most this on the CPU, where larger micro batches are not faster. On a GPU the
# search for the largest micro batch begins here.
MAX_AUTO_MICRO_BATCH = 64
# If no divisor lies between MIN_AUTO_MICRO_BATCH and MAX_AUTO_MICRO_BATCH, `auto` takes the next larger
# one, up to MAX_FALLBACK_MICRO_BATCH: BatchNorm's statistics are of one micro batch, and each micro
# batch has a fixed cost.
MIN_AUTO_MICRO_BATCH, MAX_FALLBACK_MICRO_BATCH = 8, 256


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizes:
    """The sizes of one optimizer step: global_ = micro x accumulation x world. All are at least 1."""

    global_: int
    micro: int
    accumulation: int
    world: int
    why: str = ""  # how `auto` chose micro, if it measured
    hint: str = ""  # a better global batch, if micro is small because nothing larger divides

    def __str__(self) -> str:
        ranks = pluralize(self.world, "rank")
        notes = "".join(f" ({note})" for note in (self.why, self.hint) if note)
        return f"{self.global_} = {self.micro} micro x {self.accumulation} accumulation x {ranks}{notes}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCounts:
    """Optimizer steps of an epoch and of the run, and the samples that each epoch drops."""

    per_epoch: int
    total: int
    dropped: int


def compute_batch_sizes(global_batch_size: int, micro_batch_size: int | Literal["auto"], world_size: int) -> BatchSizes:
    """Choose the micro batch and compute the accumulation.

    Raises:
        Failure: USAGE with the numbers and the nearest legal values, if a remainder is left.
    """
    per_rank, rest = divmod(global_batch_size, world_size)
    micro = _auto_micro_batch(per_rank or 1) if micro_batch_size == "auto" else micro_batch_size
    if rest or per_rank % micro:
        raise remainder_failure(global_batch_size, micro_batch_size, world_size)
    hint = (
        _suggest_global_batch(per_rank, world_size)
        if micro_batch_size == "auto" and micro < min(MIN_AUTO_MICRO_BATCH, per_rank)
        else ""
    )
    return BatchSizes(
        global_=global_batch_size, micro=micro, accumulation=per_rank // micro, world=world_size, hint=hint
    )


def _auto_micro_batch(per_rank: int) -> int:
    """The largest divisor up to MAX_AUTO_MICRO_BATCH.

    If that is small, the smallest divisor above it, up to MAX_FALLBACK_MICRO_BATCH.
    """
    micro = largest_divisor(per_rank, MAX_AUTO_MICRO_BATCH)
    if micro >= min(MIN_AUTO_MICRO_BATCH, per_rank):
        return micro
    return next(
        (
            larger
            for larger in range(MAX_AUTO_MICRO_BATCH + 1, min(per_rank, MAX_FALLBACK_MICRO_BATCH) + 1)
            if per_rank % larger == 0
        ),
        micro,
    )


def _suggest_global_batch(per_rank: int, world_size: int) -> str:
    """The nearest global batch that divides better, in words."""
    candidates = (per_rank + change for size in range(1, per_rank) for change in (-size, size))
    better = next(candidate for candidate in candidates if _auto_micro_batch(candidate) >= MIN_AUTO_MICRO_BATCH)
    return (
        f"{per_rank} has no divisor from {MIN_AUTO_MICRO_BATCH} to {MAX_FALLBACK_MICRO_BATCH}: with "
        f"train.global_batch_size={better * world_size}, in a new run, "
        f"{_auto_micro_batch(better)} samples are computed at once"
    )


def remainder_failure(global_batch_size: int, micro_batch_size: int | Literal["auto"], world_size: int) -> Failure:
    """The failure for a global batch that leaves a remainder; it names values that leave none."""
    micro = None if micro_batch_size == "auto" else micro_batch_size
    unit = world_size * (micro or 1)
    sizes = _format_alternatives(nearest_multiples(global_batch_size, unit))
    choices = [f"set train.global_batch_size={sizes} (in a new run: another run.name)"]
    if micro and global_batch_size % world_size == 0:
        sizes = _format_alternatives(nearest_divisors(global_batch_size // world_size, micro))
        choices.append(f"set train.micro_batch_size={sizes}")
    if global_batch_size % (micro or 1) == 0:
        choices.append(f"start {_format_rank_choices(nearest_divisors(global_batch_size // (micro or 1), world_size))}")
    name = f"train.micro_batch_size {micro} x {world_size} ranks" if micro else f"{world_size} ranks"
    return Failure(
        f"train.global_batch_size {global_batch_size} cannot be divided among {name}",
        found=f"{global_batch_size} = {global_batch_size // unit} x {unit} + {global_batch_size % unit}",
        expected=f"a multiple of {unit}",
        fix=", or ".join(choices),
        code=ExitCode.USAGE,
    )


def _format_rank_choices(numbers: tuple[int, ...]) -> str:
    """The rank counts in words. An existing run may change only these; other keys change its training."""
    return f"{_format_alternatives(numbers)} rank{'' if numbers == (1,) else 's'} (--procs-per-node, or srun --ntasks)"


def _format_alternatives(numbers: tuple[int, ...]) -> str:
    return " or ".join(map(str, numbers))


def count_steps(batch: BatchSizes, samples: int, *, epochs: int, max_steps: int | None) -> StepCounts:
    """Count the optimizer steps, at most max_steps. Each epoch drops its last, partial global batch.

    Raises:
        Failure: USAGE, if the training set is smaller than one global batch.
    """
    per_epoch, dropped = divmod(samples, batch.global_)
    if per_epoch == 0:
        legal = samples // batch.world * batch.world
        value = f"set train.global_batch_size to at most {legal}" if legal else f"use at most {samples} ranks"
        raise Failure(
            f"the training set is smaller than train.global_batch_size {batch.global_}: an epoch would have no step",
            found=f"{samples} training samples",
            expected=f"{batch.global_} or more",
            fix=f"{value}, or give more data",
            code=ExitCode.USAGE,
        )
    return StepCounts(
        per_epoch=per_epoch, total=count_total_steps(per_epoch, epochs=epochs, max_steps=max_steps), dropped=dropped
    )


FEW_STEPS: Final = 50  # a run with fewer optimizer steps hardly learns, whatever the model
MAX_DROPPED_SHARE: Final = 0.1


def step_notes(steps: StepCounts, batch: BatchSizes, train: TrainConfig, *, samples: int) -> tuple[str, ...]:
    """Notes for a run of very few steps, and for one whose epochs leave out a large part of the samples.

    samples: of the training split. A user who sets train.max_steps knows that the run is short.
    """
    notes = []
    unit = batch.world * (1 if train.micro_batch_size == "auto" else batch.micro)
    sizes = [*range(unit, batch.global_, unit)]
    if train.reproducible == "bitwise":  # its tree of sums has powers of two
        sizes = [size for size in sizes if batch.global_ % size == 0 and (batch.global_ // size).bit_count() == 1]
    if steps.total < FEW_STEPS and train.max_steps is None:
        enough = max(MIN_AUTO_MICRO_BATCH, batch.global_ * steps.total // FEW_STEPS)
        smaller = next((size for size in sizes if size >= enough), None)
        fix = "more train.epochs give more"
        if smaller is not None:
            fix = f"train.global_batch_size={smaller} gives {samples // smaller:,} per epoch, and {fix}"
        counted = "1 optimizer step" if steps.total == 1 else f"{steps.total} optimizer steps"
        notes.append(f"{counted} in all are few to learn from: {fix}")
    if steps.dropped > MAX_DROPPED_SHARE * samples:
        near = [batch.global_, *(size for size in reversed(sizes) if size >= batch.global_ // 2)]
        best = min(near, key=lambda size: samples % size)
        share = f"{steps.dropped:,} of {samples:,} training images ({steps.dropped / samples:.0%})"
        fix = f"; with train.global_batch_size={best} it would be {samples % best:,}" if best != batch.global_ else ""
        notes.append(f"each epoch leaves out {share}, others each time, because its last batch is not full{fix}")
    return tuple(notes)


def count_total_steps(per_epoch: int, *, epochs: int, max_steps: int | None) -> int:
    """Optimizer steps of the run."""
    return epochs * per_epoch if max_steps is None else min(epochs * per_epoch, max_steps)


def overrides_to_continue(counted: StepCounts, at: int, *, epochs: int, max_steps: int | None) -> list[str]:
    """The settings with which a run that ended at step `at` continues; empty if it has not ended."""
    if at < counted.total:
        return []
    settings = [] if max_steps is None or at < max_steps else ["train.max_steps=null"]
    if at >= epochs * counted.per_epoch:
        settings.append(f"train.epochs={-(-at // counted.per_epoch) + epochs}")
    return settings


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of `number` that is at most `limit`."""
    return next(divisor for divisor in range(min(number, limit), 0, -1) if number % divisor == 0)


def nearest_divisors(number: int, near: int) -> tuple[int, ...]:
    """The divisors of `number` next below and above `near`; only the one below if none is above."""
    below = largest_divisor(number, near)
    above = next((divisor for divisor in range(near, min(number, 2**20) + 1) if number % divisor == 0), None)
    return (below,) if above is None else (below, above)


def nearest_multiples(number: int, unit: int) -> tuple[int, ...]:
    """The positive multiples of `unit` next below and above `number`."""
    below = number // unit * unit
    return (below, below + unit) if below else (unit,)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitCounts:
    """The number of samples in each split."""

    training: int
    validation: int
    test: int


def count_splits(samples: int, data: DataConfig, *, has_validation: bool = False) -> SplitCounts:
    """The sizes of the splits that data.val_fraction or data.fold, and data.test_fraction, take from `samples`.

    has_validation: the data has validation samples of its own, so that none of these are taken.
    """
    test = min(samples, round(samples * data.test_fraction))
    rest = samples - test
    if has_validation:
        validation = 0
    elif data.fold is not None:
        first, end = fold_bounds(rest, data.fold)
        validation = end - first
    else:
        validation = min(rest, round(samples * data.val_fraction))
    return SplitCounts(training=rest - validation, validation=validation, test=test)


def fold_bounds(samples: int, fold: str) -> tuple[int, int]:
    """The first sample of this fold, and the first one after it: the folds cover all samples and do not overlap."""
    number, parts = schema.parse_fold(fold) or (1, 1)  # the schema has checked it
    return samples * (number - 1) // parts, samples * number // parts
