"""Series and rows of a bench become PNG files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from train.bench.rows import Found, Row, Series

if TYPE_CHECKING:
    from train.plotting.panels import Panel

ROWS: Final = "rows"
SCALING, THROUGHPUT = "scaling", "images_per_s"  # series over processes: drawn as speed-up and efficiency


def drawn(found: Sequence[Found]) -> dict[str, bytes]:
    """File name -> PNG: one for each series, and one that holds all rows against their targets."""
    pictures = {f"{one.name}.png": _series(one) for one in found if isinstance(one, Series)}
    asked = [one for one in found if isinstance(one, Row) and _is_held(one)]
    return pictures | ({f"{ROWS}.png": _rows(asked)} if asked else {})


def _series(series: Series) -> bytes:
    from train.plotting import panels

    if series.name.startswith(SCALING) and THROUGHPUT in series.lines:
        return panels.draw(_scaled(series))
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


def _scaled(series: Series) -> Sequence[Panel]:
    from train.plotting import speedup

    low, high, up = (dict(series.lines.get(name, ())) for name in ("low", "high", "speed-up"))
    points = [
        speedup.Point(processes=int(x), images_per_s=y, low=low.get(x), high=high.get(x), speed_up=up.get(x))
        for x, y in series.lines[THROUGHPUT]
    ]
    return speedup.panels({series.title: points})


def _rows(asked: Sequence[Row]) -> bytes:
    from train.plotting import ratios

    held = [
        ratios.Ratio(
            name=f"{row.number} {row.target.what}",
            value=row.found.value,
            low=row.found.low,
            high=row.found.high,
            target=row.target.limit,
            at_least=row.target.better == "higher",
        )
        for row in asked
        if row.found and row.target.limit
    ]
    return ratios.draw("Rows held against their targets", held)


def _is_held(row: Row) -> bool:
    """Whether it has a value and a target that it can be a share of."""
    return row.found is not None and bool(row.target.limit)
