"""Labels, and how many classes they are of."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from entrypoint import ExitCode, Failure
from train.data import arrays


@pytest.mark.parametrize("kind", ["uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_integers_of_any_width_are_taken(kind: str) -> None:
    found = arrays.checked_labels(torch.from_numpy(np.arange(6).astype(kind)), "my.npz")
    assert (found.dtype, found.tolist()) == (torch.int64, [0, 1, 2, 3, 4, 5])


def test_a_column_is_taken_too() -> None:
    assert arrays.checked_labels(torch.arange(3)[:, None], "my.npz").tolist() == [0, 1, 2]


ZEROS = torch.zeros(6, dtype=torch.int64)
BAD = {
    "one-hot": (torch.eye(6), "labels [6, 6]", "argmax(1)"),
    "two-columns": (torch.zeros(6, 2, dtype=torch.int64), "labels [6, 2]", "argmax(1)"),
    "three-axes": (ZEROS.view(6, 1, 1), "labels [6, 1, 1]", "one label for each"),
    "one-number": (torch.tensor(3), "labels []", "one label for each"),
    "float32": (ZEROS.float(), "float32 [6]", "astype('int64')"),
    "float64": (ZEROS.double(), "float64 [6]", "astype('int64')"),
    "float-column": (ZEROS.float()[:, None], "float32 [6, 1]", "astype('int64')"),
    "bool": (ZEROS.bool(), "bool [6]", "astype('int64')"),
    "complex": (ZEROS.to(torch.complex64), "complex64 [6]", "astype('int64')"),
    "negative": (ZEROS - 1, "-1", "from 0"),
    "ignored": (torch.tensor([0, 1, -100]), "-100", "from 0"),
}


@pytest.mark.parametrize(("given", "found", "fix"), BAD.values(), ids=BAD)
def test_what_are_no_labels_is_refused(given: Tensor, found: str, fix: str) -> None:
    with pytest.raises(Failure) as caught:
        arrays.checked_labels(given, "my.npz")
    assert caught.value.code == ExitCode.DATA
    assert found in str(caught.value.found)
    assert fix in caught.value.fix


COUNTED = {
    "by-the-labels": (None, [0, 1, 2], None, 3),
    "by-both-splits": (None, [0, 1, 2], [1], 3),
    "claimed": (5, [0, 1], [4], 5),
    "no-validation": (None, [0, 1], [], 2),
}


@pytest.mark.parametrize(("claimed", "training", "validation", "expected"), COUNTED.values(), ids=COUNTED)
def test_classes_are_counted(
    claimed: int | None, training: list[int], validation: list[int] | None, expected: int
) -> None:
    others = None if validation is None else torch.tensor(validation, dtype=torch.int64)
    assert arrays.count_classes("my.npz", claimed, torch.tensor(training), others) == expected


MISCOUNTED = {
    "from-one": (None, [1, 2, 3], None, "no label 0"),
    "a-gap": (None, [0, 1, 4], None, "no label 2, 3"),
    "gaps-beyond-memory": (None, [0, 10**15], None, "no label 1, 2, 3, 4, 5"),
    "many-gaps": (None, [0, 99], None, "no label 1, 2, 3, 4, 5"),
    "validation-alone": (None, [0, 1], [2], "no label 2"),
    "one-class": (None, [0, 0], None, "label 0 alone"),
    "one-class-in-both-splits": (None, [0, 0], [0], "label 0 alone"),
    "above-the-claim": (3, [0, 1, 3], None, "label 3"),
    "validation-above-the-claim": (3, [0, 1], [7], "label 7"),
    "just-above": (2, [0, 1, 2], None, "label 2"),
    "a-huge-label": (10, [0, 10**9], None, "label 1000000000"),
}


@pytest.mark.parametrize(("claimed", "training", "validation", "found"), MISCOUNTED.values(), ids=MISCOUNTED)
def test_labels_that_do_not_make_classes_are_refused(
    claimed: int | None, training: list[int], validation: list[int] | None, found: str
) -> None:
    others = None if validation is None else torch.tensor(validation)
    with pytest.raises(Failure) as caught:
        arrays.count_classes("my.npz", claimed, torch.tensor(training), others)
    assert caught.value.code == ExitCode.DATA
    assert f"my.npz: {found}" in str(caught.value.found)
