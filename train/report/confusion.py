"""A confusion matrix becomes a picture, and a table of the classes and pairs that are worth a look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from train.plotting import heatmap
from train.report import figures
from train.report.document import Block, Picture, Section, Table, Words
from train.report.reading import Confusion, Run

DRAWN: Final = 200  # classes: of more, a cell is smaller than a dot
LISTED: Final = 20  # classes that all stand in the table; of more, the worst ones
PAIRS: Final = 10
RUNS: Final = 8  # whose recalls stand side by side on paper
MATRICES: Final = 6  # runs whose matrix is shown, of several
TITLE: Final = "Confusion matrix"
READ: Final = " Each row of the picture is a true class, each column a predicted one."


def section(run: Run) -> Section | None:
    """Of the best evaluation where it was kept, else of the last: matrix, classes, mistakes; None without any."""
    found = of_the_best(run) or run.confusion
    if found is None or not any(map(sum, found.matrix)):
        return None
    drawn = _picture(run, found, "confusion")
    said = f"The held-out images{_at(found)}{_standing(run, found)}.{READ if drawn else ''}"
    blocks: list[Block] = [Words(text=said), *drawn, classes(found)]
    if pairs := mistakes(found):
        blocks.append(Table(head=["true", "predicted", "images", "of its class"], rows=pairs, left=2))
    return Section(title=TITLE, blocks=blocks)


def of_the_best(run: Run) -> Confusion | None:
    """The matrix of the evaluation that the report calls the best; None where it is not among those kept."""
    best = figures.best(run)
    kept = [found for found in (run.confusion_best, run.confusion) if found is not None]
    return next((found for found in kept if best and found.step == best[1]), None)


def _standing(run: Run, found: Confusion) -> str:
    """Whether it is of the best evaluation, with its score."""
    called, best = figures.metric(run), figures.best(run)
    scores = dict(zip(*run.column("eval", called), strict=True))
    if best is None or found.step not in scores:
        return ""
    score = f"{figures.SCORES.get(called, called)} {figures.share(scores[found.step], called)}"
    if found.step == best[1]:
        return f", the best evaluation ({score})"
    told = figures.share(best[0], called)
    return f", the last evaluation ({score}), not the best ({told}, after step {best[1]:,.0f})"


def compared(runs: Sequence[Run]) -> Section | None:
    """Recall by class, run by run, where all have the same classes; and the matrix of each of the first runs."""
    there = [(run, run.confusion) for run in runs if run.confusion is not None and any(map(sum, run.confusion.matrix))]
    if not there:
        return None
    best = [(run, found) for run, _ in there if (found := of_the_best(run)) is not None]
    known = best if len(best) == len(there) else there  # like with like
    which = "best evaluation" if known is best else "last evaluation, which need not be its best"
    drawn = [
        picture
        for at, (run, found) in enumerate(known[:MATRICES], 1)
        for picture in _picture(run, found, f"confusion-{at}")
    ]
    said = f"The held-out images of each run's {which}.{READ if drawn else ''}"
    blocks: list[Block] = [Words(text=said)]
    if len({found.classes for _, found in known}) == 1:
        blocks += recalls(known).parts(RUNS)
    return Section(title=TITLE, blocks=[*blocks, *drawn])


def recalls(known: Sequence[tuple[Run, Confusion]]) -> Table:
    """Of each class in each run; of many classes those with the lowest mean."""
    rows = []
    for at, name in enumerate(known[0][1].classes):
        parts = [(found.matrix[at][at], sum(found.matrix[at])) for _, found in known]
        rows.append((sum(_ratio(*part) for part in parts), [name, *(_told(*part) for part in parts)]))
    if len(rows) > LISTED:
        rows = sorted(rows, key=lambda row: row[0])[:LISTED]
    return Table(head=[_head(known[0][1]), *(run.name for run, _ in known)], rows=[row for _, row in rows])


def _picture(run: Run, found: Confusion, name: str) -> list[Picture]:
    """None of more classes than a picture can show."""
    if len(found.classes) > DRAWN:
        return []
    png, told = heatmap.draw(found.matrix, found.classes), f"{run.name}{_at(found)}"
    return [Picture(name=name, png=png, alt=f"Confusion matrix of {told}", caption=told)]


def _at(found: Confusion) -> str:
    return "" if found.step is None else f" after step {found.step:,}"


def classes(found: Confusion) -> Table:
    """Recall and precision by class, the worst recall first where there are many."""
    answered = [sum(column) for column in zip(*found.matrix, strict=True)]
    lines = [
        (_ratio(row[at], sum(row)), [name, f"{sum(row):,}", _told(row[at], sum(row)), _told(row[at], answered[at])])
        for at, (name, row) in enumerate(zip(found.classes, found.matrix, strict=True))
    ]
    if len(lines) > LISTED:
        lines = sorted(lines, key=lambda line: line[0])[:LISTED]
    return Table(head=[_head(found), "images", "recall", "precision"], rows=[line for _, line in lines])


def _head(found: Confusion) -> str:
    return "class" if len(found.classes) <= LISTED else f"class (the {LISTED} with the lowest recall)"


def mistakes(found: Confusion) -> list[Sequence[str]]:
    """The most frequent ones."""
    names = found.classes
    wrong = [
        (count, label, answer)
        for label, row in enumerate(found.matrix)
        for answer, count in enumerate(row)
        if label != answer and count
    ]
    worst = sorted(wrong, key=lambda one: (-one[0], one[1], one[2]))[:PAIRS]
    return [[names[is_], names[said], f"{n:,}", _told(n, sum(found.matrix[is_]))] for n, is_, said in worst]


def _ratio(part: int, of: int) -> float:
    """A class without images comes last."""
    return part / of if of else 2.0


def _told(part: int, of: int) -> str:
    return f"{part / of:.1%}" if of else "-"
