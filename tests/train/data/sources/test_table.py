"""A CSV or TSV file lists images and labels, as R, Excel, pandas, sqlite3 and Python's csv write it too."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from images import write_classes, write_image
from jobs import TINY, built, trained
from label_tables import rows, write_table

from entrypoint import ExitCode, Failure, Heartbeat
from train.config.schema import DataConfig
from train.data import decoded_cache, registry, statistics
from train.data.splits import DataSplits, ImageFileSource
from train.tasks.classification import Classification


def data(file: Path, **changes: Any) -> DataConfig:
    return DataConfig(name="table", root=str(file), image_size=8, **changes)


def opened(file: Path, **changes: Any) -> DataSplits:
    return registry.open_splits(data(file, **changes))


def names(source: Any) -> list[str]:
    return [Path(path).name for path in source.paths]


def refused(file: Path, **changes: Any) -> Failure:
    with pytest.raises(Failure) as caught:
        opened(file, **changes)
    return caught.value


def test_a_table_of_columns_of_0_and_1_names_them_as_labels(tmp_path: Path) -> None:
    header = "path,animal,flies,is_valid,height"
    file = write_table(tmp_path, rows("0110", ["yes", "no", "yes", "no"], "0011", "1204"), header)
    assert refused(file).fix.endswith("; or 'data.columns.label=[animal,flies]' if each column of 0 and 1 is a label")
    (tmp_path / "labels.csv").write_text("path,animal,height\n000.png,1,7\n")
    assert "[" not in refused(file).fix


def test_classes_are_the_labels_in_alphabetical_order(tmp_path: Path) -> None:
    sets = opened(write_table(tmp_path, rows(["dog", "cat", "dog", "cat"])), val_fraction=0.0)
    assert (sets.classes, sets.training.labels.tolist()) == (("cat", "dog"), [1, 0, 1, 0])


def test_the_images_are_those_of_the_paths(tmp_path: Path) -> None:
    sets = opened(write_table(tmp_path, ["001.png,a", "000.png,b"]), val_fraction=0.0)
    assert sets.training.read(np.array([0, 1]))[:, 0, 0, 0].tolist() == [3, 0]


def test_the_split_column_decides_what_is_validation(tmp_path: Path) -> None:
    sets = opened(write_table(tmp_path, rows("aabb", ["train", "Val", "training", "dev"]), "path,label,split"))
    assert (names(sets.training), names(sets.validation)) == (["000.png", "002.png"], ["001.png", "003.png"])
    assert sets.has_own_validation


def test_test_rows_are_the_test_split(tmp_path: Path) -> None:
    table = write_table(tmp_path, rows("ababab", ["train"] * 2 + ["test"] * 2 + ["val"] * 2), "path,label,split")
    sets = opened(table)
    assert sets.test is not None
    assert [names(split) for split in (sets.training, sets.validation, sets.test)] == [
        ["000.png", "001.png"],
        ["004.png", "005.png"],
        ["002.png", "003.png"],
    ]


def test_the_folds_of_a_table_are_all_of_its_images(tmp_path: Path) -> None:
    table = write_table(tmp_path, rows("ab" * 10))
    folds = [names(opened(table, fold=f"{number}/4").validation) for number in (1, 2, 3, 4)]
    assert sorted(name for fold in folds for name in fold) == [f"{number:03d}.png" for number in range(20)]


@pytest.mark.parametrize(("split", "key"), [("val", {"fold": "1/2"}), ("test", {"test_fraction": 0.5})])
def test_a_split_of_the_table_and_of_a_key_is_refused(tmp_path: Path, split: str, key: dict[str, Any]) -> None:
    table = write_table(tmp_path, rows("aabb", ["train", split] * 2), "path,label,split")
    with pytest.raises(Failure, match="does not go with") as caught:
        opened(table, **key)
    assert caught.value.code == ExitCode.USAGE


def test_without_a_split_column_a_share_of_every_class_is_for_validation(tmp_path: Path) -> None:
    sets = opened(write_table(tmp_path, rows("ab" * 10)))
    assert [torch.bincount(split.labels).tolist() for split in (sets.training, sets.validation)] == [[8, 8], [2, 2]]
    assert not sets.has_own_validation


def test_the_split_is_that_of_the_same_images_in_class_folders(tmp_path: Path) -> None:
    write_classes(tmp_path / "images", cat=20, dog=20)
    lines = [f"{name}/{number:03d}.png,{name}" for name in ("cat", "dog") for number in range(20)]
    table = opened(write_table(tmp_path / "images", lines, images=0))
    folder = registry.open_splits(DataConfig(name="folder", root=str(tmp_path / "images"), image_size=8))
    assert [*table.validation.paths] == [*folder.validation.paths]  # type: ignore[attr-defined]


def test_images_of_a_group_stay_in_one_split(tmp_path: Path) -> None:
    table = write_table(tmp_path, rows("ab" * 20, [number // 4 for number in range(40)]), "path,label,group")
    sets = opened(table)
    groups = [{int(name[:3]) // 4 for name in names(split)} for split in (sets.training, sets.validation)]
    assert len(sets.validation.labels) == 8
    assert groups[0].isdisjoint(groups[1])


def test_a_group_may_be_found_in_the_paths_instead(tmp_path: Path) -> None:
    sets = opened(write_table(tmp_path, rows("ab" * 20)), group=r"^(\d\d)")
    assert {name[:2] for name in names(sets.training)}.isdisjoint({name[:2] for name in names(sets.validation)})


def test_a_table_may_call_its_columns_otherwise(tmp_path: Path) -> None:
    table = write_table(tmp_path, rows("abab", [1, 2, 3, 4]), "image,diagnosis,age")
    assert opened(table, columns={"path": "image", "label": "diagnosis"}).classes == ("a", "b")


def test_the_images_may_lie_in_another_folder(tmp_path: Path) -> None:
    table = write_table(tmp_path / "table", rows("ab"), images=0)
    for number in range(2):
        write_image(tmp_path / f"scans/{number:03d}.png")
    sets = opened(table, images=str(tmp_path / "scans"), val_fraction=0.0)
    assert sets.training.read(np.array([1])).shape == (1, 8, 8, 3)


@pytest.mark.parametrize(("name", "delimiter"), [("a.tsv", "\t"), ("a.CSV", ","), ("a.csv", ";")])
def test_the_delimiter_is_that_of_the_ending_or_a_semicolon(tmp_path: Path, name: str, delimiter: str) -> None:
    lines = [line.replace(",", delimiter) for line in rows("ab")]
    assert opened(write_table(tmp_path, lines, f"path{delimiter}label", name), val_fraction=0.0).classes == ("a", "b")


def test_a_byte_order_mark_and_quoted_cells_are_read(tmp_path: Path) -> None:
    table = write_table(tmp_path, ['"000.png","a, or b"', "001.png, c "])
    table.write_bytes(b"\xef\xbb\xbf" + table.read_bytes())
    assert opened(table, val_fraction=0.0).classes == ("a, or b", "c")


def test_weights_are_1_on_average_over_the_training_images(tmp_path: Path) -> None:
    table = write_table(tmp_path, rows("abab", [1, 3, 50, 50], ["train"] * 2 + ["val"] * 2), "path,label,weight,split")
    weights = opened(table).weights
    assert weights is not None
    assert weights.tolist() == [0.5, 1.5]


def test_a_sample_counts_in_the_loss_by_its_weight() -> None:
    logits, labels = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([1, 1])
    task = Classification(classes=("a", "b"))
    each = [task.mean_loss(logits[[row]], {"label": labels[[row]]}) for row in (0, 1)]
    weighted = task.mean_loss(logits, {"label": labels, "weight": torch.tensor([0.5, 1.5])})
    assert torch.isclose(weighted, (0.5 * each[0] + 1.5 * each[1]) / 2)


def test_each_image_of_a_batch_gets_its_own_weight(tmp_path: Path) -> None:
    table = write_table(tmp_path, rows("ab" * 8, range(16)), "path,label,weight")
    words = (f"data.root={table}", "data.name=table", "data.val_fraction=0", "data.augment=none")
    with built(tmp_path / "run", *TINY, *words) as trainer:
        micro_batch, batch = next(trainer.loader.train(trainer.sampler.micro_batches(0)))
        assert batch["weight"].tolist() == pytest.approx([sample / 7.5 for sample in micro_batch.samples])


def test_without_a_weight_column_no_weights_are_read(tmp_path: Path) -> None:
    assert opened(write_table(tmp_path, rows("ab"))).weights is None


def test_a_moved_folder_is_the_same_data(tmp_path: Path) -> None:
    tables = [write_table(tmp_path / name, rows("ab" * 5)) for name in ("here", "there")]
    prints = [statistics.data_fingerprint(opened(table), str(table)) for table in tables]
    assert prints[0] == prints[1]


def test_another_label_is_other_data(tmp_path: Path) -> None:
    tables = [write_table(tmp_path / last, rows(["a", "b"] * 5 + [last])) for last in ("a", "b")]
    prints = [statistics.data_fingerprint(opened(table), str(table)) for table in tables]
    assert prints[0]["digests"] != prints[1]["digests"]


def test_the_decoded_cache_of_a_moved_folder_has_the_same_name(tmp_path: Path) -> None:
    table = write_table(tmp_path / "here", rows("ab"))

    def key(file: Path) -> str:
        training = opened(file, val_fraction=0.0).training
        assert isinstance(training, ImageFileSource)
        return decoded_cache.cache_key(training, data(file), Heartbeat())

    before = key(table)
    (tmp_path / "here").rename(tmp_path / "there")
    assert key(tmp_path / "there" / table.name) == before


def test_a_run_trains_on_a_table(tmp_path: Path) -> None:
    table = write_table(tmp_path, rows(["dark"] * 20 + ["light"] * 20))
    trainer = trained(tmp_path / "run", f"data.root={table}", "data.name=table", "data.augment=none")
    assert trainer.dataset.classes == ("dark", "light")
    assert trainer.state.result is not None
    assert trainer.state.result.samples == 8


def test_a_wrong_header_names_the_likely_column(tmp_path: Path) -> None:
    failure = refused(write_table(tmp_path, rows("ab"), "Filename,label"))
    assert failure.code == 65
    assert "data.columns.path=Filename" in failure.fix


def test_a_path_without_its_ending_is_explained(tmp_path: Path) -> None:
    failure = refused(write_table(tmp_path, ["000,a", "001.png,b"]))
    assert (failure.code, "line 2" in (failure.found or ""), ".png" in failure.fix) == (66, True, True)


@pytest.mark.parametrize("number", [3, 100])
def test_a_missing_image_is_named_with_its_line(tmp_path: Path, number: int) -> None:
    failure = refused(write_table(tmp_path, rows(["a", "b"] * number), images=2 * number - 1))
    assert failure.code == 66
    assert failure.found == f"line {2 * number + 1}: {tmp_path}/{2 * number - 1:03d}.png"


TABLES = Path(__file__).parents[3] / "data" / "tables"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """The eight images that the tables list."""
    for number in range(8):
        write_image(tmp_path / f"im/{number}.png", 30 * number)
    return tmp_path


def open_unsplit(file: Path, **changes: Any) -> DataSplits:
    return opened(file, val_fraction=0.0, **changes)


def summary_of(file: Path, **changes: Any) -> registry.DataSummary:
    """What `train check` says."""
    config = data(file, val_fraction=0.0, **changes)
    return registry.summarize(config, registry.open_splits(config))


def copied(name: str, folder: Path) -> Path:
    return Path(shutil.copy(TABLES / name, folder))


CATS_AND_DOGS = (
    "r-csv2.csv",
    "excel-sep.csv",
    "header-comma.csv",
    "r-write-csv2.csv",
    "r-write-csv.csv",
    "python-excel.csv",
    "python-unix.csv",
    "sqlite3.csv",
    "pandas.csv",
    "excel-unicode.csv",
    "excel-utf8.csv",
    "comments.csv",
)


@pytest.mark.parametrize("name", CATS_AND_DOGS)
def test_a_table_of_another_program_has_its_images_and_classes(name: str, photos: Path) -> None:
    splits = open_unsplit(copied(name, photos))
    assert (splits.classes, splits.training.labels.tolist()) == (("cat", "dog"), [0, 1] * 4)


def test_a_line_with_more_cells_than_columns_is_refused(photos: Path) -> None:
    failure = refused(copied("extra-cells.csv", photos))
    assert (failure.code, failure.found) == (65, "line 2: im/0.png, cat, small")
    assert "3 cells for 2 columns" in failure.what


def test_row_names_that_the_header_line_does_not_count_are_explained(photos: Path) -> None:
    failure = refused(copied("r-write-table.csv", photos))
    assert (failure.code, "row names" in failure.fix) == (65, True)


@pytest.mark.parametrize(("task", "code"), [("auto", 64), ("multi_label", 65)])
def test_a_column_of_pythons_lists_is_no_column_of_classes(task: str, code: int, photos: Path) -> None:
    failure = refused(copied("pandas-lists.csv", photos), task=task)
    assert (failure.code, failure.found) == (code, "line 4: ['cat', 'dog']")
    assert "(cat;sofa)" in failure.fix


def test_decimal_commas_of_r_are_read_as_numbers(photos: Path) -> None:
    table = copied("r-write-csv2.csv", photos)
    splits = open_unsplit(table, task="regression", columns={"label": "size"})
    assert splits.training.labels.tolist() == [1.5, 2, 3.25, 4, 5.5, 6, 7, 8]
    assert "decimal commas in size are read as points: 3 cells" in splits.notes


@pytest.mark.parametrize("header", ["path,label", "path,label,"])
def test_empty_cells_at_the_end_are_harmless_and_full_ones_are_not(header: str, tmp_path: Path) -> None:
    assert open_unsplit(write_table(tmp_path, ["000.png,a,,", "001.png,b,"], header)).classes == ("a", "b")
    assert refused(write_table(tmp_path, ["000.png,a,,", "001.png,b,c"], header)).found == "line 3: 001.png, b, c"


def test_a_delimiter_in_a_cell_that_pushes_an_empty_one_out_is_refused(tmp_path: Path) -> None:
    failure = refused(write_table(tmp_path, ["000.png,cat,", "001.png,dog, big,"], "path,label,remark"))
    assert (failure.code, failure.found) == (65, "line 3")
    assert "quotation marks" in failure.fix


def test_a_blank_before_a_quotation_mark_is_no_part_of_the_cell(tmp_path: Path) -> None:
    lines = ['000.png, "a", "x, y"', '001.png,  "b"', "002.png, a"]
    splits = open_unsplit(write_table(tmp_path, lines, 'path, "label", remark'))
    assert (splits.classes, splits.training.labels.tolist()) == (("a", "b"), [0, 1, 0])


@pytest.mark.parametrize(("name", "tab"), [("t.tsv", "\t"), ("t.csv", ",")])
def test_rows_between_two_quotation_marks_are_not_lost(name: str, tab: str, tmp_path: Path) -> None:
    lines = ["000.png,a", '001.png,"b', "002.png,a", '003.png,b"', "004.png,a"]
    table = write_table(tmp_path, [line.replace(",", tab) for line in lines], f"path{tab}label", name)
    failure = refused(table)
    assert (failure.code, (failure.found or "").startswith("line 3 and the next ones, with 002.png")) == (65, True)
    assert "quotation mark" in failure.what


def test_a_cell_of_several_lines_is_one_cell(tmp_path: Path) -> None:
    lines = ['000.png,a,"one, two', 'three, four"', "001.png,b,"]
    assert open_unsplit(write_table(tmp_path, lines, "path,label,remark", images=2)).classes == ("a", "b")


def test_a_quotation_mark_that_is_never_closed_is_named_where_it_opens(tmp_path: Path) -> None:
    failure = refused(write_table(tmp_path, ["000.png,a", '001.png,"b', *["002.png,a"] * 40], images=3))
    assert (failure.code, (failure.found or "").partition(":")[0]) == (65, "line 3")


@pytest.mark.parametrize(
    ("header", "cell", "noted"),
    [("path,label", '"b"', True), ('path,"label"', '"b"', False), ("path,label", '"b""c"', False)],
)
def test_needless_quotation_marks_between_tabs_are_noted(header: str, cell: str, noted: bool, tmp_path: Path) -> None:
    lines = [line.replace(",", "\t") for line in (header, "000.png,a", f"001.png,{cell}")]
    table = write_table(tmp_path, lines[1:], lines[0], "t.tsv")
    note = 'line 3 of the table: "b" is read without its quotation marks, as in a CSV file'
    assert open_unsplit(table).notes == ((note,) if noted else ())


def test_columns_that_are_not_used_are_named_at_check_and_start(photos: Path) -> None:
    table = copied("header-comma.csv", photos)
    assert summary_of(table).notes == open_unsplit(table).notes == ("not used of the table: columns: size, cm",)


def test_comments_and_missing_cells_are_counted(tmp_path: Path) -> None:
    lines = ["# seen in May", "path,label,height", "000.png,a,1", "001.png,b"]
    notes = open_unsplit(write_table(tmp_path, lines, "# made by hand")).notes
    assert notes == (
        "comments before the header line of the table are not read: 2",
        "not used of the table: columns: height",
        "line 5 of the table: cells are missing at the end, in columns that are not used",
    )


def test_a_header_line_that_is_a_comment_is_named(tmp_path: Path) -> None:
    failure = refused(write_table(tmp_path, rows("ab"), "# path,label"))
    assert failure.found == "line 2: 000.png,a"
    assert "remove the # in front of it (line 1: # path,label)" in failure.fix


SPLIT_COLUMNS = {  # name -> cells
    "Split": ["train", "train", "val", "test"],
    "subset": ["Training", "Training", "Validation", "Validation"],
    "set": ["train", "train", "valid", "valid"],
    "phase": ["train", "train", "dev", "dev"],
    "is_valid": ["False", "False", "True", "True"],
    "is_test": ["0", "0", "1", "1"],
}


@pytest.mark.parametrize(("name", "cells"), SPLIT_COLUMNS.items(), ids=SPLIT_COLUMNS)
def test_a_column_of_splits_under_another_name_is_warned_of_and_the_fix_reads_it(
    name: str, cells: list[str], tmp_path: Path
) -> None:
    table = write_table(tmp_path, rows("abab", cells), f"path,label,{name}")
    (warning,) = summary_of(table).warnings
    assert warning.endswith(f"fix: data.columns.split={name}")
    splits = open_unsplit(table, columns={"split": name})
    measured = [len(split.labels) for split in (splits.validation, splits.test) if split is not None]
    assert (len(splits.training.labels), sum(measured)) == (2, 2)


def test_a_column_of_folds_is_warned_of_and_the_fix_keeps_each_together(tmp_path: Path) -> None:
    table = write_table(tmp_path, rows("ab" * 10, [number // 4 for number in range(20)]), "path,label,fold")
    (warning,) = summary_of(table).warnings
    assert warning.endswith("fix: data.columns.group=fold data.fold=1/5")
    data = DataConfig(name="table", root=str(table), image_size=8, columns={"group": "fold"}, fold="1/5")
    validation = registry.open_splits(data).validation
    assert len({int(Path(path).stem) // 4 for path in validation.paths}) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(("name", "key"), [("patient_id", "group"), ("Weight", "weight"), ("Group", "group")])
def test_columns_of_groups_and_weights_are_named_with_their_key(name: str, key: str, tmp_path: Path) -> None:
    table = write_table(tmp_path, rows("abab", [1, 2, 3, 4]), f"path,label,{name}")
    assert [warning.rpartition("fix: ")[2] for warning in summary_of(table).warnings] == [f"data.columns.{key}={name}"]


def test_paths_that_begin_with_the_names_of_splits_are_warned_of(tmp_path: Path) -> None:
    paths = [f"{split}/{number}.png" for split in ("train", "Val") for number in range(2)]
    for number, path in enumerate(paths):
        write_image(tmp_path / path, number)
    table = write_table(tmp_path, [f"{path},{'ab'[number % 2]}" for number, path in enumerate(paths)], images=0)
    (warning,) = summary_of(table).warnings
    assert warning.startswith("the paths in the table begin with train and val, and it has no column split")


@pytest.mark.parametrize("cells", ["wxyz", "wwww"])
def test_a_column_called_set_that_holds_something_else_is_no_split(cells: str, tmp_path: Path) -> None:
    assert summary_of(write_table(tmp_path, rows("abab", cells), "path,label,set")).warnings == ()


def test_a_windows_encoding_is_offered_with_the_line_as_it_would_be(tmp_path: Path) -> None:
    table = write_table(tmp_path, rows(["café", "thé"]))
    table.write_bytes(table.read_text().encode("cp1252"))
    failure = refused(table)
    assert (failure.code, failure.found) == (65, "line 2, read as Windows-1252: 000.png,café")
    assert "iconv -f WINDOWS-1252 -t UTF-8" in failure.fix


def test_a_bad_byte_far_down_is_named_with_its_line(tmp_path: Path) -> None:
    table = write_table(tmp_path, rows(["a", "b"] * 700), images=0)
    table.write_bytes(table.read_bytes() + b"x.png,th\xe9\n")
    assert refused(table).found == "line 1402, read as Windows-1252: x.png,thé"


FOREIGN_PATHS = {
    "backslashes": ("im\\{}.png", "write / instead of \\ in the column"),
    "windows": ("C:\\Users\\me\\im\\{}.png", "remove C:\\Users\\me\\ from the beginning of the paths, and write /"),
    "another-computer": ("/home/me/photos/im/{}.png", "remove /home/me/photos/ from the beginning of the paths"),
    "a-folder-too-many": ("photos/im/{}.png", "remove photos/ from the beginning of the paths"),
}


@pytest.mark.parametrize(("path", "fix"), FOREIGN_PATHS.values(), ids=FOREIGN_PATHS)
def test_paths_of_another_computer_have_the_fix_that_fits(path: str, fix: str, photos: Path) -> None:
    lines = [f"{path.format(number)},{'ab'[number % 2]}" for number in range(8)]
    failure = refused(write_table(photos, lines, images=0))
    assert (failure.code, failure.fix.startswith(fix)) == (66, True), failure.fix
