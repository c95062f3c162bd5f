"""From labels to which samples are held out: the same share of every class, the same samples in every run."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from train import keyed


def held_out_samples(labels: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.bool_]:
    """Which samples are set aside, bool [n]: `count` of them, the same share of every class.

    Not keyed by run.seed: runs with different seeds are measured on the same images.
    """
    order = keyed.permutation(len(labels), keyed.SPLIT)
    share = np.empty(len(labels))
    for label in np.unique(labels):
        members = order[labels[order] == label]
        share[members] = (np.arange(len(members)) + 0.5) / len(members)
    chosen = np.zeros(len(labels), bool)
    chosen[np.argsort(share, kind="stable")[:count]] = True
    return chosen
