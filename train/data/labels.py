"""From labels as they were stored to int64 numbers of classes, checked, and to how many classes there are."""

from __future__ import annotations

from itertools import islice

import torch
from torch import Tensor

from entrypoint import ExitCode, Failure


def checked_labels(labels: Tensor, name: str) -> Tensor:
    """int64 [N], from integers of any width; [N, 1] is taken too.

    Raises:
        Failure: DATA.
    """
    flat = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if flat.ndim != 1:
        fix = "save labels.argmax(1)" if flat.ndim == 2 else "save one label for each sample"
        raise wrong(name, "labels have other axes than samples", f"labels {list(labels.shape)}", "[N]", fix)
    if flat.is_floating_point() or flat.is_complex() or flat.dtype == torch.bool:
        raise wrong(name, "labels are not integers", kind(labels), "integers", "save labels.astype('int64')")
    flat = flat.to(torch.int64)
    if len(flat) and int(flat.min()) < 0:
        raise wrong(name, "a label is negative", f"{int(flat.min())}", "labels from 0 on", "number the classes from 0")
    return flat


def count_classes(name: str, claimed: int | None, training: Tensor, held_out: Tensor | None) -> int:
    """How many classes these labels are of: `claimed`, or, where nobody says it, as many as there are labels.

    A class without a training sample is taken for a mistake (labels that begin with 1), unless the number is claimed.

    Raises:
        Failure: DATA.
    """
    found = max(int(labels.max()) for labels in (training, held_out) if labels is not None and len(labels)) + 1
    if claimed is not None and found > claimed:
        fix = f"set data.classes to {found}, or leave it out"
        raise wrong(name, "a label is not below the number of classes", f"label {found - 1}", f"below {claimed}", fix)
    present = set(training.tolist())
    if claimed is None and len(present) < found:
        empty = islice((label for label in range(found) if label not in present), 5)
        what = f"{found - len(present)} of {found} classes have no training sample"
        fix = f"number the classes from 0 without gaps, or set data.classes to {found} if this is meant"
        raise wrong(name, what, f"no label {', '.join(map(str, empty))}", f"0..{found - 1}", fix)
    if (claimed or found) < 2:
        raise wrong(name, "there is only one class", "label 0 alone", "two classes or more")
    return claimed or found


def wrong(name: str, what: str, found: str, expected: str = "one of each", fix: str = "write the file anew") -> Failure:
    """Data of the user's that cannot be trained on. `name`: of its file or factory."""
    return Failure(what, found=f"{name}: {found}", expected=expected, fix=fix, code=ExitCode.DATA)


def kind(tensor: Tensor) -> str:
    """Its type and axes, in words."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
