"""Files of one group stay in one split."""

from __future__ import annotations

import numpy as np
import pytest

from entrypoint import ExitCode, Failure
from train.data import partition

PATHS = ["ant/video_1/a.png", "ant/video_2/a.png", "bee/video_1/b.png"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (r"video_(\d+)", ["1", "2", "1"]),
        (r"video_\d+", ["video_1", "video_2", "video_1"]),
        (r"^(\w+)/video_(\d)", ["ant, 1", "ant, 2", "bee, 1"]),
        (r"(ant)?/video_\d", ["ant", "ant", ""]),
    ],
)
def test_a_group_is_what_the_pattern_captures_else_its_whole_match(pattern: str, found: list[str]) -> None:
    assert partition.group_names(PATHS, pattern) == found


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


def made(sizes: list[int], classes: int = 2) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], list[str]]:
    """Groups of these sizes, in each of which the classes take turns."""
    labels = np.concatenate([np.arange(size) % classes for size in sizes])
    return labels, [f"g{number}" for number, size in enumerate(sizes) for _ in range(size)]


def test_a_group_is_never_cut() -> None:
    labels, named = made([3, 9, 4, 30, 12, 7, 1, 1, 20, 15])
    held = partition.validation_mask_by_group(labels, named, 20)
    on_both = {name for name, is_held in zip(named, held, strict=True) if is_held} & {
        name for name, is_held in zip(named, held, strict=True) if not is_held
    }
    assert not on_both


@pytest.mark.parametrize("share", [0.1, 0.2, 0.5, 0.8])
def test_about_the_requested_share_of_every_class_is_for_validation(share: float) -> None:
    labels, named = made([5 + number % 23 for number in range(60)], classes=4)
    held = partition.validation_mask_by_group(labels, named, round(share * len(labels)))
    shares = np.bincount(labels[held], minlength=4) / np.bincount(labels)
    assert np.abs(shares - share).max() < 0.03


def test_a_rare_class_gets_its_share_though_few_groups_have_it() -> None:
    labels = np.array(([0] * 20 + [1] * 2) * 5 + [0] * 20 * 25)
    named = [f"with-{i}" for i in range(5) for _ in range(22)] + [f"without-{i}" for i in range(25) for _ in range(20)]
    held = partition.validation_mask_by_group(labels, named, round(0.2 * len(labels)))
    assert np.bincount(labels[held]).tolist() == [120, 2]


def test_the_split_does_not_depend_on_the_order_of_the_files() -> None:
    labels, named = made([3, 9, 4, 30, 12, 7, 1, 1, 20, 15])
    mixed = np.random.default_rng(0).permutation(len(labels))
    straight = partition.validation_mask_by_group(labels, named, 20)
    assert (partition.validation_mask_by_group(labels[mixed], [named[i] for i in mixed], 20) == straight[mixed]).all()


def test_a_share_of_zero_leaves_the_validation_split_empty() -> None:
    assert not partition.validation_mask_by_group(np.array([0, 1]), ["all", "all"], 0).any()


def test_of_two_large_groups_one_is_for_validation_even_for_a_small_share() -> None:
    labels, named = made([50, 40])
    assert partition.validation_mask_by_group(labels, named, 5).sum() == 40


REFUSED = {
    "one group": (np.array([0, 1, 0]), ["a", "a", "a"], "one group"),
    "one file": (np.array([0]), ["a"], "one group"),
    "a group for each class": (np.array([0, 0, 1, 1]), ["a", "a", "b", "b"], "trained on"),
    "all but a group": (np.array([0, 1, 2]), ["a", "b", "c"], "trained on"),
}


@pytest.mark.parametrize(("labels", "named", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_groups_that_cannot_be_split_are_bad_data(labels: partition.Labels, named: list[str], said: str) -> None:
    with pytest.raises(Failure, match=said) as caught:
        partition.validation_mask_by_group(labels, named, 1)
    assert caught.value.code == ExitCode.DATA
    assert "data.group" in caught.value.fix


def test_what_came_out_is_said() -> None:
    labels, named = made([10, 10, 30, 50])
    held = partition.validation_mask_by_group(labels, named, 20)
    assert partition.describe_split(named, held, 20) == (
        "val: 20 of 100 images in 2 of 4 groups (data.val_fraction asks for 20 images)"
    )


@pytest.mark.parametrize(
    ("training", "validation", "said"),
    [
        (["1", "2"], ["2"], "2"),
        (["1", "2", "2"], ["3", "2", "1"], "1, 2"),
        ([str(n) for n in range(9)], [str(n) for n in range(9)], "0, 1, 2, 3, 4 and 4 more"),
    ],
)
def test_a_group_on_both_sides_is_named(training: list[str], validation: list[str], said: str) -> None:
    with pytest.raises(Failure, match="in both splits") as caught:
        partition.refuse_leaks({"training": training, "validation": validation})
    assert (caught.value.code, caught.value.found) == (ExitCode.DATA, said)


def test_groups_on_one_side_each_are_fine() -> None:
    partition.refuse_leaks({"training": ["1", "2"], "validation": ["3"], "test": ["4"]})
