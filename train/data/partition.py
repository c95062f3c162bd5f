"""Chooses which samples are for validation and for the test, by class and by group.

No group (a video, a patient) is in two splits; `data.group` is a pattern that finds the group in a file's path.
The choice is not keyed by run.seed: runs with different seeds are evaluated on the same images. This module does not
import torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from entrypoint import ExitCode, Failure, list_some
from train import rng
from train.config import batches, schema
from train.config.batches import SplitCounts
from train.config.schema import DataConfig
from train.names import normalize_name

Labels = npt.NDArray[np.int64]
SampleMask = npt.NDArray[np.bool_]
MAX_ROUNDS: Final = 8  # passes over all groups; two or three are enough in practice


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Which samples are for validation and which for the test, bool [n]; the others are trained on.

    notes: about groups, for the banner.
    """

    validation: SampleMask
    test: SampleMask
    notes: tuple[str, ...] = ()

    @property
    def training(self) -> SampleMask:
        return ~(self.validation | self.test)


def partition_samples(
    labels: Labels, data: DataConfig, *, groups: Sequence[str] | None = None, has_validation: bool = False
) -> Partition:
    """Split by data.val_fraction or data.fold, and data.test_fraction: the same share of every class in each split.

    The test split is the same for every fold. Without groups the validation split of data.val_fraction does not depend
    on data.test_fraction.

    Args:
        groups: of each sample; no group is in two splits. None: each sample by itself.
        has_validation: the data has validation samples of its own, so that none of these are taken.

    Raises:
        Failure: DATA for groups that cannot be kept in one split.
    """
    if groups is not None:
        return _partition_by_group(labels, data, groups, has_validation=has_validation)
    counts = batches.count_splits(len(labels), data, has_validation=has_validation)
    if not counts.validation and not counts.test:  # sorting millions takes seconds
        return Partition(validation=np.zeros(len(labels), bool), test=np.zeros(len(labels), bool))
    validation, test = np.zeros(len(labels), bool), np.zeros(len(labels), bool)
    for mask, chosen in zip((validation, test), split_order(order_by_share(labels), data, counts), strict=True):
        mask[chosen] = True
    return Partition(validation=validation, test=test)


def split_order(
    order: npt.NDArray[Any], data: DataConfig, counts: SplitCounts
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The parts of `order_by_share` that are for validation and for the test."""
    rest = order[: len(order) - counts.test]
    first = batches.fold_bounds(len(rest), data.fold)[0] if data.fold is not None else 0
    return rest[first : first + counts.validation], order[len(rest) :]


def order_by_share(labels: Labels) -> npt.NDArray[np.int64]:
    """All samples in an order of which every part holds about the same share of each class."""
    order = rng.permutation(len(labels), rng.SPLIT)
    _, numbers, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    by_class = order[np.argsort(numbers[order], kind="stable")]
    of_class = numbers[by_class]
    share = np.empty(len(labels))
    share[by_class] = (np.arange(len(labels)) - (np.cumsum(sizes) - sizes)[of_class] + 0.5) / sizes[of_class]
    return np.argsort(share, kind="stable")


def _partition_by_group(labels: Labels, data: DataConfig, groups: Sequence[str], *, has_validation: bool) -> Partition:
    """The test groups are chosen first, from all samples, so that they are the same for every fold."""
    counts = batches.count_splits(len(labels), data, has_validation=has_validation)
    test = validation_mask_by_group(labels, groups, counts.test)
    rest = np.flatnonzero(~test)
    names = [groups[sample] for sample in rest.tolist()]
    if has_validation:
        chosen = np.zeros(len(rest), bool)
    elif data.fold is not None:
        number, parts = schema.parse_fold(data.fold) or (1, 1)
        chosen = fold_by_group(labels[rest], names, parts) == number - 1
    else:
        chosen = validation_mask_by_group(labels[rest], names, counts.validation)
    validation = np.zeros(len(labels), bool)
    validation[rest[chosen]] = True
    notes = []
    if not has_validation:
        key = "data.fold" if data.fold is not None else "data.val_fraction"
        notes.append(describe_split(groups, validation, counts.validation, name="val", key=key))
    if counts.test:
        notes.append(describe_split(groups, test, counts.test, name="test", key="data.test_fraction"))
    return Partition(validation=validation, test=test, notes=tuple(notes))


def group_names(paths: Iterable[str], pattern: str) -> list[str]:
    """Each path's group: what the groups of the pattern match, or the whole match if it has no groups.

    Args:
        paths: relative to the folder of the class folders, with `/`: `CLASS/video_1/0001.jpg`.

    Raises:
        Failure: DATA if the pattern is not found in a path, with the first such path and their number.
    """
    search = re.compile(normalize_name(pattern)).search
    names, unmatched = [], []
    for path in paths:
        match = search(normalize_name(path))
        if match is None:
            unmatched.append(path)
        else:
            names.append(", ".join(part or "" for part in match.groups()) if match.re.groups else match[0])
    if unmatched:
        raise Failure(
            f"data.group is not found in the paths of {len(unmatched):,} of {len(names) + len(unmatched):,} images",
            found=f"{unmatched[0]}" + (", and others" if len(unmatched) > 1 else ""),
            expected=f"a match of {pattern!r} in each path below the folder of class folders",
            fix="correct data.group, or rename or move these files; data.group=null splits by single images",
            code=ExitCode.DATA,
        )
    return names


def validation_mask_by_group(labels: Labels, groups: Sequence[str], count: int) -> SampleMask:
    """Which samples are for validation, bool [n]: about `count`, about the same share of every class, whole groups.

    The split depends on the names of the groups, not on run.seed or the order of the files. It begins with an empty
    validation split, and moves a group to the other split if that brings the classes nearer to their shares.

    Raises:
        Failure: DATA for fewer than two groups, and if every split leaves a class without a training image.
    """
    if count == 0:
        return np.zeros(len(labels), bool)
    unique, member = np.unique(np.array(groups), return_inverse=True)
    if len(unique) < 2:
        raise _unsplittable_failure(
            "all images are one group: they cannot be split", f"{len(labels)} images of {unique[0]}"
        )
    tables = _count_labels_by_group(labels, member, len(unique))
    sizes = np.bincount(labels)
    is_validation_group = _choose_groups(tables, sizes, count / len(labels))
    if not is_validation_group.any():  # each is larger than what is asked for: the one with the least share of a class
        shares = [float((number / sizes[label]).max()) for label, number in tables]
        is_validation_group[int(np.argmin(shares))] = True
    is_validation: SampleMask = is_validation_group[member]
    missing = np.setdiff1d(labels, labels[~is_validation])
    if len(missing):
        listed = list_some(unique[is_validation_group].tolist())
        raise _unsplittable_failure(
            f"no image of {len(missing)} classes would be trained on", f"validation groups: {listed}"
        )
    return is_validation


def fold_by_group(labels: Labels, groups: Sequence[str], folds: int) -> Labels:
    """The fold of each sample, int64 [n]: whole groups, about the same number of every class in each fold.

    The largest groups are placed first, each into the fold whose classes come nearest to their shares. The folds depend
    on the names of the groups, not on run.seed or the order of the files.

    Raises:
        Failure: DATA for fewer groups than folds, and if all images of a class would be in one fold.
    """
    unique, member = np.unique(np.array(groups), return_inverse=True)
    if len(unique) < folds:
        what = f"there are fewer groups than the {folds} folds of data.fold"
        raise _unsplittable_failure(what, f"{len(unique)} groups in {len(labels):,} images")
    tables = _count_labels_by_group(labels, member, len(unique))
    sizes = np.bincount(labels)
    excess = np.repeat(-sizes[None].astype(np.float64) / folds, folds, axis=0)  # of each fold: images - its share
    fold_of_group = np.empty(len(unique), np.int64)
    mixed = rng.permutation(len(unique), rng.SPLIT)
    num_images = np.bincount(member, minlength=len(unique))
    for group in mixed[np.argsort(-num_images[mixed], kind="stable")]:
        label, number = tables[group]
        fold = int(((number * (2 * excess[:, label] + number)) / sizes[label]).sum(axis=1).argmin())
        excess[fold, label] += number
        fold_of_group[group] = fold
    folded: Labels = fold_of_group[member]
    for fold in range(folds):
        missing = np.setdiff1d(labels, labels[folded != fold])
        if len(missing) or not (folded == fold).any():
            what = f"no image of {len(missing)} classes would be trained on in fold {fold + 1}/{folds}"
            raise _unsplittable_failure(what, f"{len(unique)} groups in {len(labels):,} images")
    return folded


def describe_split(
    groups: Sequence[str], is_chosen: SampleMask, requested: int, *, name: str = "val", key: str = "data.val_fraction"
) -> str:
    """The size of a split, for the banner. key: the setting that asks for `requested` images."""
    chosen_groups = {group for group, chosen in zip(groups, is_chosen, strict=True) if chosen}
    images = f"{int(is_chosen.sum()):,} of {len(is_chosen):,} images"
    groups_text = f"{len(chosen_groups):,} of {len(set(groups)):,} groups"
    return f"{name}: {images} in {groups_text} ({key} asks for {requested:,} images)"


def refuse_leaks(groups: Mapping[str, Sequence[str]]) -> None:
    """Refuse groups that are in two splits, if each split has its own files. groups: of the files of each split.

    Raises:
        Failure: DATA, naming these groups.
    """
    for first, second in combinations(groups, 2):
        both = sorted(set(groups[first]) & set(groups[second]))
        if both:
            what = f"{len(both):,} groups are in both splits, {first} and {second}"
            fix = "move all files of a group to one split, or correct data.group"
            raise Failure(what, found=list_some(both), fix=fix, code=ExitCode.DATA)


LabelCounts = tuple[Labels, Labels]  # the labels in a group, and how many of each


def _count_labels_by_group(labels: Labels, member: npt.NDArray[np.int64], groups: int) -> list[LabelCounts]:
    order = np.argsort(member, kind="stable")
    parts = np.split(labels[order], np.cumsum(np.bincount(member, minlength=groups))[:-1])
    return [np.unique(part, return_counts=True) for part in parts]


def _choose_groups(tables: Sequence[LabelCounts], sizes: Labels, share: float) -> SampleMask:
    """Minimize the sum over classes of (validation - requested)^2 / size, moving one group at a time.

    The first round only adds groups that fit. A group with the last training images of a class stays in training.
    """
    in_validation, excess = (
        np.zeros(len(tables), bool),
        -share * sizes.astype(np.float64),
    )  # excess: validation - requested
    max_excess = (1 - share) * sizes - 0.5
    for turn in range(MAX_ROUNDS):
        changed = False
        for group in rng.permutation(len(tables), rng.SPLIT):
            label, number = tables[group]
            change = -number if in_validation[group] else number
            better = ((change * (2 * excess[label] + change)) / sizes[label]).sum() < -1e-9
            room = turn > 0 or excess.sum() + change.sum() < 0.5
            if better and room and (in_validation[group] or (excess[label] + change < max_excess[label]).all()):
                excess[label] += change
                in_validation[group], changed = not in_validation[group], True
        if turn and not changed:
            break
    return in_validation


def _unsplittable_failure(what: str, actual: str) -> Failure:
    fix = "choose a data.group that makes smaller groups, or move the validation images into a folder val"
    return Failure(what, found=actual, fix=fix, code=ExitCode.DATA)
