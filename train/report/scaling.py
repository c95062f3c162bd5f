"""Runs on different numbers of ranks become speed-up and efficiency, against the ideal and what centres ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

from train.plotting import speedup
from train.plotting.speedup import ASKED, Point, Scaled
from train.report import comparing, drawn, figures
from train.report.comparing import Likeness
from train.report.document import Block, Section, Table, Words
from train.report.figures import short
from train.report.reading import Run

ENOUGH: Final = 3  # numbers of processes before a trend can be told from a chance
BEYOND: Final = 1.1  # of the ideal: more is no gift, but a base that was too slow
HOW: Final = (
    "Images per second between log points, all ranks together: the median. Start-up, the first log point of a start, "
    "evaluations and saves are not in it. "
)
BARS: Final = (
    "Bars are the quartiles: they show how much single log points vary, over the median of the fewest ranks, whose own "
    "spread is not in them. Whether two points differ, only repeated runs tell."
)
OF_SEVERAL: Final = (
    "Of several runs on as many ranks it is the median of theirs, and bars reach from the lowest quartile of any of "
    "them to the highest, over the median of the fewest ranks, whose own spread is not in them."
)
TITLE: Final = "Scaling"
MEANING: Final = {
    "weak scaling": "Weak scaling: the global batch grows with the ranks, each computes as much as before. ",
    "strong scaling": "Strong scaling: the same global batch for any number of ranks. ",
    "unlike runs": "",
}


def section(runs: Sequence[Run], found: Likeness, *, anyway: bool) -> Section | None:
    """None where all runs had as many ranks. Without `anyway`, unlike runs get the reason instead of ratios."""
    if len({figures.ranks(run) for run in runs}) < 2:
        return None
    measured, left = points(runs), [Words(text=f"{line}.", caution=True) for line in left_out(runs)]
    if len(measured) < 2:
        none = Words(text="Speed-up needs the speed of runs on two numbers of ranks or more.")
        return Section(title=TITLE, blocks=[none, *left])
    if not found.alike and not anyway:
        asked = "Speed-up and efficiency are left out for that reason. The option --compare-anyway draws them."
        return Section(title=TITLE, blocks=[Words(text=asked)])
    note = None if found.alike else f"Not comparable: not the same {', '.join(found.differs)}"
    kind = "unlike runs" if note else "weak scaling" if comparing.BATCH in found.differs else "strong scaling"
    repeated = len(measured) < len(runs) - len(left)
    said = [Words(text=MEANING[kind] + HOW + (OF_SEVERAL if repeated else BARS))] + (
        [Words(text=f"{note}.", caution=True)] if note else []
    )
    doubt = f"not the same {comparing.THREADS}" if comparing.unlike_threads(runs) else None
    shown = blocks({kind: measured}, name="scaling", note=note, doubt=doubt)
    return Section(title=TITLE, blocks=[*said, *left, *shown])


def left_out(runs: Sequence[Run]) -> list[str]:
    """Which runs have no speed that ratios could be made of, and why."""
    speeds = {run.name: figures.speed(run) for run in runs}
    why = {name: "no log point" if found is None else "first steps only" for name, found in speeds.items()}
    return [f"{name} is left out: {why[name]}" for name, found in speeds.items() if found is None or found.warm_up]


def points(runs: Sequence[Run]) -> list[Point]:
    """One for each number of ranks, without first steps; of several runs the median."""
    by_ranks: dict[int, list[figures.Speed]] = {}
    for run in runs:
        if (speed := figures.speed(run)) and speed.ranks and not speed.warm_up:
            by_ranks.setdefault(speed.ranks, []).append(speed)
    return [
        Point(
            processes=ranks,
            images_per_s=median(speed.images_per_s for speed in speeds),
            low=min(speed.low for speed in speeds),
            high=max(speed.high for speed in speeds),
        )
        for ranks, speeds in sorted(by_ranks.items())
    ]


def blocks(
    measured: Mapping[str, Sequence[Point]], *, name: str, note: str | None = None, doubt: str | None = None
) -> list[Block]:
    """The picture and the table of what was measured, by kind of scaling. doubt: why there can be no verdict."""
    shown = speedup.panels(measured)
    if not shown:
        return []
    against = f"{' and '.join(measured)} against the ideal and {ASKED:.0%} of it"
    found: list[Block] = [*drawn.pictures(name, shown, of=against, note=note)]
    for kind, of in measured.items():
        if not (scaled := speedup.scaled(of)):
            found.append(Words(text=f"{kind.capitalize()}: no throughput above 0.", caution=True))
            continue
        found.append(table(kind, scaled))
        most = max(one.efficiency for one in scaled)
        why = doubt or (f"an efficiency of {most:.0%} is not to be believed" if most > BEYOND else None)
        if note is None:
            found.append(
                Words(text=f"{kind.capitalize()}: no verdict is given: {why}." if why else verdict(kind, scaled))
            )
        if most > BEYOND:
            told = f"An efficiency of {most:.0%} ({kind}): the smallest one was held up by something. Measure it again."
            found.append(Words(text=told, caution=True))
        if len(scaled) < ENOUGH:
            few = f"Only {len(scaled)} numbers of processes: {ENOUGH} or more are needed to call it a trend ({kind})."
            found.append(Words(text=few, caution=True))
    return found


def table(kind: str, found: Sequence[Scaled]) -> Table:
    """The numbers of the picture."""
    head = [f"{kind}: processes", "images/s", "speed-up", "ideal", "efficiency"]
    fewest = found[0].processes
    rows = [
        [
            str(one.processes),
            short(one.images_per_s),
            f"{one.speed_up:.2f}",
            f"{one.processes / fewest:g}",
            f"{one.efficiency:.0%}",
        ]
        for one in found
    ]
    return Table(head=head, rows=rows)


def verdict(kind: str, found: Sequence[Scaled]) -> str:
    """Up to how many processes the efficiency is what centres ask for, without a gap."""
    enough = []
    for one in found:
        if one.efficiency < ASKED:
            break
        enough.append(one.processes)
    if not enough:
        return f"{kind.capitalize()}: below {ASKED:.0%} of the ideal from the first number of processes on."
    rest = "" if enough[-1] == found[-1].processes else ", not beyond"
    many = f"{enough[-1]} process{'es' * (enough[-1] > 1)}"
    return f"{kind.capitalize()}: {ASKED:.0%} or more of the ideal up to {many}{rest}."
