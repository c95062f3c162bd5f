"""Reports the class balance, computes class weights, and computes a fingerprint of the data.

The fingerprint is compared between the ranks, and a resumed run compares it with its checkpoint's.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from entrypoint import ExitCode, Failure, list_some
from train.config import resume_rules
from train.config.schema import DataConfig
from train.data import image_lists, registry
from train.data.image_lists import PackedPaths
from train.data.splits import LABELS_AT_A_TIME, DataSplits, SampleSource
from train.files import one_line
from train.names import describe_look_alikes, nearest_name, normalize_name
from train.tasks import CLASSIFICATION

MAX_EVEN_RATIO: Final = 1.5  # largest / smallest class; beyond it a table follows
MAX_TABLE_CLASSES: Final = 20  # of more classes the table shows NUM_EXTREME_CLASSES at each end
NUM_EXTREME_CLASSES: Final = 5

ClassCounts = npt.NDArray[np.int64]
ClassWeights = Literal["none", "balanced"] | list[float] | dict[str, float]


def class_counts(labels: Tensor, classes: int) -> ClassCounts:
    """Samples of each class, int64 [classes], from labels, integers [n]."""
    counts = np.zeros(classes, np.int64)
    for part in torch.split(labels, LABELS_AT_A_TIME):
        counts += np.bincount(part.numpy(), minlength=classes)
    return counts


def balanced_class_weights(counted: Sequence[int] | ClassCounts, names: Sequence[str] = ()) -> list[float]:
    """The weights of `optim.class_weights: balanced`: samples / (classes x samples of the class).

    Their mean over all samples is 1, so that the loss keeps its scale.

    Raises:
        Failure: DATA for classes without a sample.
    """
    empty = [str(names[label] if names else label) for label, count in enumerate(counted) if count == 0]
    if empty or len(counted) == 0:
        raise Failure(
            "optim.class_weights: balanced needs samples of every class to train on",
            found=f"none of {list_some(empty, NUM_EXTREME_CLASSES) or 'any class'}",
            fix="give samples of them, remove these classes, or set optim.class_weights to one number for each class",
            code=ExitCode.DATA,
        )
    total = sum(int(count) for count in counted)
    return [total / (len(counted) * int(count)) for count in counted]


def weights_in_order(weights: list[float] | dict[str, float], classes: Sequence[str]) -> list[float]:
    """The numbers of `optim.class_weights` in the order of the classes.

    Raises:
        Failure: USAGE for names that are not those of the classes.
    """
    if isinstance(weights, list):
        return weights
    weights = _in_one_form(weights)
    missing, unknown = [name for name in classes if name not in weights], sorted(weights.keys() - {*classes})
    if missing or unknown:
        close = nearest_name(unknown[0], missing) if unknown else None
        raise Failure(
            "optim.class_weights has other names than the classes",
            found=f"not given: {_list_names(missing)}; no classes: {_list_names(unknown)}"
            + describe_look_alikes((*unknown, *classes), "; "),
            expected=f"one number for each of {_list_names(classes)}",
            fix=f"write {close} instead of {unknown[0]}" if close else "give each class a number, by its name",
            code=ExitCode.USAGE,
        )
    return [weights[name] for name in classes]


def _in_one_form(weights: dict[str, float]) -> dict[str, float]:
    """The weights by their names in NFC, as those of classes are; unchanged if one name has two forms in it."""
    normalized = {normalize_name(name): weight for name, weight in weights.items()}
    return normalized if len(normalized) == len(weights) else weights


def _list_names(names: Sequence[str]) -> str:
    return list_some(names, MAX_TABLE_CLASSES, one_line) or "none"


def describe_class_weights(weights: ClassWeights, classes: Sequence[str]) -> str | None:
    """Each class beside its weight, in the order of the classes; None if not each of them is given a number."""
    pairs = zip(classes, _configured_weights(weights, classes), strict=True)
    shown = [f"{name}: {weight:g}" for name, weight in pairs if weight is not None]
    return _list_names(shown) if len(shown) == len(classes) else None


def _configured_weights(weights: ClassWeights, classes: Sequence[str]) -> Sequence[float | None]:
    """The number that the config has for each class; None where there is none."""
    if isinstance(weights, dict):
        return [*map(_in_one_form(weights).get, classes)]
    return weights if isinstance(weights, list) and len(weights) == len(classes) else [None] * len(classes)


def describe_class_balance(
    training: Tensor, validation: Tensor, classes: Sequence[str], class_weights: ClassWeights
) -> list[str]:
    """For the banner: one line if the classes have similar sizes, else also a short table.

    Args:
        training, validation: labels, int64 [n]; validation may be empty.
        class_weights: optim.class_weights.
    """
    rows = _class_rows(
        class_counts(training, len(classes)), class_counts(validation, len(classes)), classes, class_weights
    )
    least, most = min(row.training for row in rows), max(row.training for row in rows)
    first = f"{'classes':<14} {_format_range([row.training for row in rows])} samples of each for training"
    if len(validation):
        first += f", {_format_range([row.validation for row in rows])} for validation"
    if most <= MAX_EVEN_RATIO * least:
        listed = describe_class_weights(class_weights, classes)
        return [first] if listed is None else [first, f"{'class weights':<14} {listed}"]
    return [f"{first}; {_describe_imbalance(least, most)}", *_format_table(rows, class_weights)]


def describe_label_balance(
    training: Tensor, validation: Tensor, classes: Sequence[str], class_weights: ClassWeights
) -> list[str]:
    """For the banner: a table of how many samples have each label. Labels: 0 or 1, float32 [n, classes]."""
    rows = [
        _ClassRow(name=one_line(name), training=int(have), validation=int(have_validation), weight=None)
        for name, have, have_validation in zip(
            classes, training.sum(dim=0).tolist(), validation.sum(dim=0).tolist(), strict=True
        )
    ]
    rows.sort(key=lambda row: -row.training)
    none = int((training.sum(dim=1) == 0).sum())
    first = f"{'labels':<14} {training.sum(dim=1).mean().item():.3g} for each training image, none for {none:,}"
    return [first, *_format_table(rows, None)]


def describe_numbers(
    training: Tensor, validation: Tensor, classes: Sequence[str], class_weights: ClassWeights
) -> list[str]:
    """For the banner: the range of the numbers, float32 [n]."""
    numbers = training.double()
    span = f"{numbers.min().item():.4g} to {numbers.max().item():.4g}"
    spread = f"mean {numbers.mean().item():.4g}, standard deviation {numbers.std(correction=0).item():.4g}"
    return [f"{'numbers':<14} {one_line(classes[0])}: {span}, {spread} (training)"]


def labels_to_balance(data: DataConfig, splits: DataSplits) -> npt.NDArray[np.int64] | None:
    """The labels of the training samples with data.sampling: balanced; otherwise None.

    Raises:
        Failure: as `refuse_unbalanced_labels`.
    """
    refuse_unbalanced_labels(data, splits)
    if data.sampling == "uniform":
        return None
    array: npt.NDArray[np.int64] = splits.training.labels.long().numpy()
    return array


def refuse_unbalanced_labels(data: DataConfig, splits: DataSplits) -> None:
    """Refuse data.sampling: balanced for labels that are not one class for each sample.

    Raises:
        Failure: USAGE.
    """
    labels = splits.training.labels
    if data.sampling != "uniform" and (labels.ndim != 1 or labels.is_floating_point()):
        raise Failure(
            "data.sampling: balanced needs one class for each image",
            found=f"labels of the form {list(labels.shape)}, {labels.dtype}",
            fix="leave data.sampling out",
            code=ExitCode.USAGE,
        )


def describe_balanced_sampling(training: Tensor, classes: Sequence[str]) -> str:
    """For the banner: how often an epoch with data.sampling: balanced draws the images of the extreme classes."""
    counts = class_counts(training, len(classes))
    present = np.flatnonzero(counts)
    each = len(training) / len(present)
    extremes = (int(present[counts[present].argmin()]), int(present[counts[present].argmax()]))
    draws = [f"an image of {one_line(classes[label])} {each / int(counts[label]):.2g} times" for label in extremes]
    return f"{'sampling':<14} balanced: an epoch draws each class {each:,.0f} times, {' and '.join(draws)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClassRow:
    name: str
    training: int
    validation: int
    weight: float | None


def _class_rows(
    training: ClassCounts, validation: ClassCounts, classes: Sequence[str], class_weights: ClassWeights
) -> list[_ClassRow]:
    """The rows of the table, the largest class first, with the configured weights or the balanced ones."""
    weights = _configured_weights(class_weights, classes)
    if isinstance(class_weights, str) and training.all():
        weights = balanced_class_weights(training)
    rows = [
        _ClassRow(
            name=one_line(name), training=int(training[label]), validation=int(validation[label]), weight=weights[label]
        )
        for label, name in enumerate(classes)
    ]
    return sorted(rows, key=lambda row: -row.training)


def _format_table(rows: Sequence[_ClassRow], class_weights: ClassWeights | None) -> list[str]:
    """class_weights: None where classes have no weights."""
    heading = {"none": "weight, if optim.class_weights=balanced", "balanced": "weight (balanced)", None: ""}
    title = "weight (given)" if isinstance(class_weights, list | dict) else heading[class_weights]
    listed = (
        list(rows) if len(rows) <= MAX_TABLE_CLASSES else [*rows[:NUM_EXTREME_CLASSES], *rows[-NUM_EXTREME_CLASSES:]]
    )
    width = max(len("class"), *(min(len(row.name), 40) for row in listed))
    table = [f"  {'class':<{width}} {'training':>10} {'validation':>10}  {title}"]
    table += [_format_row(row, width) for row in listed]
    if class_weights is None:
        table = [line.removesuffix("-").rstrip() for line in table]
    if len(listed) < len(rows):
        table.insert(1 + NUM_EXTREME_CLASSES, f"  ... and {len(rows) - len(listed):,} classes between these")
    return table


def _format_row(row: _ClassRow, width: int) -> str:
    weight = "-" if row.weight is None else f"{row.weight:.4g}"
    return f"  {row.name[:40]:<{width}} {row.training:>10,} {row.validation:>10,}  {weight}"


def _format_range(numbers: Sequence[int]) -> str:
    least, most = min(numbers), max(numbers)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _describe_imbalance(least: int, most: int) -> str:
    if least == 0:
        return "some classes have no training sample"
    return f"the largest is {most / least:.3g} times the smallest"


DIFFERENT_CONTENT: Final = ": others, or in another order"
DIFFERENT_DATA_FIXES: Final = {
    True: "let it give every process the same: sort what os.listdir, glob and set() give, and draw from a generator "
    "with a seed, as numpy.random.default_rng(0)",
    False: "give all nodes the same files: put data.root where all of them see it, or copy it again to each",
}


def data_fingerprint(splits: DataSplits, root: str) -> dict[str, Any]:
    """Classes, the number of samples in each split, and their digests, as checkpoints store them.

    A digest covers the labels in their order; of files also the paths below their folder (below `root` in a user's own
    list), so that the folder may move; of arrays also a few samples. It does not cover the content of all samples:
    reading them takes as long as an epoch. The digest of the order covers in which shard files the images lie, and that
    of the weights how much each counts. The task and the scale of numbers are there only where they are not those
    of a classification. The digest `all` does not depend on how files are split.
    """
    sources = {"training": splits.training, "held_out": splits.validation}
    if splits.test is not None:
        sources[resume_rules.TEST_KEY] = splits.test
    digests = {name: source.digest(root) for name, source in sources.items()}
    if every := _undivided_paths([*sources.values()]):
        digests["all"] = _sha256(every.pieces())
    if (runs := splits.training.runs()) is not None:
        layout = (np.ascontiguousarray(each, "<i8").data for each in (runs.starts, runs.first_of_shard))
        digests[resume_rules.ORDER_KEY] = _sha256(layout)
    weights = [] if splits.weights is None else [splits.weights.numpy().astype("<f4").data]
    digests[resume_rules.WEIGHTS_KEY] = _sha256(weights)
    sizes = {name: len(source.labels) for name, source in sources.items()}
    task: dict[str, Any] = {} if splits.task == CLASSIFICATION else {"task": splits.task}
    task |= {} if splits.target is None else {resume_rules.TARGET_KEY: asdict(splits.target)}
    return {"classes": list(splits.classes), **sizes, **task, "digests": digests}


def refuse_different_data(fingerprint: Mapping[str, Any], name: str, all_gather: Callable[[Any], list[Any]]) -> None:
    """Compare the data of all ranks: each looks up a sample by its number in its own list. All ranks must call this.

    Args:
        fingerprint: this rank's `data_fingerprint`. name: data.name. all_gather: returns every rank's value, in the
        order of the ranks.

    Raises:
        Failure: DATA, naming the ranks that differ from rank 0, and in what.
    """
    classes_digest = _sha256(repr(class_name).encode() for class_name in fingerprint["classes"])
    facts = {"classes": (len(fingerprint["classes"]), classes_digest)}
    names = resume_rules.SPLIT_NAMES | {resume_rules.TEST_KEY: "test"}
    digests = fingerprint[resume_rules.DIGESTS_KEY]
    facts |= {f"{name} samples": (fingerprint.get(key, 0), digests.get(key)) for key, name in names.items()}
    count = fingerprint["training"]
    facts |= {f"{key} of training samples": (count, digests.get(key)) for key in resume_rules.TRAINING_DIGESTS}
    gathered = all_gather((socket.gethostname(), facts))
    for noun, first in gathered[0][1].items():
        if others := [rank for rank, (_, rank_facts) in enumerate(gathered) if rank_facts[noun] != first]:
            counts = [f"{gathered[rank][1][noun][0]:,} on rank {rank} ({gathered[rank][0]})" for rank in (0, *others)]
            alike = all(gathered[rank][1][noun][0] == first[0] for rank in others)
            raise _different_data_failure(name, f"{noun}: {list_some(counts)}{DIFFERENT_CONTENT if alike else ''}")


def _different_data_failure(name: str, actual: str) -> Failure:
    return Failure(
        "the ranks see different data",
        found=actual,
        expected="the same classes and the same samples in the same order on all ranks",
        fix=DIFFERENT_DATA_FIXES[registry.find_source(name).origin == "factory"],
        code=ExitCode.DATA,
    )


def _undivided_paths(sources: Sequence[SampleSource]) -> PackedPaths | None:
    """The list that was split into the first two sources, in its order; None if these have separate lists.

    A test split of the same list belongs to it.
    """
    lists = [files.paths for source in sources if (files := source.image_files()) is not None]
    packed = [paths for paths in lists if isinstance(paths, PackedPaths)]
    of_one_list = [paths for paths in packed if paths.letters is packed[0].letters]
    if len(packed) < len(sources) or packed[0].letters is not packed[1].letters:
        return None
    every = reduce(image_lists.concatenate_paths, of_one_list)
    return every.part(np.argsort(every.starts))


def _sha256(pieces: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()[:32]
