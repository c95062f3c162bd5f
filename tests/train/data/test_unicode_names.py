"""Names in two Unicode forms are one name, and of others that look the same it is said how they differ."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest
from images import write_image

from entrypoint import Failure
from train import names
from train.config import resume_rules
from train.config.schema import DataConfig
from train.data import registry, shard_labels
from train.data.shards import index as shard_index
from train.inference import checkpoints, evaluate
from train.tasks import class_balance

NFC, NFD = "caf\u00e9", "cafe\u0301"  # a Mac's zip holds the second


def folder_of(root: Path) -> DataConfig:
    return DataConfig(name="folder", root=str(root), image_size=8)


def write_split(folder: Path, *classes: str, count: int = 4) -> None:
    """Images of these classes; each class has a brightness of its own."""
    for brightness, name in enumerate(classes):
        for number in range(count):
            write_image(folder / name / f"{number}.png", 40 * brightness + number)


def test_a_class_is_one_in_folders_of_two_unicode_forms(tmp_path: Path) -> None:
    for split, name in (("train", NFC), ("val", NFD), ("test", NFD)):
        write_split(tmp_path / split, name, "tea", "cafz")
    splits = registry.open_splits(folder_of(tmp_path))
    assert splits.classes == ("cafz", NFC, "tea")
    assert splits.test is not None
    for source in (splits.training, splits.validation, splits.test):
        assert source.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
        assert source.read(np.array([4]))[0, 0, 0, 0] == 0  # the class that was written first


def test_a_folder_of_decomposed_names_alone_has_composed_classes(tmp_path: Path) -> None:
    write_split(tmp_path, NFD, "tea")
    splits = registry.open_splits(folder_of(tmp_path))
    assert splits.classes == (NFC, "tea")


def test_a_group_is_found_in_either_form(tmp_path: Path) -> None:
    for label in ("a", "b"):
        for form in (NFC, NFD, "tea"):
            for number in range(2):
                write_image(tmp_path / label / f"{form}-{number}{form == NFC}.png", number)
    data = DataConfig(name="folder", root=str(tmp_path), group=f"{NFD}|tea", val_fraction=0.4)
    assert "in 1 of 2 groups" in registry.open_splits(data).notes[0]


def test_one_name_in_two_forms_in_one_folder_is_refused_with_the_difference(tmp_path: Path) -> None:
    write_split(tmp_path, NFC, NFD, "tea")
    with pytest.raises(Failure, match="in two Unicode forms") as caught:
        registry.open_splits(folder_of(tmp_path))
    assert caught.value.found == f"{NFD!a} and {NFC!a}, in {tmp_path}"


ALIKE = {
    "case": ("Cat", "cat"),
    "a space at the end": ("cat", "cat "),
    "a space that does not break": ("big cat", "big\u00a0cat"),
    "a space without width": ("cat", "ca\u200bt"),
    "a byte order mark": ("cat", "\ufeffcat"),
    "wide letters": ("cat", "\uff43at"),
}


@pytest.mark.parametrize("pair", ALIKE.values(), ids=ALIKE)
def test_classes_that_look_alike_are_shown_with_their_difference(tmp_path: Path, pair: tuple[str, str]) -> None:
    write_split(tmp_path / "both", *pair)
    (warning,) = registry.open_splits(folder_of(tmp_path / "both")).warnings
    shown = " and ".join(map(ascii, sorted(pair)))
    assert warning == f"classes look alike: {shown}. fix: if they are one class, give them one name"
    write_split(tmp_path / "apart" / "train", pair[0], "tea")
    write_split(tmp_path / "apart" / "val", pair[1], "tea")
    with pytest.raises(Failure, match="folders for training and for evaluation differ") as caught:
        registry.open_splits(folder_of(tmp_path / "apart"))
    assert f"have the same names: {shown}" in str(caught.value.fix)


def test_names_that_merely_resemble_each_other_are_left_alone() -> None:
    assert names.look_alike_warnings(["cat", "cut", "\u732b", "tea", "\u00fcber", "uber"]) == ()


def table_of(folder: Path, *rows: str, form: str = NFD) -> DataConfig:
    """Eight images, whose names on disk have this form, and a table of them."""
    for number in range(8):
        write_image(folder / form / f"{form} {number}.png", number)
    (folder / "labels.csv").write_text("\n".join(("path,label,split", *rows)) + "\n")
    return DataConfig(name="table", root=str(folder / "labels.csv"), image_size=8)


@pytest.mark.parametrize(("written", "stored"), [(NFC, NFD), (NFD, NFC)], ids=["NFC", "NFD"])
def test_a_tables_files_are_found_in_the_other_form_and_counted(tmp_path: Path, written: str, stored: str) -> None:
    rows = (f"{written}/{written} {n}.png,{'ab'[n % 2]},{'train' if n < 4 else 'val'}" for n in range(8))
    splits = registry.open_splits(table_of(tmp_path, *rows, form=stored))
    assert splits.training.read(np.array([0]))[0, 0, 0, 0] == 0
    (note,) = splits.notes
    assert note.startswith("8 of 8 paths of ")


def test_a_file_is_read_as_it_is_written_where_both_forms_are_there(tmp_path: Path) -> None:
    for number, form in enumerate((NFC, NFD) * 2):
        write_image(tmp_path / f"{form}{number // 2}.png", number)
    rows = (f"{form}{number // 2}.png,{'ab'[number % 2]}" for number, form in enumerate((NFC, NFD) * 2))
    (tmp_path / "labels.csv").write_text("\n".join(("path,label", *rows)) + "\n")
    splits = registry.open_splits(DataConfig(name="table", root=str(tmp_path / "labels.csv"), val_fraction=0.0))
    assert splits.training.read(np.arange(4))[:, 0, 0, 0].tolist() == [0, 1, 2, 3]
    assert splits.notes == ()


def test_one_file_under_two_forms_is_twice_in_the_table(tmp_path: Path) -> None:
    rows = [f"{NFD}/{NFD} {n}.png,{'ab'[n % 2]},train" for n in range(8)]
    with pytest.raises(Failure, match="has an image in two splits"):
        registry.open_splits(table_of(tmp_path, *rows, f"{NFC}/{NFC} 0.png,a,val"))


LABELS = {"NFD": NFD, "a space that does not break": f"{NFC}\u00a0", "a byte order mark": f"\ufeff{NFC}"}


@pytest.mark.parametrize("label", LABELS.values(), ids=LABELS)
def test_labels_of_tables_and_shards_that_look_the_same_are_one_class(tmp_path: Path, label: str) -> None:
    rows = (f"{NFD}/{NFD} {n}.png,{(NFC, label, 'tea')[n % 3]},{'train' if n < 6 else 'val'}" for n in range(8))
    data = table_of(tmp_path, *rows)
    assert registry.open_splits(data).classes == (NFC, "tea")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number in range(8):
            archive.add(tmp_path / NFD / f"{NFD} {number}.png", f"{NFC}{number}.png")
            (tmp_path / "label").write_text((NFC, label, "tea")[number % 3])
            archive.add(tmp_path / "label", f"{NFD}{number}.cls")
    assert shard_index.write_index(tmp_path).labels.classes == (NFC, "tea")
    (tmp_path / "classes.txt").write_text(f"\ufeff{NFD}\ntea\n")
    assert shard_index.write_index(tmp_path).labels.classes == (NFC, "tea")


def test_a_label_that_differs_in_case_from_all_classes_says_so(tmp_path: Path) -> None:
    rows = [f"{NFD}/{NFD} {n}.png,{'ab'[n % 2]},train" for n in range(7)]
    with pytest.raises(Failure, match="has a class that no train row has") as caught:
        registry.open_splits(table_of(tmp_path, *rows, f"{NFD}/{NFD} 7.png,B,val"))
    assert str(caught.value.found).endswith("; 'B' and 'b'")


@pytest.mark.parametrize("name", ["folder", "table"])
def test_a_root_in_another_form_is_named_as_it_is_on_the_disk(tmp_path: Path, name: str) -> None:
    suffix = ".csv" if name == "table" else ""
    (tmp_path / f"{NFD}{suffix}").mkdir()
    with pytest.raises(Failure) as caught:
        registry.open_splits(DataConfig(name=name, root=str(tmp_path / f"{NFC}{suffix}")))
    expected = (
        f'write it in the Unicode form of the disk, in YAML "{tmp_path}/cafe\\u0301{suffix}"; or set data.root to'
    )
    assert str(caught.value.fix).startswith(expected)


def test_a_run_that_recorded_decomposed_classes_goes_on_and_is_measured(tmp_path: Path) -> None:
    write_split(tmp_path, NFC, "tea")
    resume_rules.refuse_data_changes({"classes": [NFD, "tea"]}, {"classes": [NFC, "tea"]}, tmp_path)
    recorded = checkpoints.recorded_classes({"classes": [NFD, "milk", "tea"]})
    splits = evaluate.map_to_training_classes(registry.open_splits(folder_of(tmp_path)), recorded)
    assert splits.classes == (NFC, "milk", "tea")
    assert set(splits.training.labels.tolist()) == {0, 2}


def test_class_weights_are_those_of_the_names_in_either_form() -> None:
    weights = {NFD: 2.0, "tea": 1.0}
    assert class_balance.weights_in_order(weights, (NFC, "tea")) == [2, 1]
    assert class_balance.describe_class_weights(weights, (NFC, "tea")) == f"{NFC}: 2, tea: 1"


@pytest.mark.parametrize("other", [NFD, "Caf\u00e9"])
def test_weights_of_names_that_look_like_a_class_are_refused_with_the_difference(other: str) -> None:
    with pytest.raises(Failure) as refused:
        class_balance.weights_in_order({other: 2.0, NFC: 1.0, "tea": 1.0}, (NFC, "tea"))
    assert ascii(other) in (refused.value.found or "")


def test_a_group_of_shards_is_one_in_both_forms() -> None:
    groups = {shard_labels.parse_annotation(".json", f'{{"label": "a", "group": "{form}"}}')[1] for form in (NFC, NFD)}
    assert groups == {NFC}
