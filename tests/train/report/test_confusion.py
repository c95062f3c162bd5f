"""The confusion matrix, and what is worth a look in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from made_up_runs import CLASSES, make_run

from train.report import confusion, reading
from train.report.document import Picture, Words
from train.report.reading import Confusion

MATRIX = Confusion(step=20, classes=CLASSES, matrix=((8, 2, 0), (1, 9, 0), (5, 0, 5)))


def test_recall_and_precision_stand_by_class() -> None:
    rows = confusion.classes(MATRIX).rows
    assert rows[0] == ["cat", "10", "80.0%", "57.1%"]
    assert rows[2] == ["<b>owl</b>", "10", "50.0%", "100.0%"]


def test_the_most_frequent_mistake_comes_first() -> None:
    assert confusion.mistakes(MATRIX)[0] == ["<b>owl</b>", "cat", "5", "50.0%"]


def test_of_many_classes_the_weakest_are_listed() -> None:
    size = 300
    rows = tuple(
        tuple(3 if row == column != 7 else int(row != column) for column in range(size)) for row in range(size)
    )
    names = tuple(f"class {at}" for at in range(size))
    table = confusion.classes(Confusion(step=None, classes=names, matrix=rows))
    assert len(table.rows) == confusion.LISTED
    assert table.rows[0][0] == "class 7"


def test_a_class_without_images_has_no_recall() -> None:
    empty = Confusion(step=None, classes=("a", "b"), matrix=((0, 0), (0, 2)))
    assert confusion.classes(empty).rows[0] == ["a", "0", "-", "-"]


def test_a_run_shows_its_matrix_as_a_picture(tmp_path: Path) -> None:
    section = confusion.section(reading.read(make_run(tmp_path / "run")))
    assert section is not None
    assert [block.name for block in section.blocks if isinstance(block, Picture)] == ["confusion"]


def test_a_picture_that_is_not_there_is_not_explained(tmp_path: Path) -> None:
    many = tuple(tuple(int(row == column) for column in range(201)) for row in range(201))
    found = Confusion(step=1, classes=tuple(map(str, range(201))), matrix=many)
    section = confusion.section(replace(reading.read(make_run(tmp_path / "run")), confusion=found))
    assert section is not None
    assert section.blocks[0] == Words(text="The held-out images after step 1.")


def test_a_run_without_one_has_no_section(tmp_path: Path) -> None:
    (make_run(tmp_path / "run") / "confusion.json").unlink()
    assert confusion.section(reading.read(tmp_path / "run")) is None
