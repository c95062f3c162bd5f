"""Global batch, micro batch and world to accumulation and steps."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrypoint import ExitCode, Failure
from train.config.batches import (
    BatchSizes,
    StepCounts,
    compute_batch_sizes,
    count_steps,
    largest_divisor,
    nearest_divisors,
    nearest_multiples,
    overrides_to_continue,
    step_notes,
)
from train.config.schema import TrainConfig

NEW = "(in a new run: another run.name)"
HOW = "(--procs-per-node, or srun --ntasks)"
SIZES = st.integers(1, 4096)
WORLDS = st.integers(1, 512)


def numbers(fix: str, what: str) -> list[int]:
    """The one or two that a fix offers after these words."""
    match = re.search(rf"{what}(\d+)(?: or (\d+))?", fix)
    assert match, fix
    return [int(number) for number in match.groups() if number]


@given(per_rank=SIZES, world=WORLDS)
def test_auto_always_divides_and_is_the_largest_of_at_most_64_unless_that_is_small(per_rank: int, world: int) -> None:
    sizes = compute_batch_sizes(per_rank * world, "auto", world)
    largest = max(size for size in range(1, 65) if per_rank % size == 0)
    above = [size for size in range(65, 257) if per_rank % size == 0]
    assert sizes.micro * sizes.accumulation * sizes.world == sizes.global_ == per_rank * world
    assert sizes.micro == (above[0] if above and largest < 8 else largest)


@pytest.mark.parametrize(
    ("size", "ranks", "micro", "better"),
    [
        (254, 2, 127, ""),
        (134, 1, 67, ""),
        (14, 2, 7, ""),
        (128, 1, 64, ""),
        (514, 1, 2, "=513,"),
        (1042, 2, 1, "=1040,"),
    ],
)
def test_an_awkward_quotient_is_not_cut_into_single_samples(size: int, ranks: int, micro: int, better: str) -> None:
    sizes = compute_batch_sizes(size, "auto", ranks)
    assert sizes.micro == micro
    assert better in sizes.hint if better else not sizes.hint


@given(size=SIZES, world=WORLDS)
def test_the_global_batch_of_the_hint_is_cut_into_more(size: int, world: int) -> None:
    if hint := compute_batch_sizes(size * world, "auto", world).hint:
        (better,) = numbers(hint, "train.global_batch_size=")
        assert compute_batch_sizes(better, "auto", world).micro >= 8
        assert hint in str(compute_batch_sizes(size * world, "auto", world))


@given(global_=SIZES, micro=st.integers(1, 300) | st.just("auto"), world=WORLDS)
def test_batches_multiply_up_or_the_fix_is_legal(global_: int, micro: Any, world: int) -> None:
    legal = global_ % (world if micro == "auto" else micro * world) == 0
    if legal:
        sizes = compute_batch_sizes(global_, micro, world)
        assert sizes.micro * sizes.accumulation * sizes.world == global_
        return
    with pytest.raises(Failure) as caught:
        compute_batch_sizes(global_, micro, world)
    for size in numbers(caught.value.fix, "train.global_batch_size="):
        assert compute_batch_sizes(size, micro, world).global_ == size
    for ranks in numbers(caught.value.fix, "start ") if micro == "auto" or global_ % micro == 0 else ():
        assert compute_batch_sizes(global_, micro, ranks).global_ == global_


@given(micro=st.integers(1, 300), per_rank=SIZES, world=WORLDS)
def test_the_micro_batches_of_the_fix_are_legal(micro: int, per_rank: int, world: int) -> None:
    if per_rank % micro:
        with pytest.raises(Failure) as caught:
            compute_batch_sizes(per_rank * world, micro, world)
        for size in numbers(caught.value.fix, "train.micro_batch_size="):
            assert compute_batch_sizes(per_rank * world, size, world).micro == size


@given(
    micro=st.integers(1, 64), accumulation=st.integers(1, 8), world=st.integers(1, 64), samples=st.integers(1, 10**6)
)
def test_steps_cover_all_but_less_than_a_batch(micro: int, accumulation: int, world: int, samples: int) -> None:
    batch = BatchSizes(global_=micro * accumulation * world, micro=micro, accumulation=accumulation, world=world)
    if samples < batch.global_:
        with pytest.raises(Failure):
            count_steps(batch, samples, epochs=3, max_steps=None)
        return
    steps = count_steps(batch, samples, epochs=3, max_steps=None)
    assert steps.per_epoch * batch.global_ + steps.dropped == samples
    assert 0 <= steps.dropped < batch.global_
    assert steps.total == 3 * steps.per_epoch


@pytest.mark.parametrize(("max_steps", "total"), [(None, 156), (10, 10), (156, 156), (1000, 156)])
def test_max_steps_is_a_cap(max_steps: int | None, total: int) -> None:
    batch = compute_batch_sizes(256, "auto", 1)
    assert count_steps(batch, 8000, epochs=5, max_steps=max_steps).total == min(total, 155)


REFUSED = {
    "ranks": (
        256,
        "auto",
        3,
        "256 = 85 x 3 + 1",
        f"train.global_batch_size=255 or 258 {NEW}, or start 2 or 4 ranks {HOW}",
    ),
    "more-ranks-than-samples": (
        4,
        "auto",
        8,
        "4 = 0 x 8 + 4",
        f"train.global_batch_size=8 {NEW}, or start 4 ranks {HOW}",
    ),
    "fewer-pieces-than-ranks": (
        64,
        16,
        8,
        "64 = 0 x 128 + 64",
        f"train.global_batch_size=128 {NEW}, or set train.micro_batch_size=8, or start 4 ranks {HOW}",
    ),
    "a-prime": (7, "auto", 2, "7 = 3 x 2 + 1", f"train.global_batch_size=6 or 8 {NEW}, or start 1 or 7 ranks {HOW}"),
    "micro": (
        256,
        24,
        4,
        "256 = 2 x 96 + 64",
        f"train.global_batch_size=192 or 288 {NEW}, or set train.micro_batch_size=16 or 32",
    ),
    "micro-larger": (
        64,
        100,
        1,
        "64 = 0 x 100 + 64",
        f"train.global_batch_size=100 {NEW}, or set train.micro_batch_size=64",
    ),
}


@pytest.mark.parametrize(("global_", "micro", "world", "remainder", "fix"), REFUSED.values(), ids=REFUSED.keys())
def test_a_remainder_is_shown_with_the_nearest_legal_values(
    global_: int, micro: int, world: int, remainder: str, fix: str
) -> None:
    with pytest.raises(Failure) as caught:
        compute_batch_sizes(global_, micro, world)
    failure = caught.value
    assert (failure.code, failure.found, failure.fix) == (ExitCode.USAGE, remainder, f"set {fix}")


@pytest.mark.parametrize(("samples", "fix"), [(100, "at most 100"), (3, "at most 3 ranks")])
def test_a_data_set_smaller_than_one_global_batch_is_refused(samples: int, fix: str) -> None:
    with pytest.raises(Failure, match=r"smaller than .*global_batch_size 256") as caught:
        count_steps(compute_batch_sizes(256, "auto", 4), samples, epochs=1, max_steps=None)
    assert fix in caught.value.fix
    assert caught.value.code == ExitCode.USAGE


def test_the_product_can_be_read() -> None:
    assert str(compute_batch_sizes(256, "auto", 2)) == "256 = 64 micro x 2 accumulation x 2 ranks"


@given(number=SIZES, near=SIZES)
def test_the_nearest_divisors_divide(number: int, near: int) -> None:
    assert all(number % divisor == 0 for divisor in nearest_divisors(number, near))


@given(number=SIZES, unit=SIZES)
def test_the_nearest_multiples_stand_around_the_number(number: int, unit: int) -> None:
    assert all(multiple % unit == 0 and abs(multiple - number) <= unit for multiple in nearest_multiples(number, unit))


def test_a_prime_has_only_the_smallest_micro_batch() -> None:
    assert largest_divisor(67, 64) == 1


@given(per_epoch=SIZES, epochs=st.integers(1, 99), most=st.none() | SIZES, at=SIZES)
def test_what_is_to_be_added_lets_a_run_go_on_and_nothing_is_added_in_vain(
    per_epoch: int, epochs: int, most: int | None, at: int
) -> None:
    def ends(epochs: int, most: int | None) -> int:
        return epochs * per_epoch if most is None else min(most, epochs * per_epoch)

    settings = overrides_to_continue(
        StepCounts(per_epoch=per_epoch, total=ends(epochs, most), dropped=0), at, epochs=epochs, max_steps=most
    )
    assert bool(settings) == (at >= ends(epochs, most))
    added = dict(setting.split("=") for setting in settings)
    assert at < ends(int(added.get("train.epochs", epochs)), None if "train.max_steps" in added else most) or not added


def notes(
    samples: int, global_batch_size: int, *, epochs: int = 100, ranks: int = 1, **settings: Any
) -> tuple[str, ...]:
    train = TrainConfig(global_batch_size=global_batch_size, epochs=epochs, **settings)
    batch = compute_batch_sizes(global_batch_size, train.micro_batch_size, ranks)
    steps = count_steps(batch, samples, epochs=epochs, max_steps=train.max_steps)
    return step_notes(steps, batch, train, samples=samples)


def test_a_run_of_few_steps_is_told_the_batch_that_gives_enough() -> None:
    (note,) = notes(512, 256, epochs=5)
    assert note.startswith(
        "10 optimizer steps in all are few to learn from: train.global_batch_size=51 gives 10 per epoch"
    )
    assert notes(512, 51, epochs=5) == ()


def test_no_batch_is_named_that_is_too_small_to_train_with() -> None:
    assert notes(20, 10, epochs=5) == (
        "10 optimizer steps in all are few to learn from: train.global_batch_size=8 gives 2 per epoch, and more "
        "train.epochs give more",
    )
    assert notes(20, 4, epochs=5) == ("25 optimizer steps in all are few to learn from: more train.epochs give more",)


def test_a_run_whose_user_set_the_steps_is_told_nothing() -> None:
    assert notes(160, 16, epochs=1, max_steps=5) == ()


@pytest.mark.parametrize(("settings", "size"), [({}, 9), ({"reproducible": "bitwise"}, 12)])
def test_a_batch_that_is_named_keeps_a_micro_batch_that_is_set(settings: dict[str, Any], size: int) -> None:
    (note,) = notes(48, 24, epochs=10, micro_batch_size=3, **settings)
    assert f"train.global_batch_size={size} gives" in note


def test_a_large_part_of_an_epoch_that_is_left_out_is_said_with_a_batch_that_leaves_out_less() -> None:
    (note,) = notes(300, 256)
    assert note == (
        "each epoch leaves out 44 of 300 training images (15%), others each time, because its last batch is not full; "
        "with train.global_batch_size=150 it would be 0"
    )


def test_the_batch_that_leaves_out_less_fits_the_ranks() -> None:
    (note,) = notes(300, 256, ranks=4)
    size = int(note.partition("train.global_batch_size=")[2].split()[0])
    assert size % 4 == 0
    assert 300 % size < 44


@pytest.mark.parametrize(("samples", "size"), [(50_000, 256), (8_000, 256), (2_560, 256)])
def test_a_usual_run_is_told_nothing(samples: int, size: int) -> None:
    assert notes(samples, size) == ()
