"""Which samples are for validation and for the test."""

from __future__ import annotations

import numpy as np
import pytest

from entrypoint import ExitCode, Failure
from train.config import checks
from train.config.schema import DataConfig, RunConfig
from train.data import partition
from train.data.partition import Partition

LABELS = np.array([0] * 20 + [1] * 7 + [2] * 3)
FIVE = [f"{number}/5" for number in range(1, 6)]


def split(
    labels: np.ndarray[tuple[int], np.dtype[np.int64]], groups: list[str] | None = None, **keys: object
) -> Partition:
    return partition.partition_samples(labels, DataConfig(**keys), groups=groups)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, 1, 7, 29])
def test_exactly_as_many_are_set_aside_as_asked(count: int) -> None:
    assert split(LABELS, val_fraction=count / 30).validation.sum() == count


def test_every_class_gives_its_share() -> None:
    labels = np.repeat(np.arange(3), (100, 50, 10))
    assert np.bincount(labels[split(labels, val_fraction=0.1).validation]).tolist() == [10, 5, 1]


def test_the_split_is_the_same_every_time() -> None:
    first, second = (split(LABELS, val_fraction=0.3) for _ in range(2))
    assert first.validation.tolist() == second.validation.tolist()


def test_no_labels_are_no_samples() -> None:
    assert split(np.empty(0, np.int64)).validation.tolist() == []


def test_every_class_gives_its_share_to_the_test() -> None:
    labels = np.repeat(np.arange(3), (100, 50, 10))
    found = split(labels, val_fraction=0.2, test_fraction=0.1)
    assert np.bincount(labels[found.test]).tolist() == [10, 5, 1]
    assert not (found.test & found.validation).any()
    assert found.training.sum() == 112


def test_a_test_split_changes_no_validation_image() -> None:
    with_test, without = split(LABELS, test_fraction=0.3), split(LABELS)
    assert with_test.validation.tolist() == without.validation.tolist()


def test_validation_images_of_their_own_leave_only_the_test_to_split_off() -> None:
    found = partition.partition_samples(LABELS, DataConfig(test_fraction=0.2), has_validation=True)
    assert (found.validation.sum(), found.test.sum()) == (0, 6)


@pytest.mark.parametrize("test_fraction", [0.0, 0.2])
def test_the_folds_cover_every_image_but_the_tests_once(test_fraction: float) -> None:
    folds = [split(LABELS, fold=fold, test_fraction=test_fraction) for fold in FIVE]
    counts = sum(found.validation.astype(int) for found in folds)
    assert (counts == ~folds[0].test).all()
    assert all((found.test == folds[0].test).all() for found in folds)


def test_every_fold_has_its_share_of_every_class() -> None:
    labels = np.repeat(np.arange(3), (100, 50, 10))
    for fold in FIVE:
        assert np.bincount(labels[split(labels, fold=fold).validation]).tolist() == [20, 10, 2]


def grouped(num_groups: int) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], list[str]]:
    """Groups of different sizes, in each of which two classes take turns."""
    sizes = [3 + number % 7 for number in range(num_groups)]
    labels = np.concatenate([np.arange(size) % 2 for size in sizes])
    return labels, [f"g{number}" for number, size in enumerate(sizes) for _ in range(size)]


def test_no_group_is_in_two_splits() -> None:
    labels, groups = grouped(30)
    found = split(labels, groups, val_fraction=0.2, test_fraction=0.2)
    names = [
        {groups[sample] for sample in np.flatnonzero(mask).tolist()}
        for mask in (found.training, found.validation, found.test)
    ]
    assert sum(map(len, names)) == len(set(groups))
    assert all(names)


def test_the_folds_of_groups_cover_every_image_once_and_have_its_share_of_every_class() -> None:
    labels, groups = grouped(30)
    folds = [split(labels, groups, fold=fold) for fold in FIVE]
    assert (sum(found.validation.astype(int) for found in folds) == 1).all()
    shares = [np.bincount(labels[found.validation]) / np.bincount(labels) for found in folds]
    assert np.abs(np.array(shares) - 0.2).max() < 0.04
    for found in folds:
        cut = {groups[i] for i in np.flatnonzero(found.validation).tolist()}
        assert not cut & {groups[i] for i in np.flatnonzero(found.training).tolist()}


def test_folds_of_groups_do_not_depend_on_the_order_of_the_files() -> None:
    labels, groups = grouped(20)
    mixed = np.random.default_rng(0).permutation(len(labels))
    straight = split(labels, groups, fold="2/5").validation
    other = split(labels[mixed], [groups[i] for i in mixed.tolist()], fold="2/5").validation
    assert (other == straight[mixed]).all()


def test_fewer_groups_than_folds_are_refused() -> None:
    labels, groups = grouped(3)
    with pytest.raises(Failure, match=r"fewer groups than the 5 folds of data\.fold") as caught:
        split(labels, groups, fold="1/5")
    assert caught.value.code == ExitCode.DATA


def test_a_class_that_lies_in_one_group_cannot_be_folded() -> None:
    labels, groups = grouped(10)
    labels[:3] = 2  # the first group, and no other
    with pytest.raises(Failure, match="no image of 1 classes would be trained on in fold"):
        split(labels, groups, fold="1/5")


CONTRADICTIONS = {
    "two-ways-to-validate": (DataConfig(fold="1/5", val_fraction=0.1), "both choose the validation images"),
    "nothing-left": (DataConfig(val_fraction=0.5, test_fraction=0.5), "leave nothing to train on"),
}


@pytest.mark.parametrize(("data", "said"), CONTRADICTIONS.values(), ids=CONTRADICTIONS.keys())
def test_keys_that_contradict_each_other_are_refused(data: DataConfig, said: str) -> None:
    with pytest.raises(Failure, match=said) as caught:
        checks.refuse_conflicts(RunConfig(data=data))
    assert caught.value.code == ExitCode.USAGE
