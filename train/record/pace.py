"""Log points of a run become how long it will still take."""

from __future__ import annotations

from collections import deque
from typing import Final

WINDOW_S: Final = (
    60.0  # the pace is that of the last minute, or of the last two log points where these are further apart
)


class Pace:
    """Knows when which step was done. Evaluations and saves in between count: they will come again."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._points: deque[tuple[int, float]] = deque()

    def add(self, step: int, now: float) -> None:
        """A log point, at `now` seconds of any clock."""
        self._points.append((step, now))
        while len(self._points) > 2 and now - self._points[1][1] >= WINDOW_S:
            self._points.popleft()

    def clear(self) -> None:
        """Steps are done once more: what was known of them says nothing."""
        self._points.clear()

    @property
    def left(self) -> float | None:
        """Seconds to the last step; None before two log points: the first one also knows of the start."""
        if len(self._points) < 2:
            return None
        (first, since), (last, now) = self._points[0], self._points[-1]
        return (self._total - last) * (now - since) / (last - first) if last > first else None


def rough(seconds: float) -> str:
    """40 s, 12 min, 2 h 05 min, 3 d 4 h: nobody knows it better."""
    minutes = round(seconds / 60)
    if seconds < 59.5:
        return f"{max(1, round(seconds))} s"
    if minutes < 60:
        return f"{minutes} min"
    hours = round(minutes / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
