"""What a table's label column becomes: a class, several labels, or a number for each image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from label_tables import rows, write_table

from entrypoint import Failure
from train.config.schema import DataConfig
from train.data import image_table, registry, statistics
from train.data.splits import DataSplits


def opened(file: Path, **changes: Any) -> DataSplits:
    return registry.open_splits(DataConfig(name="table", root=str(file), image_size=8, **changes))


def refused(file: Path, **changes: Any) -> Failure:
    with pytest.raises(Failure) as caught:
        opened(file, **changes)
    return caught.value


def test_names_between_semicolons_or_bars_are_several_labels(tmp_path: Path) -> None:
    table = write_table(tmp_path, rows(["cat; dog", "dog|sofa", "", "cat"]))
    sets = opened(table, task="multi_label", val_fraction=0.0)
    assert (sets.task, sets.classes) == ("multi_label", ("cat", "dog", "sofa"))
    assert sets.training.labels.tolist() == [[1, 1, 0], [0, 1, 1], [0, 0, 0], [1, 0, 0]]
    assert sets.training.labels.dtype == torch.float32


def test_columns_of_0_and_1_are_several_labels_without_being_asked(tmp_path: Path) -> None:
    table = write_table(tmp_path, rows("1001", "0101", ["yes", "No", "", "TRUE"]), "path,cat,dog,sofa")
    sets = opened(table, columns={"label": ["dog", "cat", "sofa"]}, val_fraction=0.0)
    assert (sets.task, sets.classes) == ("multi_label", ("dog", "cat", "sofa"))
    assert sets.training.labels.tolist() == [[0, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 1]]


def test_a_number_for_each_image_is_read_as_it_is(tmp_path: Path) -> None:
    sets = opened(write_table(tmp_path, rows([1.5, -2, 3e1, 4])), task="regression", val_fraction=0.0)
    assert (sets.task, sets.classes, sets.training.labels.tolist()) == ("regression", ("label",), [1.5, -2, 30, 4])


def test_the_scale_of_numbers_is_that_of_the_training_images(tmp_path: Path) -> None:
    table = write_table(tmp_path, rows([1, 3, 100, 200], ["train"] * 2 + ["val"] * 2), "path,label,split")
    target = opened(table, task="regression").target
    assert target is not None
    assert (target.mean, target.std) == (2.0, 1.0)


def test_a_rare_label_is_in_both_splits(tmp_path: Path) -> None:
    cells = ["common;rare" if number % 10 == 0 else "common" for number in range(100)]
    sets = opened(write_table(tmp_path, rows(cells)), task="multi_label")
    assert [split.labels.sum(dim=0).tolist() for split in (sets.training, sets.validation)] == [[80, 8], [20, 2]]


def test_numbers_of_each_size_are_in_both_splits(tmp_path: Path) -> None:
    validation = opened(write_table(tmp_path, rows(range(100))), task="regression").validation.labels
    assert [int(((validation >= low) & (validation < low + 10)).sum()) for low in range(0, 100, 10)] == [2] * 10


@pytest.mark.parametrize(
    ("cells", "task"),
    [
        (["a;b", "c"], "multi_label"),
        (["a", "b|c"], "multi_label"),
        (["1.5", "2"], "regression"),
        ([str(number) for number in range(30)], "regression"),
    ],
)
def test_labels_that_could_be_two_tasks_are_refused_with_the_setting(
    tmp_path: Path, cells: list[str], task: str
) -> None:
    failure = refused(write_table(tmp_path, rows(cells)))
    assert failure.code == 64
    assert f"data.task={task}" in failure.fix
    assert "data.task=classification" in failure.fix
    assert opened(tmp_path / "labels.csv", task="classification", val_fraction=0.0).task == "classification"


MEASUREMENTS = [f"{1 + number / 7:.2f}" for number in range(200)]
BAD_CELLS = ("nan", "N/A", "NULL", "", "3.5 kg", "3,5", "-", "unknown", "#DIV/0!")


@pytest.mark.parametrize("bad", BAD_CELLS)
def test_one_bad_cell_makes_no_classes_of_a_column_of_numbers(bad: str, tmp_path: Path) -> None:
    table = write_table(tmp_path, rows([*MEASUREMENTS[:20], f'"{bad}"']))
    failure = refused(table)
    assert (failure.code, failure.found) == (
        64,
        f"21 different cells in 21 lines; no number in line 22: {bad or 'an empty cell'}",
    )
    assert "data.task=regression" in failure.fix
    assert "line 22" in (refused(table, task="regression").found or "")


@pytest.mark.parametrize("pattern", ["{} kg", "{}%", "< {}", "{}°C", "{} mg/dl", "$ {}"])
def test_a_unit_in_each_cell_makes_no_classes_of_a_column_of_numbers(pattern: str, tmp_path: Path) -> None:
    failure = refused(write_table(tmp_path, rows([pattern.format(number) for number in MEASUREMENTS[:20]])))
    assert (failure.code, "no unit" in failure.fix) == (64, True)


def test_decimal_commas_are_numbers_and_read_with_a_note(tmp_path: Path) -> None:
    lines = [f"{number:03d}.png;{cell}" for number, cell in enumerate(["1,5", "2", "-3,25"])]
    table = write_table(tmp_path, lines, "path;label")
    assert "data.task=regression" in refused(table).fix
    sets = opened(table, task="regression", val_fraction=0.0)
    assert sets.training.labels.tolist() == [1.5, 2.0, -3.25]
    assert sets.notes == ("decimal commas in label are read as points: 2 cells",)


@pytest.mark.parametrize("cells", [["1,500", "2,000"], ["1.5", "2,5"], ["1,5", "1.000,5"]])
def test_commas_that_may_divide_thousands_are_refused(cells: list[str], tmp_path: Path) -> None:
    failure = refused(
        write_table(tmp_path, [f"00{n}.png;{cell}" for n, cell in enumerate(cells)], "path;label"), task="regression"
    )
    assert (failure.code, "no comma" in failure.fix) == (65, True)


@pytest.mark.parametrize(("cells", "lines"), [(["1.100", "2.300", "7"], "2, 3"), (["9", "1.100", "12.345"], "3, 4")])
def test_points_that_may_divide_thousands_are_warned_of_with_both_readings(
    cells: list[str], lines: str, tmp_path: Path
) -> None:
    sets = opened(write_table(tmp_path, rows(cells)), task="regression", val_fraction=0.0)
    (warning,) = sets.warnings
    assert f"1.100 as 1.1 (lines {lines})" in warning
    assert warning.endswith("if they divide thousands, remove them: 1100")


@pytest.mark.parametrize("cells", [["0.125", "1.250"], ["1.1", "2.300"], ["1.100", "2300"], ["1000.250", "1.100"]])
def test_points_that_are_certainly_decimal_points_are_not_warned_of(cells: list[str], tmp_path: Path) -> None:
    assert opened(write_table(tmp_path, rows(cells)), task="regression", val_fraction=0.0).warnings == ()


AGES = [3, 14, 15, 92, 65]


@pytest.mark.parametrize("code", [-999, 9999, -1, -9999.0, 1e20])
def test_a_number_that_stands_for_a_missing_value_is_warned_of_with_its_images(code: float, tmp_path: Path) -> None:
    table = write_table(tmp_path, rows([*AGES, code, 35, code]))
    (warning,) = opened(table, task="regression", val_fraction=0.0).warnings
    assert warning.startswith(
        f"2 training images have the number {code:g} (such as 005.png, 007.png), and the others 3 to 92. fix: "
    )


@pytest.mark.parametrize(
    "numbers", [[*AGES, 999], [*AGES, 92, 92], [-40, -1, -1, 20, 30], [0, 0, 7, 7], [0, 0, 1, 2, 3], [-2, -2, 5, 9, 40]]
)
def test_a_single_outlier_and_numbers_of_one_range_are_no_missing_values(numbers: list[float], tmp_path: Path) -> None:
    assert opened(write_table(tmp_path, rows(numbers)), task="regression", val_fraction=0.0).warnings == ()


def test_a_number_with_an_underscore_is_none(tmp_path: Path) -> None:
    failure = refused(write_table(tmp_path, rows(["1_000", "2", "3"])), task="regression")
    assert (failure.code, failure.found) == (65, "line 2: 1_000")


def test_a_group_that_is_called_as_a_missing_value_is_warned_of(tmp_path: Path) -> None:
    groups = ["NA", "p1", "NA", "", "p1", "n/a"]
    table = write_table(tmp_path, rows("ababab", groups), "path,label,group")
    (warning,) = opened(table, val_fraction=0.0).warnings
    assert warning.startswith("2 images are of one group NA, which looks like a missing value")


def test_empty_cells_of_label_columns_are_counted_in_a_note(tmp_path: Path) -> None:
    table = write_table(tmp_path, rows("1010", ["1", "", "0", ""]), "path,cat,dog")
    sets = opened(table, columns={"label": ["cat", "dog"]}, val_fraction=0.0)
    assert sets.notes == ("empty cells of label columns are read as 0: dog (2)",)


def test_classes_that_are_one_number_or_differ_in_quotation_marks_look_alike(tmp_path: Path) -> None:
    table = write_table(tmp_path, rows(["01", "1", "1.0", "2", "\u201ccat\u201d", "cat"]))
    (warning,) = opened(table, task="classification", val_fraction=0.0).warnings
    assert warning.startswith("classes look alike: '01' and '1' and '1.0'; 'cat' and '\\u201ccat\\u201d'. fix: ")


def test_a_class_number_that_is_missing_is_no_class(tmp_path: Path) -> None:
    failure = refused(write_table(tmp_path, rows(["0", "1"] * 30 + ["NA", "nan"])))
    assert (failure.code, failure.found) == (64, "4 different cells in 62 lines; no number in lines 62, 63: NA")
    assert failure.fix.endswith("or remove the lines; or set data.task=classification if each is a class")


def test_a_class_called_as_a_missing_value_is_warned_of(tmp_path: Path) -> None:
    table = write_table(tmp_path, rows(["cat", "dog", "NA", "NA"]))
    (warning,) = opened(table, val_fraction=0.0).warnings
    assert warning.startswith("lines 4, 5 of the table: the class NA looks like a missing value")


TAGS = {
    "commas": ["cat,dog", "dog", "cat", "cat,dog,sofa", "sofa"],
    "comma-and-space": ["cat, dog", "dog", "cat, sofa", "sofa"],
    "spaces": [
        "haze primary",
        "clear primary",
        "clear water primary",
        "haze water",
        "clear haze",
        "haze water primary",
    ],
    "slashes": ["cat/dog", "dog", "cat"],
    "plus-signs": ["cat+dog", "dog", "cat"],
    "another-order": ["cat dog", "dog cat", "sofa"],
    "json": ['["cat", "dog"]', '["dog"]'],
    "python": ["['cat', 'dog']", "['dog']"],
    "tuple": ["('cat', 'dog')", "('dog',)"],
    "numpy": ["[1 0 1]", "[0 0 1]"],
    "lines": ["cat\ndog", "dog", "cat"],
}


@pytest.mark.parametrize("cells", TAGS.values(), ids=TAGS)
def test_several_labels_in_a_cell_are_no_class_and_no_label(cells: list[str], tmp_path: Path) -> None:
    quoted = ['"{}"'.format(cell.replace('"', '""')) for cell in cells]
    table = write_table(tmp_path, rows(quoted))
    failures = [refused(table), refused(table, task="multi_label")]
    assert [failure.code for failure in failures] == [64, 65]
    assert all("write ; between the labels of an image (cat;sofa)" in failure.fix for failure in failures)
    assert all("line " in (failure.found or "") for failure in failures)
    assert len(opened(table, task="classification", val_fraction=0.0).classes) == len(set(cells))


NAMES = {
    "two words": ["hot dog", "dog", "cat"],
    "a cross": ["red fox", "red wolf", "grey fox", "grey wolf"],
    "numbered": ["class 1", "class 2", "class 3"],
    "with commas": ["tench, Tinca tinca", "goldfish, Carassius auratus", "ray"],
    "paths": ["animal/cat", "animal/dog", "plant/oak"],
    "brackets": ["cat (big)", "cat (small)"],
    "one of them with a separator": ["AC/DC", "Queen", "Abba"],
}


@pytest.mark.parametrize("cells", NAMES.values(), ids=NAMES)
def test_names_of_several_words_are_classes(cells: list[str], tmp_path: Path) -> None:
    quoted = [f'"{cell}"' for cell in cells * 2]
    assert opened(write_table(tmp_path, rows(quoted)), val_fraction=0.0).classes == tuple(sorted(cells))


def test_a_column_that_is_another_in_most_lines_holds_no_classes(tmp_path: Path) -> None:
    failure = refused(write_table(tmp_path, rows([f"2024-01-{day:02d}" for day in range(1, 31)])))
    assert (failure.code, failure.found) == (64, "30 different cells in 30 lines, such as line 2: 2024-01-01")


@pytest.mark.parametrize("cells", [["0", "1"] * 30, [str(number % 30) for number in range(300)], ["a", "1.5"]])
def test_whole_numbers_with_many_images_each_are_classes(cells: list[str]) -> None:
    assert not image_table.look_like_measurements(cells)


@pytest.mark.parametrize(
    ("numbers", "note"),
    [
        (range(11, 89), "the 78 whole numbers of the column label (11 to 88) are taken as classes"),
        ([0, 2, 3], "the 3 whole numbers of the column label (0 to 3) are taken as classes"),
        (range(10), None),
        (range(1, 6), None),
    ],
)
def test_whole_numbers_that_count_no_classes_are_classes_with_a_note(
    numbers: Sequence[int], note: str | None, tmp_path: Path
) -> None:
    file = write_table(tmp_path, rows([*numbers] * 10))
    notes = opened(file).notes
    assert [text.partition(";")[0] for text in notes] == ([note] if note else [])
    assert all("data.task=regression learns them as numbers" in text for text in notes)
    assert opened(file, task="classification").notes == ()


def test_masks_are_refused_by_name(tmp_path: Path) -> None:
    assert "segmentation" in refused(write_table(tmp_path, rows(["m0.png", "m1.png"]))).fix


@pytest.mark.parametrize(
    ("cells", "task", "words"),
    [
        (["1", "tall"], "regression", "line 3: tall"),
        (["1.0", "2,5"], "regression", "line 3: 2"),
        (["1", "NA", "nan"], "regression", "lines 3, 4: NA"),
        (["1", "inf"], "regression", "line 3: inf"),
        (["1", ""], "regression", "line 3"),
        (["1", "1.0"], "regression", "2 times 1"),
        (["1", "1e39"], "regression", "line 3: 1e39"),
        (["", ""], "multi_label", "2 lines without one"),
    ],
)
def test_cells_that_are_no_labels_of_the_task_are_named(
    tmp_path: Path, cells: list[str], task: str, words: str
) -> None:
    lines = [f'{number:03d}.png,"{cell}"' for number, cell in enumerate(cells)]
    failure = refused(write_table(tmp_path, lines), task=task)
    assert (failure.code, words in (failure.found or "")) == (65, True)


def test_a_label_column_with_another_word_than_0_and_1_is_named(tmp_path: Path) -> None:
    failure = refused(write_table(tmp_path, rows("0x", "10"), "path,cat,dog"), columns={"label": ["cat", "dog"]})
    assert failure.found == "line 3: x in the column cat"


def test_a_label_of_validation_rows_alone_is_refused(tmp_path: Path) -> None:
    table = write_table(tmp_path, rows(["a", "a;b", "a;c"], ["train", "train", "val"]), "path,label,split")
    assert refused(table, task="multi_label").found == "c: line 4"


def test_other_data_has_only_classes(tmp_path: Path) -> None:
    with pytest.raises(Failure) as caught:
        registry.refuse_inapplicable_keys(DataConfig(name="folder", task="regression"))
    assert (caught.value.code, "data.name=table" in caught.value.fix) == (64, True)


def test_an_unsupported_task_is_refused_by_name() -> None:
    with pytest.raises(Failure) as caught:
        registry.refuse_inapplicable_keys(DataConfig(name="table", task="segmentation"))
    assert caught.value.what == "data.task: segmentation is not supported"


def test_a_change_of_a_number_behind_the_point_is_other_data(tmp_path: Path) -> None:
    tables = [write_table(tmp_path / str(last), rows([1, 2, 3, 4, last])) for last in (5.25, 5.5)]
    digests = [statistics.data_fingerprint(opened(table, task="regression"), str(table))["digests"] for table in tables]
    assert digests[0] != digests[1]
