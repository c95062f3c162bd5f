"""The confusion matrix, and what is worth a look in it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from made_up_runs import CLASSES, history, make_run

from train.report import plots, read
from train.report.document import Paragraph, Picture, Section, Table
from train.report.read import ConfusionMatrix, RecordedRun

LINES = history(1000)

MATRIX = ConfusionMatrix(step=20, classes=CLASSES, matrix=((8, 2, 0), (1, 9, 0), (5, 0, 5)))


def test_counts_recall_precision_and_f1_stand_by_class() -> None:
    rows = plots.class_table(MATRIX).rows
    assert rows[0] == ["cat", "10", "14", "8", "80.0%", "57.1%", "66.7%"]
    assert rows[2] == ["<b>owl</b>", "10", "5", "5", "50.0%", "100.0%", "66.7%"]


def test_the_most_frequent_mistake_comes_first() -> None:
    assert plots.mistake_rows(MATRIX)[0] == ["<b>owl</b>", "cat", "5", "50.0%"]


def test_of_many_classes_the_weakest_are_listed() -> None:
    size = 300
    rows = tuple(
        tuple(3 if row == column != 7 else int(row != column) for column in range(size)) for row in range(size)
    )
    names = tuple(f"class {at}" for at in range(size))
    table = plots.class_table(ConfusionMatrix(step=None, classes=names, matrix=rows))
    assert len(table.rows) == plots.MAX_LISTED_CLASSES
    assert table.rows[0][0] == "class 7"


def test_a_class_without_images_has_no_recall() -> None:
    empty = ConfusionMatrix(step=None, classes=("a", "b"), matrix=((0, 0), (0, 2)))
    assert plots.class_table(empty).rows[0] == ["a", "0", "0", "0", "-", "-", "-"]


def test_a_run_shows_its_matrix_as_a_picture(tmp_path: Path) -> None:
    section = plots.confusion_section(read.load_run(make_run(tmp_path / "run")))
    assert section is not None
    assert [block.name for block in section.blocks if isinstance(block, Picture)] == ["confusion"]


def test_a_picture_that_is_not_there_is_not_explained(tmp_path: Path) -> None:
    many = tuple(tuple(int(row == column) for column in range(201)) for row in range(201))
    found = ConfusionMatrix(step=1, classes=tuple(map(str, range(201))), matrix=many)
    section = plots.confusion_section(replace(read.load_run(make_run(tmp_path / "run")), confusion=found))
    assert section is not None
    assert section.blocks[0] == Paragraph(text="The validation images after step 1.")


def first_was_best(folder: Path, *, kept: bool) -> RecordedRun:
    """A run whose first evaluation, of step 10, was the best of two."""
    worse = [line | {"accuracy": 0.25} if line["event"] == "eval" and line["step"] == 20 else line for line in LINES]
    make_run(folder, events=worse)
    if kept:
        matrix = {"step": 10, "classes": CLASSES, "matrix": [[4, 0, 0], [0, 4, 0], [0, 0, 4]]}
        (folder / "confusion-best.json").write_text(json.dumps(matrix))
    return read.load_run(folder)


def said(section: Section | None) -> str:
    assert section is not None
    assert isinstance(section.blocks[0], Paragraph)
    return section.blocks[0].text


def test_the_matrix_is_that_of_the_best_evaluation(tmp_path: Path) -> None:
    section = plots.confusion_section(first_was_best(tmp_path / "run", kept=True))
    assert said(section).startswith("The validation images after step 10, the best evaluation (val accuracy 50.00%).")
    assert "'100.0%'" in str(section)
    assert "run after step 10" in str(section)


def test_a_matrix_of_the_last_evaluation_only_does_not_pass_for_the_best(tmp_path: Path) -> None:
    text = said(plots.confusion_section(first_was_best(tmp_path / "run", kept=False)))
    assert "after step 20, the last evaluation (val accuracy 25.00%), not the best (50.00%, after step 10)." in text


def test_matrices_side_by_side_are_all_of_the_best_or_all_of_the_last_evaluation(tmp_path: Path) -> None:
    one, two = (first_was_best(tmp_path / name, kept=True) for name in ("one", "two"))
    assert "each run's best evaluation." in said(plots.confusion_comparison_section([one, two]))
    old = first_was_best(tmp_path / "old", kept=False)
    assert "each run's last evaluation, which need not be its best." in said(
        plots.confusion_comparison_section([one, old])
    )


def test_more_runs_than_fit_on_paper_stand_in_several_tables_of_the_same_classes(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    runs = [replace(read.load_run(folder), name=f"run-{number}") for number in range(9)]
    section = plots.confusion_comparison_section(runs)
    assert section is not None
    tables = [block for block in section.blocks if isinstance(block, Table)]
    assert [table.head for table in tables] == [["class", *(f"run-{n}" for n in range(8))], ["class", "run-8"]]
    assert tables[1].rows[0] == ["cat", "80.0%"]


def test_a_run_without_one_has_no_section(tmp_path: Path) -> None:
    (make_run(tmp_path / "run") / "confusion.json").unlink()
    assert plots.confusion_section(read.load_run(tmp_path / "run")) is None
