"""Measures how well a model's confidence agrees with its accuracy."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from train.report.saved_evaluation import Calibration, CalibrationBin

NUM_BINS: Final = 15


def measure_calibration(confidences: npt.NDArray[Any], correct: npt.NDArray[np.bool_]) -> Calibration:
    """The expected calibration error and its bins, of equal width: (0, 1/15], (1/15, 2/15], ..., (14/15, 1].

    ECE = sum over the bins of (images / all images) * |accuracy - mean confidence|: C. Guo, G. Pleiss, Y. Sun,
    K. Q. Weinberger, "On Calibration of Modern Neural Networks", ICML 2017, equation 3, with their 15 bins.

    Args:
        confidences: the probability of each predicted class; images where it is not finite are left out.
        correct: whether each prediction is the label.
    """
    finite = np.isfinite(confidences)
    confidences, hits = confidences[finite].astype(np.float64), correct[finite].astype(np.float64)
    numbers = np.clip(np.ceil(confidences * NUM_BINS).astype(np.int64) - 1, 0, NUM_BINS - 1)
    counts = np.bincount(numbers, minlength=NUM_BINS)
    means = [
        np.divide(
            np.bincount(numbers, weights=each, minlength=NUM_BINS), counts, where=counts > 0, out=np.zeros(NUM_BINS)
        )
        for each in (confidences, hits)
    ]
    bins = [
        CalibrationBin(images=int(count), confidence=float(confidence), accuracy=float(accuracy))
        for count, confidence, accuracy in zip(counts, *means, strict=True)
    ]
    error = sum(each.images * abs(each.accuracy - each.confidence) for each in bins) / max(1, len(confidences))
    return Calibration(error=error, bins=tuple(bins))
