"""What the encoders of the tasks make of labels as they are written."""

from __future__ import annotations

import numpy as np
import pytest

from train.tasks import CLASSIFICATION, MULTI_LABEL, REGRESSION
from train.tasks.labels import FORMATS, label_set_strata, missing_validation_warnings

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


def test_a_class_too_small_to_be_measured_is_named() -> None:
    training, validation = np.repeat([0, 1], [1, 80]), np.ones(20, int)
    (warning,) = missing_validation_warnings(CLASSIFICATION, ("one", "two"), training, validation)
    assert (
        warning
        == "class one has 1 image: none is used for validation. fix: more images of it, or a larger data.val_fraction"
    )


def test_of_several_the_first_three_are_named() -> None:
    training = np.eye(6, dtype=np.float32)[np.repeat(range(6), [1, 2, 1, 1, 1, 9])]
    (warning,) = missing_validation_warnings(MULTI_LABEL, tuple("abcdef"), training, training[-1:])
    assert warning.startswith(
        "of 5 classes no image is used for validation: a (1 image), b (2 images), c (1 image) and 2 more. fix:"
    )


def test_numbers_and_data_without_validation_images_have_no_such_warning() -> None:
    numbers = np.array([1.5, 2.5], np.float32)
    assert missing_validation_warnings(REGRESSION, ("age",), numbers, numbers) == ()
    assert missing_validation_warnings(CLASSIFICATION, ("a", "b"), np.array([0, 1]), np.empty(0, int)) == ()
