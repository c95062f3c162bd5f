"""What the encoders of the tasks make of labels as they are written."""

from __future__ import annotations

import numpy as np
import pytest

from train.tasks import CLASSIFICATION, MULTI_LABEL, REGRESSION
from train.tasks.labels import FORMATS, label_set_strata

NUMBERS = {"cat": 0, "dog": 1, "sofa": 2}


def test_a_class_is_its_number() -> None:
    assert FORMATS[CLASSIFICATION].encode(["dog", "cat", "dog"], NUMBERS, 3).tolist() == [1, 0, 1]


def test_a_label_alone_is_a_set_of_one() -> None:
    values = FORMATS[MULTI_LABEL].encode([("cat", "sofa"), "dog", ()], NUMBERS, 4)
    assert values.tolist() == [[1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]


@pytest.mark.parametrize("text", ["tall", "", "nan", "inf", "1e39", "('1', '2')"])
def test_a_text_without_a_number_of_32_bits_is_not_a_number(text: str) -> None:
    assert np.isnan(FORMATS[REGRESSION].encode(["1.5", text, "-3e2"], {}, 1)).tolist() == [False, True, False]


def test_samples_that_share_a_set_are_in_the_strata_of_samples_with_sets_of_their_own() -> None:
    random = np.random.default_rng(0)
    sets = random.random((12, 5)) < 0.3
    rows = random.integers(0, len(sets), 400)
    assert np.array_equal(label_set_strata(sets, rows), label_set_strata(sets[rows].astype(np.float32)))


def test_samples_without_a_label_are_a_stratum() -> None:
    strata = label_set_strata(np.array([[1, 0], [0, 0], [1, 1], [0, 0]]))
    assert strata[1] == strata[3]
    assert strata[1] not in strata[[0, 2]]
