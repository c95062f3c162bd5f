"""Series and rows of a bench become PNG files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from train.bench.rows import Found, Row, Series

ROWS: Final = "rows"
GAP: Final = (math.nan, math.nan, math.nan)


def drawn(found: Sequence[Found]) -> dict[str, bytes]:
    """File name -> PNG: one for each series, and one that holds all rows against their targets."""
    pictures = {f"{one.name}.png": _series(one) for one in found if isinstance(one, Series)}
    asked = [one for one in found if isinstance(one, Row) and _share(one) is not None]
    return pictures | ({f"{ROWS}.png": _rows(asked)} if asked else {})


def _series(series: Series) -> bytes:
    from train.plotting import panels

    lines = [
        panels.Series(
            name=name,
            x=[x for x, _ in points],
            y=[y for _, y in points],
            style="ideal" if name in series.dashed else "line",
        )
        for name, points in series.lines.items()
    ]
    places = sorted({x for points in series.lines.values() for x, _ in points})
    log_x, log_y = (2 if series.log_x else None), (10 if series.log_y else None)
    ticks = places if len(places) <= 12 else ()
    panel = panels.Panel(
        title=series.title, x=series.x, y=series.y, series=lines, ticks=ticks, log_x=log_x, log_y=log_y
    )
    return panels.draw([panel])


def _rows(asked: Sequence[Row]) -> bytes:
    from train.plotting import panels

    shares = [share for row in asked if (share := _share(row)) is not None]
    spread = [share for one in shares for share in (one, GAP)]  # or a line would join rows
    points = panels.Series(
        name="measured",
        x=[at / 2 for at in range(len(spread))],
        y=[share[0] for share in spread],
        low=[share[1] for share in spread],
        high=[share[2] for share in spread],
        style="points",
    )
    limit = panels.Series(name="target", x=[-0.5, len(asked) - 0.5], y=[1.0, 1.0], style="limit")
    panel = panels.Panel(
        title="Rows held against their targets",
        x="",
        y="times the target (more is better)",
        series=[points, limit],
        marks={float(at): f"row {row.number}" for at, row in enumerate(asked)},
        ticks=[-1.0],  # off the picture: rows have names, not places
        log_y=2,
    )
    return panels.draw([panel])


def _share(row: Row) -> tuple[float, float, float] | None:
    """The value with its bounds in units of the target, more being better; None where there is no such number."""
    limit, found = row.target.limit, row.found
    if not limit or found is None or min(found.low, found.value) <= 0:
        return None
    if row.target.better == "higher":
        return found.value / limit, found.low / limit, found.high / limit
    return limit / found.value, limit / found.high, limit / found.low
