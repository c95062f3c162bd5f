"""Counts the samples of each class, for data.sampling, and computes a fingerprint of the data.

The fingerprint is compared between the ranks, and a resumed run compares it with its checkpoint's.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import reduce
from typing import Any, Final

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
from train.tasks import CLASSIFICATION, task_fact

ClassCounts = npt.NDArray[np.int64]


def class_counts(labels: Tensor, classes: int) -> ClassCounts:
    """Samples of each class, int64 [classes], from labels, integers [n]."""
    counts = np.zeros(classes, np.int64)
    for part in torch.split(labels, LABELS_AT_A_TIME):
        counts += np.bincount(part.numpy(), minlength=classes)
    return counts


def labels_to_balance(data: DataConfig, splits: DataSplits) -> npt.NDArray[np.int64] | None:
    """The labels of the training samples with data.sampling: balanced; otherwise None.

    Raises:
        Failure: USAGE for labels that are not one class for each sample.
    """
    if data.sampling == "uniform":
        return None
    labels = splits.training.labels
    if splits.task != CLASSIFICATION:
        raise Failure(
            "data.sampling: balanced needs one class for each image",
            found=f"labels of the form {list(labels.shape)}, {labels.dtype}",
            fix="leave data.sampling out",
            code=ExitCode.USAGE,
        )
    array: npt.NDArray[np.int64] = labels.long().numpy()
    return array


def describe_balanced_sampling(training: Tensor, classes: Sequence[str]) -> str:
    """For the banner: how often an epoch with data.sampling: balanced draws the images of the extreme classes."""
    counts = class_counts(training, len(classes))
    present = np.flatnonzero(counts)
    each = len(training) / len(present)
    extremes = (int(present[counts[present].argmin()]), int(present[counts[present].argmax()]))
    draws = [f"an image of {one_line(classes[label])} {each / int(counts[label]):.2g} times" for label in extremes]
    return f"{'sampling':<14} balanced: an epoch draws each class {each:,.0f} times, {' and '.join(draws)}"


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
    target = {} if splits.target is None else {resume_rules.TARGET_KEY: asdict(splits.target)}
    return {"classes": list(splits.classes), **sizes, **task_fact(splits.task), **target, "digests": digests}


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
            raise Failure(
                "the ranks see different data",
                found=f"{noun}: {list_some(counts)}{': others, or in another order' if alike else ''}",
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
