"""Shards are read in an order that is mixed, in long runs, and the same on any number of ranks."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import made_index
import numpy as np
import pytest
from tars import data_of

from train.config.batches import compute_batch_sizes, count_steps
from train.config.schema import RunConfig
from train.data import registry
from train.data.sampler import BatchSampler
from train.data.shards.order import WINDOW, RemainingEntries, ShardOrder, TrainingRuns, cut_into_runs, draw_orders

IMAGES_PER_SHARD = 500
SHARDS = 40
IMAGES = SHARDS * IMAGES_PER_SHARD
BATCH, READERS = 64, 16
RUN = 10  # images
CLASSES = np.arange(IMAGES) * 20 // IMAGES  # all shards are sorted by class, two for each


def runs_of(shards: int, images_per_shard: int, left_out: list[int] | None = None) -> TrainingRuns:
    entries = np.array(left_out or [], np.int64)
    images = RemainingEntries(shards * images_per_shard, left_out=entries, numbers=entries - np.arange(len(entries)))
    return TrainingRuns(
        starts=np.arange(0, images.count + 1, RUN),
        first_of_shard=np.arange(shards + 1) * (images_per_shard // RUN),
        images=images,
    )


RUNS = runs_of(SHARDS, IMAGES_PER_SHARD)


def draw(
    runs: TrainingRuns = RUNS, *, epoch: int = 0, seed: int = 7, readers: int = READERS, mixes: bool = False
) -> ShardOrder:
    return ShardOrder.draw(runs, readers=readers, global_batch_size=BATCH, seed=seed, epoch=epoch, mixes=mixes)


def batches(order: ShardOrder, count: int = IMAGES // BATCH) -> np.ndarray:
    return order.part(0, count * BATCH).samples.reshape(count, BATCH)


def test_a_run_ends_after_so_many_bytes() -> None:
    assert cut_into_runs([0, 90, 110, 310, 320], 100).tolist() == [0, 2, 3]


def test_images_that_are_left_out_are_not_drawn_and_the_others_have_numbers_without_gaps() -> None:
    left_out = [0, 3, 4, *range(500, 520), 999]
    runs = runs_of(2, 500, left_out)
    numbers = np.arange(len(runs.images))
    entries = runs.images.entries(numbers)
    assert np.array_equal(entries, np.setdiff1d(np.arange(1000), left_out))
    assert np.array_equal(runs.images.count_before(entries), numbers)
    drawn = draw(runs).part(0, 15 * BATCH).samples
    assert len(np.unique(drawn)) == len(drawn)
    assert drawn.max() < len(numbers)


def test_an_epoch_has_no_image_twice_and_leaves_out_fewer_than_a_batch_and_the_readers() -> None:
    images = np.sort(batches(draw()).ravel())
    assert len(np.unique(images)) == len(images) > IMAGES - BATCH - READERS


@pytest.mark.parametrize("other", [draw(epoch=1), draw(seed=8)], ids=["epoch", "seed"])
def test_epochs_and_seeds_have_other_orders(other: ShardOrder) -> None:
    assert (batches(other) != batches(draw())).mean() > 0.9


def test_any_part_is_computed_without_the_parts_before_it() -> None:
    expected = batches(draw())
    assert np.array_equal(draw().part(100 * BATCH + 3, 101 * BATCH).samples, expected[100][3:])


@pytest.mark.parametrize("mixes", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 4, 16])
def test_the_batches_are_the_same_on_any_number_of_ranks(ranks: int, mixes: bool) -> None:
    sizes = compute_batch_sizes(BATCH, BATCH // 16, ranks)
    steps = count_steps(sizes, IMAGES, epochs=2, max_steps=None)
    first = steps.per_epoch - 2
    of_ranks = []
    for rank in range(ranks):
        sampler = BatchSampler(
            batches=sizes,
            steps=steps,
            samples=IMAGES,
            rank=rank,
            seed=7,
            shard_order=lambda epoch: draw(epoch=epoch, mixes=mixes),
        )
        parts = [micro for micro in sampler.micro_batches(first) if micro.step < first + 4]
        of_ranks.append([np.concatenate([part.samples for part in parts if part.step == first + n]) for n in range(4)])
    together = np.stack([np.concatenate(parts) for parts in zip(*of_ranks, strict=True)])
    orders = [draw(epoch=epoch, mixes=mixes) for epoch in range(2)]
    expected = np.concatenate([batches(orders[0])[first : first + 2], batches(orders[1])[:2]])
    assert np.array_equal(together, expected)


@pytest.mark.parametrize(("ranks", "mixes"), [(1, False), (4, False), (4, True), (16, False)])
def test_a_rank_reads_the_shards_of_its_readers_only(ranks: int, mixes: bool) -> None:
    share = BATCH // ranks
    of_first_rank = batches(draw(mixes=mixes))[:, :share].ravel()
    runs = np.unique(np.searchsorted(RUNS.starts[:-1], of_first_rank, side="right"))
    assert len(runs) <= len(RUNS.starts[:-1]) / ranks + READERS * WINDOW


def test_the_images_of_a_reader_lie_in_a_few_runs_at_a_time() -> None:
    share = BATCH // READERS
    of_reader = batches(draw())[:, :share].ravel()[:80]  # a block
    assert len(np.unique(np.searchsorted(RUNS.starts[:-1], of_reader, side="right"))) <= 2 * WINDOW


def test_batches_of_shards_that_are_sorted_by_class_hold_nearly_as_many_classes_as_shuffled_ones() -> None:
    shuffled = np.random.default_rng(0).permutation(IMAGES)[: IMAGES // BATCH * BATCH].reshape(-1, BATCH)
    number, best = (np.mean([len(np.unique(CLASSES[batch])) for batch in each]) for each in (batches(draw()), shuffled))
    assert number > 0.9 * best


@pytest.mark.parametrize("shards", [16, 20, SHARDS])
def test_micro_batches_hold_about_the_same_classes_where_each_shard_has_one(shards: int) -> None:
    images, size = shards * IMAGES_PER_SHARD, BATCH // 4
    classes = np.arange(images) * 10 // images
    shuffled = np.random.default_rng(0).permutation(images)[: images // size * size].reshape(-1, size)
    micro_batches = batches(draw(runs_of(shards, IMAGES_PER_SHARD)), images // BATCH).reshape(-1, size)
    number, best = (np.mean([len(np.unique(classes[batch])) for batch in each]) for each in (micro_batches, shuffled))
    assert number > 0.9 * best


def share_of_pairs_in_a_class(order: ShardOrder, classes: np.ndarray) -> float:
    """Of the images 2k and 2k + 1, which mixup and CutMix mix; relative to pairs of images that are drawn at random."""
    batch = order.global_batch_size
    pairs = classes[order.part(0, len(classes) // batch * batch).samples].reshape(-1, 2)
    return float((pairs[:, 0] == pairs[:, 1]).mean() * (classes.max() + 1))


# Shards, images of each, classes, readers. Two shards of a class or more, as many, one of several classes in order.
SORTED_SHARDS = [(40, 500, 20, 16), (100, 200, 100, 64), (20, 500, 10, 64), (10, 1000, 10, 64), (4, 1000, 100, 16)]


@pytest.mark.parametrize(("shards", "images", "classes", "readers"), [*SORTED_SHARDS, (1, 4000, 2, 16), (9, 500, 3, 2)])
def test_pairs_that_are_mixed_are_of_one_class_no_more_often_than_by_chance(
    shards: int, images: int, classes: int, readers: int
) -> None:
    runs, labels = runs_of(shards, images), np.arange(shards * images) * classes // (shards * images)
    assert share_of_pairs_in_a_class(draw(runs, readers=readers, mixes=True), labels) < 1.15


@pytest.mark.parametrize(("shards", "classes"), [(1, 2), (10, 10), (20, 10), (40, 4)])
def test_pairs_that_are_mixed_are_of_one_class_nearly_as_often_as_by_chance(shards: int, classes: int) -> None:
    runs, labels = runs_of(shards, 8000 // shards), np.arange(8000) * classes // 8000
    assert share_of_pairs_in_a_class(draw(runs, readers=64, mixes=True), labels) > 0.5


@pytest.mark.parametrize("readers", [1, 2, 16, 64])
def test_mixing_changes_only_the_order_within_a_global_batch(readers: int) -> None:
    """So a run that was begun in another order draws no image twice in the epoch that it continues."""
    plain, mixed = (batches(draw(readers=readers, mixes=mixes)) for mixes in (False, True))
    assert np.array_equal(np.sort(plain, axis=1), np.sort(mixed, axis=1))
    assert np.array_equal(plain, mixed) == (readers == 1)


def test_only_a_training_that_mixes_has_the_order_for_it(tmp_path: Path) -> None:
    made_index.write_index(tmp_path / "shards", 20_000)
    orders = []
    for augment in (["horizontal_flip"], ["mixup"], ["horizontal_flip", {"cutmix": {"p": 0.5}}]):
        data = data_of(tmp_path / "shards", val_fraction=0.0, augment=augment)
        draw_epoch = draw_orders(registry.open_splits(data).training.runs(), RunConfig(data=data))
        assert draw_epoch is not None
        orders.append(draw_epoch(0).part(0, BATCH).samples.tolist())
    assert orders[0] != orders[1] == orders[2]


def test_an_index_takes_no_memory_of_a_rank_for_each_image(tmp_path: Path) -> None:
    images = 500_000
    made_index.write_index(tmp_path / "shards", images)
    registry.open_splits(data_of(tmp_path / "shards", val_fraction=0.0))  # what is imported and kept once
    tracemalloc.start()
    splits = registry.open_splits(data_of(tmp_path / "shards", val_fraction=0.0))
    runs = splits.training.runs()
    assert runs is not None
    order = draw(runs)
    order.part(0, BATCH)
    assert tracemalloc.get_traced_memory()[0] < 2 * images  # bytes; the labels alone would take more
    tracemalloc.stop()


def test_fewer_shards_than_readers_are_divided_between_them() -> None:
    images = batches(draw(runs_of(2, 320)), 10).ravel()
    assert len(np.unique(images)) == 640
