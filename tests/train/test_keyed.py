"""Random numbers that belong to a key."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from train import keyed

KEYS = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=4)


def test_the_hash_is_the_same_on_every_machine_and_in_every_version() -> None:
    assert [int(word) for word in keyed.words(keyed.ORDER, 0, np.arange(3))] == [
        int(keyed.words(keyed.ORDER, 0, number)) for number in range(3)
    ]
    assert int(keyed.words(0)) == 16294208416658607535  # splitmix64's first number for seed 0


@given(KEYS)
def test_a_key_always_gives_the_same_number(key: list[int]) -> None:
    assert keyed.words(*key) == keyed.words(*key)


def test_keys_that_differ_in_one_part_give_other_numbers() -> None:
    seen = {int(keyed.words(*key)) for key in [(1, 2, 3), (1, 2, 4), (1, 3, 3), (2, 2, 3), (3, 2, 1), (1, 2)]}
    assert len(seen) == 6


def test_numbers_fill_the_unit_interval_evenly() -> None:
    numbers = keyed.uniform(keyed.AUGMENT, 0, np.arange(100_000))
    assert numbers.min() >= 0
    assert numbers.max() < 1
    shares, _ = np.histogram(numbers, bins=10, range=(0, 1))
    assert abs(shares - 10_000).max() < 400


def test_the_parts_of_a_key_broadcast_like_arrays() -> None:
    both = keyed.words(7, np.arange(3)[:, None], np.arange(4))
    assert both.shape == (3, 4)
    assert both[2, 1] == keyed.words(7, 2, 1)


@given(st.integers(0, 300), st.integers(0, 2**63 - 1))
def test_a_permutation_has_every_number_once(count: int, seed: int) -> None:
    assert sorted(keyed.permutation(count, seed)) == list(range(count))


def test_each_epoch_has_another_order() -> None:
    first, second = (keyed.permutation(100, keyed.ORDER, 0, epoch) for epoch in (0, 1))
    assert not np.array_equal(first, second)


@given(KEYS)
def test_a_seed_fits_every_librarys_generator(key: list[int]) -> None:
    assert 0 <= keyed.seed(*key) < 2**63


@given(st.lists(st.integers(-(2**63), 2**64 - 1), min_size=1, max_size=4))
def test_a_seed_is_half_the_word_of_its_key(key: list[int]) -> None:
    assert keyed.seed(*key) == int(keyed.words(*key)) >> 1


@pytest.mark.parametrize("part", [-1, -(2**63)])
def test_negative_parts_are_accepted(part: int) -> None:
    assert keyed.words(part).shape == ()
