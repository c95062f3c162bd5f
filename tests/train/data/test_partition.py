"""Which samples are for validation and for the test, where files of one group stay in one split."""

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
    parts = split(labels, val_fraction=0.2, test_fraction=0.1)
    assert np.bincount(labels[parts.test]).tolist() == [10, 5, 1]
    assert not (parts.test & parts.validation).any()
    assert parts.training.sum() == 112


def test_a_test_split_changes_no_validation_image() -> None:
    with_test, without = split(LABELS, test_fraction=0.3), split(LABELS)
    assert with_test.validation.tolist() == without.validation.tolist()


def test_validation_images_of_their_own_leave_only_the_test_to_split_off() -> None:
    parts = partition.partition_samples(LABELS, DataConfig(test_fraction=0.2), has_validation=True)
    assert (parts.validation.sum(), parts.test.sum()) == (0, 6)


@pytest.mark.parametrize("test_fraction", [0.0, 0.2])
def test_the_folds_cover_every_image_but_the_tests_once(test_fraction: float) -> None:
    folds = [split(LABELS, fold=fold, test_fraction=test_fraction) for fold in FIVE]
    counts = sum(parts.validation.astype(int) for parts in folds)
    assert (counts == ~folds[0].test).all()
    assert all((parts.test == folds[0].test).all() for parts in folds)


def test_every_fold_has_its_share_of_every_class() -> None:
    labels = np.repeat(np.arange(3), (100, 50, 10))
    for fold in FIVE:
        assert np.bincount(labels[split(labels, fold=fold).validation]).tolist() == [20, 10, 2]


def grouped(num_groups: int) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], list[str]]:
    """Groups of different sizes, in each of which two classes take turns."""
    return groups_of([3 + number % 7 for number in range(num_groups)])


def test_no_group_is_in_two_splits() -> None:
    labels, groups = grouped(30)
    parts = split(labels, groups, val_fraction=0.2, test_fraction=0.2)
    names = [
        {groups[sample] for sample in np.flatnonzero(mask).tolist()}
        for mask in (parts.training, parts.validation, parts.test)
    ]
    assert sum(map(len, names)) == len(set(groups))
    assert all(names)


def test_the_folds_of_groups_cover_every_image_once_and_have_its_share_of_every_class() -> None:
    labels, groups = grouped(30)
    folds = [split(labels, groups, fold=fold) for fold in FIVE]
    assert (sum(parts.validation.astype(int) for parts in folds) == 1).all()
    shares = [np.bincount(labels[parts.validation]) / np.bincount(labels) for parts in folds]
    assert np.abs(np.array(shares) - 0.2).max() < 0.04
    for parts in folds:
        cut = {groups[i] for i in np.flatnonzero(parts.validation).tolist()}
        assert not cut & {groups[i] for i in np.flatnonzero(parts.training).tolist()}


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


@pytest.mark.parametrize(("data", "problem"), CONTRADICTIONS.values(), ids=CONTRADICTIONS.keys())
def test_keys_that_contradict_each_other_are_refused(data: DataConfig, problem: str) -> None:
    with pytest.raises(Failure, match=problem) as caught:
        checks.refuse_conflicts(RunConfig(data=data))
    assert caught.value.code == ExitCode.USAGE


PATHS = ["ant/video_1/a.png", "ant/video_2/a.png", "bee/video_1/b.png"]


@pytest.mark.parametrize(
    ("pattern", "groups"),
    [
        (r"video_(\d+)", ["1", "2", "1"]),
        (r"video_\d+", ["video_1", "video_2", "video_1"]),
        (r"^(\w+)/video_(\d)", ["ant, 1", "ant, 2", "bee, 1"]),
        (r"(ant)?/video_\d", ["ant", "ant", ""]),
    ],
)
def test_a_group_is_what_the_pattern_captures_else_its_whole_match(pattern: str, groups: list[str]) -> None:
    assert partition.group_names(PATHS, pattern) == groups


@pytest.mark.parametrize(
    ("pattern", "first", "share"),
    [
        ("ant", "bee/video_1/b.png", "1 of 3 images"),
        ("video_2", "ant/video_1/a.png, and others", "2 of 3 images"),
        ("video_3", "ant/video_1/a.png, and others", "3 of 3 images"),
        ("/ant/", "ant/video_1/a.png, and others", "3 of 3 images"),
    ],
)
def test_files_without_a_group_are_counted_and_the_first_is_named(pattern: str, first: str, share: str) -> None:
    with pytest.raises(Failure, match=r"data\.group") as caught:
        partition.group_names(PATHS, pattern)
    assert (caught.value.code, caught.value.found) == (ExitCode.DATA, first)
    assert share in caught.value.what


def groups_of(sizes: list[int], classes: int = 2) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], list[str]]:
    """Groups of these sizes, in each of which the classes take turns."""
    labels = np.concatenate([np.arange(size) % classes for size in sizes])
    return labels, [f"g{number}" for number, size in enumerate(sizes) for _ in range(size)]


def test_a_group_is_never_cut() -> None:
    labels, named = groups_of([3, 9, 4, 30, 12, 7, 1, 1, 20, 15])
    held = partition.validation_mask_by_group(labels, named, 20)
    on_both = {name for name, is_held in zip(named, held, strict=True) if is_held} & {
        name for name, is_held in zip(named, held, strict=True) if not is_held
    }
    assert not on_both


@pytest.mark.parametrize("share", [0.1, 0.2, 0.5, 0.8])
def test_about_the_requested_share_of_every_class_is_for_validation(share: float) -> None:
    labels, named = groups_of([5 + number % 23 for number in range(60)], classes=4)
    held = partition.validation_mask_by_group(labels, named, round(share * len(labels)))
    shares = np.bincount(labels[held], minlength=4) / np.bincount(labels)
    assert np.abs(shares - share).max() < 0.03


def test_a_rare_class_gets_its_share_though_few_groups_have_it() -> None:
    labels = np.array(([0] * 20 + [1] * 2) * 5 + [0] * 20 * 25)
    named = [f"with-{i}" for i in range(5) for _ in range(22)] + [f"without-{i}" for i in range(25) for _ in range(20)]
    held = partition.validation_mask_by_group(labels, named, round(0.2 * len(labels)))
    assert np.bincount(labels[held]).tolist() == [120, 2]


def test_the_split_does_not_depend_on_the_order_of_the_files() -> None:
    labels, named = groups_of([3, 9, 4, 30, 12, 7, 1, 1, 20, 15])
    mixed = np.random.default_rng(0).permutation(len(labels))
    straight = partition.validation_mask_by_group(labels, named, 20)
    assert (partition.validation_mask_by_group(labels[mixed], [named[i] for i in mixed], 20) == straight[mixed]).all()


def test_a_share_of_zero_leaves_the_validation_split_empty() -> None:
    assert not partition.validation_mask_by_group(np.array([0, 1]), ["all", "all"], 0).any()


def test_of_two_large_groups_one_is_for_validation_even_for_a_small_share() -> None:
    labels, named = groups_of([50, 40])
    assert partition.validation_mask_by_group(labels, named, 5).sum() == 40


INDIVISIBLE = {
    "one group": (np.array([0, 1, 0]), ["a", "a", "a"], "one group"),
    "one file": (np.array([0]), ["a"], "one group"),
    "a group for each class": (np.array([0, 0, 1, 1]), ["a", "a", "b", "b"], "trained on"),
    "all but a group": (np.array([0, 1, 2]), ["a", "b", "c"], "trained on"),
}


@pytest.mark.parametrize(("labels", "named", "problem"), INDIVISIBLE.values(), ids=INDIVISIBLE.keys())
def test_groups_that_cannot_be_split_are_bad_data(labels: partition.Labels, named: list[str], problem: str) -> None:
    with pytest.raises(Failure, match=problem) as caught:
        partition.validation_mask_by_group(labels, named, 1)
    assert caught.value.code == ExitCode.DATA
    assert "data.group" in caught.value.fix


def test_what_came_out_is_said() -> None:
    labels, named = groups_of([10, 10, 30, 50])
    held = partition.validation_mask_by_group(labels, named, 20)
    assert partition.describe_split(named, held, 20) == (
        "val: 20 of 100 images in 2 of 4 groups (data.val_fraction asks for 20 images)"
    )


@pytest.mark.parametrize(
    ("training", "validation", "leaked"),
    [
        (["1", "2"], ["2"], "2"),
        (["1", "2", "2"], ["3", "2", "1"], "1, 2"),
        ([str(n) for n in range(9)], [str(n) for n in range(9)], "0, 1, 2, 3, 4 and 4 more"),
    ],
)
def test_a_group_on_both_sides_is_named(training: list[str], validation: list[str], leaked: str) -> None:
    with pytest.raises(Failure, match="in both splits") as caught:
        partition.refuse_leaks({"training": training, "validation": validation})
    assert (caught.value.code, caught.value.found) == (ExitCode.DATA, leaked)


def test_groups_on_one_side_each_are_fine() -> None:
    partition.refuse_leaks({"training": ["1", "2"], "validation": ["3"], "test": ["4"]})
