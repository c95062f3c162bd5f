"""Computes the weights of optim.class_weights, and describes how many samples each class or label has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal

import torch
from torch import Tensor

from entrypoint import ExitCode, Failure, list_some
from train.config.schema import OptimConfig
from train.data.statistics import ClassCounts
from train.files import one_line
from train.names import describe_look_alikes, nearest_name, normalize_name

MAX_TABLE_CLASSES: Final = 20  # of more classes the table shows NUM_EXTREME_CLASSES at each end
NUM_EXTREME_CLASSES: Final = 5

ClassWeights = Literal["none", "balanced"] | list[float] | dict[str, float]


def class_weights(optim: OptimConfig, counts: Sequence[int], classes: Sequence[str] = ()) -> Tensor | None:
    """One weight for each class, float32 [classes]; None if all are 1.

    They are 1 on average over the training samples.

    Args:
        counts: training samples of each class.
        classes: their names.

    Raises:
        Failure: USAGE for a list with another length, other names, or if no sample gets a weight; DATA for a class
            without samples.
    """
    if optim.class_weights == "none":
        return None
    if isinstance(optim.class_weights, str):
        raw = balanced_class_weights(counts)
    else:
        raw = weights_in_order(optim.class_weights, classes)
    if len(raw) != len(counts):
        raise Failure(
            "optim.class_weights has another length than there are classes",
            found=f"{len(raw)} weights",
            expected=f"{len(counts)} classes",
            fix=f"give {len(counts)} numbers in the order of the classes or by their names, or write balanced",
            code=ExitCode.USAGE,
        )
    weights, samples = torch.tensor(raw, dtype=torch.float64), torch.tensor(counts, dtype=torch.float64)
    normalized = (weights * samples.sum() / (weights * samples).sum()).float()
    if not normalized.isfinite().all():
        raise Failure(
            "optim.class_weights gives no weight to what is trained on",
            found=f"weights {raw!s:.200}, training samples {counts!s:.200}",
            fix="give a weight above 0 to a class that has training samples",
            code=ExitCode.USAGE,
        )
    return normalized


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
        fixes, left = list[str](), [*missing]
        for name in unknown[:MAX_TABLE_CLASSES]:  # a search for each of thousands would take minutes
            close = nearest_name(name, left)
            fixes.append(
                f"write {one_line(close)} instead of {one_line(name)}" if close else f"remove {one_line(name)}"
            )
            left = [other for other in left if other != close]
        fixes += [f"give {_list_names(left)} a number too"] if left else []
        raise Failure(
            "optim.class_weights has other names than the classes",
            found=f"not given: {_list_names(missing)}; no classes: {_list_names(unknown)}"
            + describe_look_alikes((*unknown, *classes), "; "),
            expected=f"one number for each of {_list_names(classes)}",
            fix="; ".join(fixes),
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
    pairs = zip(classes, configured_weights(weights, classes), strict=True)
    shown = [f"{name}: {weight:g}" for name, weight in pairs if weight is not None]
    return _list_names(shown) if len(shown) == len(classes) else None


def configured_weights(weights: ClassWeights, classes: Sequence[str]) -> Sequence[float | None]:
    """The number that the config has for each class; None where there is none."""
    if isinstance(weights, dict):
        return [*map(_in_one_form(weights).get, classes)]
    return weights if isinstance(weights, list) and len(weights) == len(classes) else [None] * len(classes)


def format_balance_table(
    names: Sequence[str],
    training: Iterable[int],
    validation: Iterable[int],
    weights: Sequence[float | None] | None = None,
    class_weights: ClassWeights | None = None,
) -> list[str]:
    """A table of the samples of each class or label, the largest first; of many only the first and the last.

    weights: of each class. class_weights: optim.class_weights; None, as of weights, for labels, which have none.
    """
    heading = {"none": "weight, if optim.class_weights=balanced", "balanced": "weight (balanced)", None: ""}
    title = "weight (given)" if isinstance(class_weights, list | dict) else heading[class_weights]
    rows = sorted(
        zip(map(one_line, names), training, validation, weights or [None] * len(names), strict=True),
        key=lambda row: -row[1],
    )
    listed = rows if len(rows) <= MAX_TABLE_CLASSES else [*rows[:NUM_EXTREME_CLASSES], *rows[-NUM_EXTREME_CLASSES:]]
    width = max(len("class"), *(min(len(name), 40) for name, *_ in listed))
    table = [f"  {'class':<{width}} {'training':>10} {'validation':>10}  {title}"]
    table += [
        f"  {name[:40]:<{width}} {count:>10,} {of_validation:>10,}  {'-' if weight is None else f'{weight:.4g}'}"
        for name, count, of_validation, weight in listed
    ]
    if class_weights is None:
        table = [line.removesuffix("-").rstrip() for line in table]
    if len(listed) < len(rows):
        table.insert(1 + NUM_EXTREME_CLASSES, f"  ... and {len(rows) - len(listed):,} classes between these")
    return table
