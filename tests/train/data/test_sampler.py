"""Which samples each micro batch has."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.config.batches import compute_batch_sizes, count_steps
from train.data import sampler
from train.data.sampler import BatchSampler, MicroBatch, SampleIndices, prefetch_epoch_orders, rank_blocks

SAMPLES, GLOBAL, MICRO = 50, 16, 2


def course(world_size: int, rank: int, epochs: int = 2) -> BatchSampler:
    batch = compute_batch_sizes(GLOBAL, MICRO, world_size)
    counted = count_steps(batch, SAMPLES, epochs=epochs, max_steps=None)
    return BatchSampler(batches=batch, steps=counted, samples=SAMPLES, rank=rank, seed=3)


def all_pieces(world_size: int, first: int = 0) -> dict[tuple[int, int], MicroBatch]:
    pieces = [piece for rank in range(world_size) for piece in course(world_size, rank).micro_batches(first)]
    by_number = {(piece.step, piece.number): piece for piece in pieces}
    assert len(by_number) == len(pieces), "two ranks have the same micro batch"
    return by_number


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_every_world_has_the_same_micro_batches(world_size: int) -> None:
    alone, many = all_pieces(1), all_pieces(world_size)
    assert alone.keys() == many.keys()
    assert all(np.array_equal(alone[key].samples, many[key].samples) for key in alone)


def test_an_epoch_has_no_sample_twice_and_leaves_out_the_last_partial_batch() -> None:
    seen = np.concatenate([piece.samples for piece in all_pieces(1).values() if piece.epoch == 0])
    assert len(seen) == len(set(seen.tolist())) == SAMPLES // GLOBAL * GLOBAL


def test_other_samples_are_left_out_in_the_next_epoch() -> None:
    seen = [{n for p in all_pieces(1).values() if p.epoch == epoch for n in p.samples.tolist()} for epoch in (0, 1)]
    assert seen[0] != seen[1]


@pytest.mark.parametrize("first", [1, 2, 3, 5])
def test_a_resumed_course_goes_on_where_it_was_left(first: int) -> None:
    course_of_all, rest = all_pieces(2), all_pieces(2, first)
    assert rest.keys() == {key for key in course_of_all if key[0] >= first}
    assert all(np.array_equal(rest[key].samples, course_of_all[key].samples) for key in rest)


@pytest.mark.parametrize("step", [0, 2, 3, 5])
def test_a_global_batch_is_its_micro_batches_in_order(step: int) -> None:
    pieces = [piece.samples for (at, _), piece in sorted(all_pieces(2).items()) if at == step]
    assert np.array_equal(np.concatenate(pieces), course(2, 1).global_batch(step))


def test_a_ranks_micro_batches_are_neighbours() -> None:
    numbers = [piece.number for piece in course(2, 1).micro_batches(0) if piece.step == 0]
    assert numbers == [4, 5, 6, 7]


@given(st.integers(0, 200), st.integers(1, 50), st.integers(1, 9))
def test_evaluation_has_every_sample_on_exactly_one_rank(count: int, size: int, world_size: int) -> None:
    parts = [part for rank in range(world_size) for part in rank_blocks(count, size, rank=rank, world_size=world_size)]
    assert sorted(n for part in parts for n in part.tolist()) == list(range(count))


def test_evaluations_blocks_are_the_same_for_every_world() -> None:
    alone = {tuple(part) for part in rank_blocks(50, 16, rank=0, world_size=1)}
    assert alone == {tuple(part) for rank in range(3) for part in rank_blocks(50, 16, rank=rank, world_size=3)}


def test_the_next_epochs_order_is_drawn_while_this_one_is_used() -> None:
    begun = {epoch: threading.Event() for epoch in (2, 3, 4)}

    def draw(epoch: int) -> SampleIndices:
        begun[epoch].set()
        return np.array([epoch])

    orders = prefetch_epoch_orders(draw, range(2, 5))
    assert next(orders) == [2]
    assert begun[3].wait(60)
    assert not begun[4].is_set()
    assert [order.tolist() for order in orders] == [[3], [4]]


def test_what_goes_wrong_in_drawing_is_told_in_its_turn() -> None:
    def draw(epoch: int) -> SampleIndices:
        raise MemoryError(epoch)

    with pytest.raises(MemoryError):
        next(prefetch_epoch_orders(draw, range(1)))


LABELS = np.array([0] * 40 + [1] * 7 + [2] * 3)


def draws(epoch: int = 0, labels: SampleIndices = LABELS) -> SampleIndices:
    return sampler.balanced_order(labels, 3, epoch).samples


def test_a_balanced_epoch_has_as_many_draws_and_every_class_equally_often() -> None:
    assert len(draws()) == len(LABELS)
    assert sorted(np.bincount(LABELS[draws()]).tolist()) == [16, 17, 17]


def test_the_images_of_a_class_take_turns() -> None:
    counts = np.bincount(draws(), minlength=len(LABELS))
    for label in range(3):
        of_class = counts[label == LABELS]
        assert of_class.max() - of_class.min() <= 1


def test_another_epoch_draws_other_images_of_a_common_class() -> None:
    first, second = ({sample for sample in draws(epoch).tolist() if LABELS[sample] == 0} for epoch in (0, 1))
    assert first != second


def test_over_many_epochs_each_class_is_drawn_equally_often() -> None:
    counts = sum(np.bincount(LABELS[draws(epoch)]) for epoch in range(300))
    assert np.abs(counts / (300 * 50 / 3) - 1).max() < 0.01


def test_no_two_draws_of_an_epoch_share_the_key_of_their_augmentation() -> None:
    order = sampler.balanced_order(LABELS, 3, 0)
    assert order.draws is not None
    assert len(set(order.draws.tolist())) == len(LABELS)
    assert np.array_equal(order.draws % len(LABELS), order.samples)


def test_a_class_of_one_image_among_many_is_drawn_fast() -> None:
    labels = np.array([0] * 200_000 + [1])
    assert np.bincount(draws(labels=labels), minlength=len(labels))[-1] in (100_000, 100_001)


def test_a_class_without_an_image_is_left_out() -> None:
    assert sorted(np.bincount(draws(labels=np.array([0, 0, 0, 2]))).tolist())[-1] <= 2


def balanced_pieces(world_size: int, first: int = 0) -> dict[tuple[int, int], MicroBatch]:
    balanced = [replace(course(world_size, rank), labels=LABELS) for rank in range(world_size)]
    return {(piece.step, piece.number): piece for each in balanced for piece in each.micro_batches(first)}


@pytest.mark.parametrize(("world_size", "first"), [(2, 0), (4, 0), (1, 2), (4, 4)])
def test_every_world_and_every_resume_has_the_same_balanced_micro_batches(world_size: int, first: int) -> None:
    alone, many = balanced_pieces(1), balanced_pieces(world_size, first)
    assert many.keys() == {key for key in alone if key[0] >= first}
    assert all(np.array_equal(alone[key].samples, many[key].samples) for key in many)
    assert all(np.array_equal(alone[key].augmentation_keys, many[key].augmentation_keys) for key in many)


def test_a_balanced_global_batch_is_its_micro_batches_in_order() -> None:
    pieces = [piece.samples for (at, _), piece in sorted(balanced_pieces(2).items()) if at == 1]
    assert np.array_equal(np.concatenate(pieces), replace(course(2, 1), labels=LABELS).global_batch(1))


def repeated_pieces(world_size: int, first: int = 0, repeats: int = 4) -> dict[tuple[int, int], MicroBatch]:
    repeated = [replace(course(world_size, rank), repeats=repeats) for rank in range(world_size)]
    return {(piece.step, piece.number): piece for each in repeated for piece in each.micro_batches(first)}


def repeated_batch(step: int, repeats: int = 4) -> tuple[SampleIndices, SampleIndices]:
    """The samples of a global batch, and the keys of their augmentation."""
    pieces = [piece for (at, _), piece in sorted(repeated_pieces(1, repeats=repeats).items()) if at == step]
    return np.concatenate([piece.samples for piece in pieces]), np.concatenate([p.augmentation_keys for p in pieces])


@pytest.mark.parametrize("repeats", [2, 4, 8])
def test_a_global_batch_has_each_of_its_images_as_often_as_repeats_says(repeats: int) -> None:
    samples, _ = repeated_batch(1, repeats)
    assert np.unique(samples, return_counts=True)[1].tolist() == [repeats] * (GLOBAL // repeats)


def test_the_copies_of_an_image_are_augmented_otherwise() -> None:
    keys = np.concatenate([repeated_batch(step)[1] for step in range(3)])
    assert len(set(keys.tolist())) == 3 * GLOBAL


def test_repeats_leave_an_epoch_as_long_as_it_was_and_take_other_images_in_the_next() -> None:
    assert len(repeated_pieces(1)) == len(all_pieces(1))
    epochs = [{n for piece in repeated_pieces(1).values() if piece.epoch == e for n in piece.samples} for e in (0, 1)]
    assert [len(images) for images in epochs] == [SAMPLES // GLOBAL * GLOBAL // 4] * 2
    assert epochs[0] != epochs[1]


def test_neighbours_which_mixup_mixes_are_two_images() -> None:
    for repeats in (2, 4, 8):
        samples, _ = repeated_batch(0, repeats)
        assert (samples[0::2] != samples[1::2]).all()


@pytest.mark.parametrize(("world_size", "first"), [(2, 0), (4, 0), (1, 2), (4, 4)])
def test_every_world_and_every_resume_has_the_same_repeated_micro_batches(world_size: int, first: int) -> None:
    alone, many = repeated_pieces(1), repeated_pieces(world_size, first)
    assert many.keys() == {key for key in alone if key[0] >= first}
    assert all(np.array_equal(alone[key].samples, many[key].samples) for key in many)
    assert all(np.array_equal(alone[key].augmentation_keys, many[key].augmentation_keys) for key in many)


def test_balanced_draws_can_be_repeated_too() -> None:
    order = sampler.balanced_order(LABELS, 3, 0)
    repeated = sampler.repeat_images(order, global_batch_size=GLOBAL, repeats=2)
    assert repeated.draws is not None
    assert len(set(repeated.draws.tolist())) == len(repeated.samples) == SAMPLES // GLOBAL * GLOBAL


def test_repeats_draw_images_as_torchvision_does_on_as_many_gpus() -> None:
    """RASampler: the shuffled images, each so often in a row, dealt to the GPUs in turn."""
    samples, _ = repeated_batch(0)
    shuffled = course(1, 0).global_batch(0)[: GLOBAL // 4]
    assert sorted(samples.tolist()) == sorted(np.repeat(shuffled, 4).tolist())
