"""A Curve keeps at most about MAX_POINTS points of a value, and a GpuUse what a report shows of a GPU, however long the
run is.

Of a longer curve, each bucket of consecutive points keeps its first, last, lowest and highest, so that spikes stay
visible.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

MAX_POINTS: Final = 2048
KEPT_POINTS: Final = 4  # of a bucket
Points = npt.NDArray[np.float64]  # [n, 2]: x and y; also [buckets, n, 2]
GPU_KEYS: Final = ("utilisation_percent", "memory_bytes", "power_w", "temperature_c")  # of a `gpu` line


class Curve:
    """y over x; NaN is a gap. Up to MAX_POINTS points are kept as they are."""

    def __init__(self) -> None:
        self._new = array("d")  # x, y, x, y, ...
        self._buckets = np.empty((0, KEPT_POINTS, 2))
        self._width = 2 * KEPT_POINTS  # points of each bucket

    def add(self, x: float, y: float) -> None:
        """Add the next point."""
        self._new.extend((x, y))
        if len(self._new) < 2 * MAX_POINTS:
            return
        self._buckets = np.concatenate([self._buckets, _thin(np.array(self._new).reshape(-1, self._width, 2))])
        self._new = array("d")
        while len(self._buckets) >= MAX_POINTS // KEPT_POINTS:
            self._buckets = _thin(self._buckets.reshape(-1, 2 * KEPT_POINTS, 2))
            self._width = min(2 * self._width, MAX_POINTS)

    def points(self) -> Points:
        """The points that are kept [n, 2], in the order of x."""
        rest = np.array(self._new).reshape(-1, 2)
        if len(self._buckets) and len(rest):
            padded = np.pad(rest, ((0, -len(rest) % self._width), (0, 0)), mode="edge")
            rest = _thin(padded.reshape(-1, self._width, 2)).reshape(-1, 2)
        points = np.concatenate([self._buckets.reshape(-1, 2), rest])
        return points[np.argsort(points[:, 0], kind="stable")]


def _thin(buckets: Points) -> Points:
    """[buckets, n, 2] -> [buckets, KEPT_POINTS, 2]. NaN is neither lowest nor highest."""
    y = buckets[:, :, 1]
    lowest, highest = (np.where(np.isnan(y), np.inf, sign * y).argmin(axis=1) for sign in (1, -1))
    first = np.zeros_like(lowest)
    kept = np.sort(np.stack([first, lowest, highest, first + y.shape[1] - 1], axis=1), axis=1)
    return np.take_along_axis(buckets, kept[:, :, None], axis=1)


class GpuUse:
    """The lines of one GPU. curves: by GPU_KEYS, over seconds since 1970. sums: of each value times its seconds.
    seconds: for which the lines with the value stand. highest: -inf for a value that was never measured.

    A line stands for the time to the neighbour that is nearer: lines get rarer in a long run, and a wait between two
    starts counts for nothing.
    """

    def __init__(self) -> None:
        self.curves = {key: Curve() for key in GPU_KEYS}
        self.sums, self.seconds = dict.fromkeys(GPU_KEYS, 0.0), dict.fromkeys(GPU_KEYS, 0.0)
        self.highest = dict.fromkeys(GPU_KEYS, -math.inf)
        self._time, self._gap, self._values = -math.inf, math.inf, dict[str, float]()  # of the last line

    def add(self, time: float, values: Mapping[str, float]) -> None:
        """Add a line. values: by GPU_KEYS, NaN for what is no number."""
        for key, value in values.items():
            self.curves[key].add(time, value)
        gap = abs(time - self._time)
        self._count(min(self._gap, gap))
        self._time, self._gap, self._values = time, gap, {**values}

    def finish(self) -> None:
        """Count the last line too."""
        self._count(self._gap if math.isfinite(self._gap) else 1.0)
        self._values = {}

    def _count(self, seconds: float) -> None:
        for key, value in self._values.items():
            if not math.isnan(value):
                self.sums[key] += (seconds + 1e-9) * value
                self.seconds[key] += seconds + 1e-9  # two lines of one time count too
                self.highest[key] = max(self.highest[key], value)
