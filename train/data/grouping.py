"""Splits by groups of files, so that no group (a video, a patient) is in training and validation.

`data.group` is a pattern that finds the group in a file's path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from entrypoint import ExitCode, Failure
from train import rng
from train.config import batches
from train.data import class_folders
from train.data.class_folders import FolderLayout

Labels = npt.NDArray[np.int64]
SampleMask = npt.NDArray[np.bool_]
MAX_LISTED_GROUPS: Final = 5
MAX_ROUNDS: Final = 8  # each group is looked at so often; two or three are enough in practice


def group_names(paths: Iterable[str], pattern: str) -> list[str]:
    """Each path's group: what the pattern's own groups hold, or its whole match where it has none.

    Args:
        paths: relative to the folder of the class folders, with `/`: `CLASS/video_1/0001.jpg`.

    Raises:
        Failure: DATA for paths in which the pattern is not found, with the first one and how many there are.
    """
    search = re.compile(pattern).search
    found, without = [], []
    for path in paths:
        match = search(path)
        if match is None:
            without.append(path)
        else:
            found.append(", ".join(part or "" for part in match.groups()) if match.re.groups else match[0])
    if without:
        raise Failure(
            f"data.group is not found in the paths of {len(without):,} of {len(found) + len(without):,} images",
            found=f"{without[0]}" + (", and others" if len(without) > 1 else ""),
            expected=f"a match of {pattern!r} in each path below the folder of class folders",
            fix="correct data.group, or rename or move these files; data.group=null splits by single images",
            code=ExitCode.DATA,
        )
    return found


def validation_mask_by_group(labels: Labels, groups: Sequence[str], count: int) -> SampleMask:
    """Which samples are set aside, bool [n]: about `count`, about the same share of every class, only whole groups.

    Not keyed by run.seed, and from the groups' names alone: neither the order of the files nor that of the groups
    matters. From the empty set on, a group changes sides wherever this brings the classes nearer to their shares.

    Raises:
        Failure: DATA for fewer than two groups, and for a class that is not trained on whatever is held out.
    """
    if count == 0:
        return np.zeros(len(labels), bool)
    unique, member = np.unique(np.array(groups), return_inverse=True)
    if len(unique) < 2:
        raise _unsplittable_failure(
            "all images are one group: nothing can be held out", f"{len(labels)} images of {unique[0]}"
        )
    tables = _count_labels_by_group(labels, member, len(unique))
    sizes = np.bincount(labels)
    held = _choose_groups(tables, sizes, count / len(labels))
    if not held.any():
        held[_least_harmful_group(tables, sizes, range(len(unique)))] = True
    chosen: SampleMask = held[member]
    missing = np.setdiff1d(labels, labels[~chosen])
    if len(missing):
        shown = ", ".join(str(name) for name in unique[held][:MAX_LISTED_GROUPS])
        raise _unsplittable_failure(
            f"no image of {len(missing)} classes would be trained on", f"held-out groups: {shown}"
        )
    return chosen


def count_training_images(layout: FolderLayout, pattern: str, fraction: float) -> int:
    """How many images of a folder are left for training, where whole groups of its images are held out.

    Raises:
        Failure: as above.
    """
    files = [list(class_folders.image_files(layout.training / name)) for name in layout.classes]
    labels = np.repeat(np.arange(len(files)), [len(of_class) for of_class in files])
    named = group_names(
        (path.relative_to(layout.training).as_posix() for of_class in files for path in of_class), pattern
    )
    return int((~validation_mask_by_group(labels, named, batches.num_validation_samples(len(labels), fraction))).sum())


def describe_split(groups: Sequence[str], chosen: SampleMask, asked: int) -> str:
    """What came out, for the banner."""
    held = {group for group, is_held in zip(groups, chosen, strict=True) if is_held}
    images = f"{int(chosen.sum()):,} of {len(chosen):,} images"
    return (
        f"val: {images} in {len(held):,} of {len(set(groups)):,} groups (data.val_fraction asks for {asked:,} images)"
    )


def refuse_leak(training: Sequence[str], validation: Sequence[str]) -> None:
    """With folders of their own for both sides.

    Raises:
        Failure: DATA for groups that are on both.
    """
    both = sorted(set(training) & set(validation))
    if both:
        more = f" and {len(both) - MAX_LISTED_GROUPS:,} more" if len(both) > MAX_LISTED_GROUPS else ""
        what = f"{len(both):,} groups are on both sides: trained on, and held out to measure with"
        fix = "move all files of a group to one side, or correct data.group"
        raise Failure(what, found=", ".join(both[:MAX_LISTED_GROUPS]) + more, fix=fix, code=ExitCode.DATA)


LabelCounts = tuple[Labels, Labels]  # the labels in a group, and how many of each


def _count_labels_by_group(labels: Labels, member: npt.NDArray[np.int64], groups: int) -> list[LabelCounts]:
    order = np.argsort(member, kind="stable")
    parts = np.split(labels[order], np.cumsum(np.bincount(member, minlength=groups))[:-1])
    return [np.unique(part, return_counts=True) for part in parts]


def _choose_groups(tables: Sequence[LabelCounts], sizes: Labels, share: float) -> SampleMask:
    """Sum over classes of (held out - wanted)^2 / size, made smaller group by group until nothing helps.

    In the first round only groups for which there is room; a group with the last images of a class stays in training.
    """
    held, over = np.zeros(len(tables), bool), -share * sizes.astype(np.float64)  # over: held out - wanted
    most = (1 - share) * sizes - 0.5
    for turn in range(MAX_ROUNDS):
        changed = False
        for group in rng.permutation(len(tables), rng.SPLIT):
            label, number = tables[group]
            change = -number if held[group] else number
            better = ((change * (2 * over[label] + change)) / sizes[label]).sum() < -1e-9
            room = turn > 0 or over.sum() + change.sum() < 0.5
            if better and room and (held[group] or (over[label] + change < most[label]).all()):
                over[label] += change
                held[group], changed = not held[group], True
        if turn and not changed:
            break
    return held


def _least_harmful_group(tables: Sequence[LabelCounts], sizes: Labels, among: Iterable[int]) -> int:
    """The group that takes the smallest share of any class: where even that is more than was asked for."""
    return min(among, key=lambda group: float((tables[group][1] / sizes[tables[group][0]]).max()))


def _unsplittable_failure(what: str, found: str) -> Failure:
    fix = "choose a data.group that makes smaller groups, or give the held-out images a folder of their own (val)"
    return Failure(what, found=found, fix=fix, code=ExitCode.DATA)
