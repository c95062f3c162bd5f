"""Each class of a long tail has its number of samples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrypoint import ExitCode, Failure
from train.data.sources import synthetic

EXPECTED = {
    "one-in-a-hundred": ((10_000, 2, 99.0), [9900, 100]),
    "a-tail-of-three": ((700, 3, 4.0), [400, 200, 100]),
    "even": ((10, 4, 1.0), [3, 3, 2, 2]),
    "one-of-the-rarest": ((1000, 2, 1e6), [999, 1]),
    "just-enough": ((3, 3, 50.0), [1, 1, 1]),
    "no-samples": ((0, 3, 50.0), [0, 0, 0]),
}


@pytest.mark.parametrize(("given_", "expected"), EXPECTED.values(), ids=EXPECTED)
def test_counts(given_: tuple[int, int, float], expected: list[int]) -> None:
    assert synthetic.long_tail_counts(*given_) == expected


@given(st.integers(2, 50), st.integers(0, 5000), st.floats(1, 1e6))
def test_all_samples_have_a_class_and_all_classes_a_sample(classes: int, more: int, imbalance: float) -> None:
    counts = synthetic.long_tail_counts(classes + more, classes, imbalance)
    assert sum(counts) == classes + more
    assert min(counts) >= 1
    assert counts == sorted(counts, reverse=True)


def test_fewer_samples_than_classes_are_refused_with_the_numbers() -> None:
    with pytest.raises(Failure, match="both splits") as caught:
        synthetic.long_tail_counts(9, 10, 2.0)
    assert caught.value.code == ExitCode.USAGE
    assert caught.value.found == "9 samples in one split, 10 classes"
