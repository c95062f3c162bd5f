"""A confusion matrix becomes a picture, and a table of the classes and pairs that are worth a look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from train.plotting import heatmap
from train.report.document import Block, Picture, Section, Table, Words
from train.report.reading import Confusion, Run

DRAWN: Final = 200  # classes: of more, a cell is smaller than a dot
LISTED: Final = 20  # classes that all stand in the table; of more, the worst ones
PAIRS: Final = 10


def section(run: Run, number: int | None = None) -> Section | None:
    """Of the last evaluation; None where there is no matrix. number: of this run among several."""
    found = run.confusion
    if found is None or not any(map(sum, found.matrix)):
        return None
    whose = "" if number is None else f", {run.name}"
    at = "" if found.step is None else f" after step {found.step:,}"
    title = f"Which classes are taken for which{whose}"
    said = f"The held-out images{at}: each row is a class, each column what was answered."
    blocks: list[Block] = [Words(text=said)]
    if len(found.classes) <= DRAWN:
        name = "confusion" if number is None else f"confusion-{number}"
        png = heatmap.draw(f"Confusion{at}", found.matrix, found.classes)
        blocks.append(Picture(name=name, png=png, alt=f"Confusion matrix of {run.name}{at}"))
    blocks.append(classes(found))
    if pairs := mistakes(found):
        blocks.append(Table(head=["is", "answered", "images", "of its class"], rows=pairs, left=2))
    return Section(title=title, blocks=blocks)


def classes(found: Confusion) -> Table:
    """Recall and precision by class, the worst recall first where there are many."""
    answered = [sum(column) for column in zip(*found.matrix, strict=True)]
    lines = [
        (_ratio(row[at], sum(row)), [name, f"{sum(row):,}", _told(row[at], sum(row)), _told(row[at], answered[at])])
        for at, (name, row) in enumerate(zip(found.classes, found.matrix, strict=True))
    ]
    if len(lines) > LISTED:
        lines = sorted(lines, key=lambda line: line[0])[:LISTED]
    head = "class" if len(found.classes) <= LISTED else f"class (the {LISTED} with the lowest recall)"
    return Table(head=[head, "images", "recall", "precision"], rows=[line for _, line in lines])


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
