"""Random numbers that belong to a key."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from train import rng

KEYS = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=4)


def test_the_hash_is_the_same_on_every_machine_and_in_every_version() -> None:
    assert [int(word) for word in rng.random_bits(rng.ORDER, 0, np.arange(3))] == [
        int(rng.random_bits(rng.ORDER, 0, number)) for number in range(3)
    ]
    assert int(rng.random_bits(0)) == 16294208416658607535  # splitmix64's first number for seed 0


@given(KEYS)
def test_a_key_always_gives_the_same_number(key: list[int]) -> None:
    assert rng.random_bits(*key) == rng.random_bits(*key)


def test_keys_that_differ_in_one_part_give_other_numbers() -> None:
    seen = {int(rng.random_bits(*key)) for key in [(1, 2, 3), (1, 2, 4), (1, 3, 3), (2, 2, 3), (3, 2, 1), (1, 2)]}
    assert len(seen) == 6


def test_numbers_fill_the_unit_interval_evenly() -> None:
    numbers = rng.uniform(rng.AUGMENT, 0, np.arange(100_000))
    assert numbers.min() >= 0
    assert numbers.max() < 1
    shares, _ = np.histogram(numbers, bins=10, range=(0, 1))
    assert abs(shares - 10_000).max() < 400


def test_the_parts_of_a_key_broadcast_like_arrays() -> None:
    both = rng.random_bits(7, np.arange(3)[:, None], np.arange(4))
    assert both.shape == (3, 4)
    assert both[2, 1] == rng.random_bits(7, 2, 1)


@given(st.integers(0, 300), st.integers(0, 2**63 - 1))
def test_a_permutation_has_every_number_once(count: int, seed: int) -> None:
    assert sorted(rng.permutation(count, seed)) == list(range(count))


def test_each_epoch_has_another_order() -> None:
    first, second = (rng.permutation(100, rng.ORDER, 0, epoch) for epoch in (0, 1))
    assert not np.array_equal(first, second)


@given(KEYS)
def test_a_seed_fits_every_librarys_generator(key: list[int]) -> None:
    assert 0 <= rng.derive_seed(*key) < 2**63


@given(st.lists(st.integers(-(2**63), 2**64 - 1), min_size=1, max_size=4))
def test_a_seed_is_half_the_word_of_its_key(key: list[int]) -> None:
    assert rng.derive_seed(*key) == int(rng.random_bits(*key)) >> 1


@pytest.mark.parametrize("part", [-1, -(2**63)])
def test_negative_parts_are_accepted(part: int) -> None:
    assert rng.random_bits(part).shape == ()
