"""Panels become pictures of a section: one file for each, which stand beside or below each other as there is room."""

from __future__ import annotations

from collections.abc import Sequence

from train.plotting import panels
from train.plotting.panels import Panel
from train.report.document import Picture


def pictures(name: str, shown: Sequence[Panel], *, of: str, note: str | None = None) -> list[Picture]:
    """`name`.png, or `name`-loss.png and so on where there are several. of: what they are of, in words."""
    return [
        Picture(
            name=name if len(shown) == 1 else f"{name}-{_slug(panel.title)}",
            png=panels.draw(panel, note=note),
            alt=f"{panel.title} by {panel.x}, {of}",
        )
        for panel in shown
    ]


def _slug(title: str) -> str:
    """Learning rate: learning-rate. Titles are our own, and no two of a section are the same."""
    return "-".join(title.partition(",")[0].lower().split())
