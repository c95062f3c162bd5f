"""What `train data pack` writes is what was planned, or nothing is committed; and groups and weights are not lost."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tars import data_of, png, write_tar

from entrypoint import Failure
from train.config.schema import DataConfig
from train.data import registry, statistics
from train.data.class_folders import IMAGE_SUFFIXES
from train.data.shards import index as shard_index
from train.data.shards import packing
from train.data.shards.packing import Scaling
from train.data.shards.source import ShardSource
from train.data.splits import DataSplits

PATIENTS = 10


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    """Four scans of each of ten patients, whose number is the value of all pixels."""
    for number in range(4 * PATIENTS):
        path = tmp_path / "scans" / f"class-{number % 2}" / f"patient-{number // 4}_{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(number // 4, side=16))
    return tmp_path / "scans"


def folder_of(scans: Path, **values: object) -> DataConfig:
    return replace(DataConfig(), name="folder", root=str(scans), image_size=8, **values)  # type: ignore[arg-type]


def table_of(scans: Path, columns: str, rows: Sequence[str], **values: object) -> DataConfig:
    table = scans.parent / "table.csv"
    table.write_text("\n".join([columns, *rows]) + "\n")
    return replace(DataConfig(), name="table", root=str(table), image_size=8, **values)  # type: ignore[arg-type]


def packed(data: DataConfig, output: Path, **options: object) -> tuple[shard_index.ShardIndex, str]:
    lines: list[str] = []
    options = {"scaling": None, "shard_bytes": 2000} | options
    index = packing.pack_images(data, output, say=lines.append, **options)  # type: ignore[arg-type]
    return index, "\n".join(lines)


def refused(data: DataConfig, output: Path, code: int, *words: str) -> None:
    with pytest.raises(Failure) as caught:
        packed(data, output)
    assert (caught.value.code, [word for word in words if word not in str(caught.value)]) == (code, []), caught.value


def patients(splits: DataSplits) -> tuple[set[int], set[int]]:
    """The patients of the training and of the validation split."""
    training, validation = (
        set(source.read(np.arange(len(source.labels)))[:, 0, 0, 0].tolist())
        for source in (splits.training, splits.validation)
    )
    return training, validation


def test_images_without_the_ending_of_an_image_are_all_packed(scans: Path, tmp_path: Path) -> None:
    paths = sorted(scans.rglob("*.png"))
    for path in paths[::2]:
        path.rename(path.with_suffix(".dcm2"))
    for path in paths[1::4]:
        path.rename(path.with_suffix(""))
    rows = [f"{path.relative_to(tmp_path)},{path.parent.name}" for path in sorted(scans.rglob("patient*"))]
    index, _ = packed(table_of(scans, "path,label", rows, val_fraction=0.0), tmp_path / "out")
    assert (len(index.entries), index.entries["label"].tolist().count(0)) == (40, 20)


def test_images_of_every_ending_that_is_read_are_packed(scans: Path, tmp_path: Path) -> None:
    for ending in IMAGE_SUFFIXES:
        (scans / "class-0" / f"more{ending}").write_bytes(png(1, side=16))
        (scans / "class-1" / f"more{ending.upper()}").write_bytes(png(1, side=16))
    index, said = packed(folder_of(scans, val_fraction=0.0), tmp_path / "out")
    assert (len(index.entries), "not read" in said) == (40 + 2 * len(IMAGE_SUFFIXES), False)


def test_files_that_are_not_packed_are_said(scans: Path, tmp_path: Path) -> None:
    (scans / "class-0" / "notes.docx").touch()
    assert "note: 1 file is not read: .docx (1)" in packed(folder_of(scans), tmp_path / "out")[1]


def test_a_shard_that_lost_an_image_gets_no_index(scans: Path, tmp_path: Path) -> None:
    output, data = tmp_path / "out", folder_of(scans, val_fraction=0.0)
    packed(data, output)
    (output / "index.json").unlink()
    write_tar(output / "train-00000.tar", {"a.png": png(1), "a.cls": b"0"})
    refused(data, output, 65, "does not hold the images that were packed into it", "train-00000.tar: 1 of")
    assert not (output / "index.json").exists()


@pytest.mark.parametrize("name", ["a\nb", "a\r", "\n", "\ufeffa", " "])
def test_a_class_that_is_no_line_is_refused_before_anything_is_written(scans: Path, tmp_path: Path, name: str) -> None:
    (scans / "class-0").rename(scans / name)
    refused(folder_of(scans), tmp_path / "out", 65, "the name of a class", repr(name))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("inside", [".", "class-0", "shards", "class-0/x/y", "../link/shards"])
def test_no_shards_are_written_into_the_folder_that_is_packed(scans: Path, tmp_path: Path, inside: str) -> None:
    (tmp_path / "link").symlink_to(scans)
    before = sorted(scans.rglob("*"))
    refused(folder_of(scans), scans / inside, 64, "--output lies in the folder that is packed")
    assert sorted(scans.rglob("*")) == before


def test_shards_beside_a_table_of_images_are_written(scans: Path, tmp_path: Path) -> None:
    rows = [f"{path.relative_to(tmp_path)},{path.parent.name}" for path in sorted(scans.rglob("*.png"))]
    assert len(packed(table_of(scans, "path,label", rows), scans / "out")[0].entries) == 40


def replaced(path: Path) -> None:
    path.write_bytes(png(77, side=16))


def touched(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def longer(path: Path) -> None:
    status = path.stat()
    path.write_bytes(path.read_bytes() + b"x")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("change", [replaced, touched, longer])
def test_shards_of_an_image_that_was_replaced_since_are_refused(
    scans: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    packed(folder_of(scans), tmp_path / "out")
    change(scans / "class-0" / "patient-0_0.png")
    refused(folder_of(scans), tmp_path / "out", 73, "is of other images", "--output DIR")


def test_a_broken_image_is_packed_as_it_is_where_a_training_would_skip_it(scans: Path, tmp_path: Path) -> None:
    (scans / "class-0" / "patient-0_0.png").write_bytes(b"broken")
    scaling = Scaling(size=16, quality=90)
    with pytest.raises(Failure, match=r"data\.max_bad_images=1") as caught:
        packed(folder_of(scans), tmp_path / "out", scaling=scaling)
    assert caught.value.code == 65
    index, said = packed(folder_of(scans, max_bad_images=1), tmp_path / "more", scaling=scaling)
    assert (len(index.entries), "patient-0_0.png: no image that Pillow knows" in said) == (40, True)
    (scans / "class-0" / "patient-0_2.png").write_bytes(b"broken")
    with pytest.raises(Failure, match="cannot be read"):
        packed(folder_of(scans, max_bad_images=1), tmp_path / "most", scaling=scaling)


def grouped_folder(scans: Path, **values: object) -> DataConfig:
    return folder_of(scans, group=r"patient-\d+", **values)


def grouped_table(scans: Path, **values: object) -> DataConfig:
    paths = sorted(scans.rglob("*.png"), reverse=True)
    rows = [f"{path.relative_to(scans.parent)},{path.parent.name},{path.name.split('_')[0]}" for path in paths]
    return table_of(scans, "path,label,group", rows, **values)


@pytest.mark.parametrize("grouped", [grouped_folder, grouped_table])
@pytest.mark.parametrize(
    "split", [{"val_fraction": 0.3}, {"fold": "1/5"}, {"fold": "4/5"}, {"val_fraction": 0.2, "test_fraction": 0.2}]
)
def test_shards_keep_a_group_in_one_split_and_the_same_groups_as_the_images(
    scans: Path, tmp_path: Path, grouped: Callable[..., DataConfig], split: dict[str, object]
) -> None:
    packed(grouped(scans, val_fraction=0.0), tmp_path / "out")
    data = data_of(tmp_path / "out", **split)
    of_shards = registry.open_splits(data)
    training, validation = patients(of_shards)
    assert (training & validation, bool(validation)) == (set(), True)
    assert (training, validation) == patients(registry.open_splits(grouped(scans, **split)))
    assert "groups" in of_shards.notes[0]


def test_more_folds_than_groups_are_refused_of_shards_too(scans: Path, tmp_path: Path) -> None:
    packed(grouped_folder(scans, val_fraction=0.0), tmp_path / "out")
    with pytest.raises(Failure, match="fewer groups than the 11 folds"):
        registry.open_splits(data_of(tmp_path / "out", fold="1/11"))


def test_images_without_a_group_are_groups_by_themselves(tmp_path: Path) -> None:
    members = {}
    for number in range(20):
        group = ', "group": "a"' if number < 5 else ""
        members |= {
            f"{number:02d}.json": f'{{"label": {number % 2}{group}}}'.encode(),
            f"{number:02d}.png": png(number),
        }
    write_tar(tmp_path / "a.tar", members)
    groups = shard_index.write_index(tmp_path, processes=1).groups
    assert groups is not None
    assert (len(set(groups[:5].tolist())), len(set(groups.tolist()))) == (1, 16)


def test_a_group_beside_the_label_of_another_member_counts_and_is_not_passed_over(tmp_path: Path) -> None:
    members = {}
    for number in range(4):
        members |= {
            f"{number}.cls": b"0",
            f"{number}.json": b'{"group": "%d"}' % (number // 2),
            f"{number}.png": png(1),
        }
    write_tar(tmp_path / "a.tar", members)
    lines: list[str] = []
    groups = shard_index.write_index(tmp_path, processes=1, say=lines.append).groups
    assert groups is not None
    assert (groups.tolist(), lines) == ([0, 0, 1, 1], [])


@pytest.mark.parametrize(("task", "labels"), [("regression", ["1.5", "2.25"]), ("multi_label", ["a;b", ""])])
def test_labels_of_other_tasks_keep_their_groups(scans: Path, tmp_path: Path, task: str, labels: list[str]) -> None:
    rows = [
        f"{path.relative_to(tmp_path)},{labels[number % 2]},{number // 8}"
        for number, path in enumerate(sorted(scans.rglob("*.png")))
    ]
    index, _ = packed(table_of(scans, "path,label,group", rows, task=task, val_fraction=0.0), tmp_path / "out")
    assert index.groups is not None
    assert (index.labels.task, np.bincount(index.groups).tolist()) == (task, [8] * 5)
    splits = registry.open_splits(data_of(tmp_path / "out", val_fraction=0.2))
    assert (len(splits.validation.labels), splits.task) == (8, task)


def test_a_group_in_two_splits_of_shards_is_refused(tmp_path: Path) -> None:
    for name in ("train", "val"):
        write_tar(tmp_path / f"{name}.tar", {"0.json": b'{"label": 0, "group": "patient-7"}', "0.png": png(1)})
    with pytest.raises(Failure, match="groups are in both splits, training and validation") as caught:
        shard_index.write_index(tmp_path, processes=1)
    assert (caught.value.code, caught.value.found) == (65, "patient-7")


@pytest.mark.parametrize("array", [np.arange(7), np.full(40, -1), np.full(40, 40), np.zeros(40, np.int32)])
def test_groups_that_somebody_else_wrote_are_checked(scans: Path, tmp_path: Path, array: np.ndarray) -> None:
    packed(grouped_folder(scans, val_fraction=0.0), tmp_path / "out")
    np.save(tmp_path / "out" / "groups.npy", array)
    with pytest.raises(Failure, match=r"groups\.npy") as caught:
        registry.open_splits(data_of(tmp_path / "out"))
    assert caught.value.code == 65


def digests(data: DataConfig) -> dict[str, str]:
    found: dict[str, str] = statistics.data_fingerprint(registry.open_splits(data), data.root)["digests"]
    return found


def test_the_same_images_in_other_shard_files_are_another_order(scans: Path, tmp_path: Path) -> None:
    data = folder_of(scans, val_fraction=0.0)
    for name, size in {"few": 10**9, "many": 1000}.items():
        packed(data, tmp_path / name, shard_bytes=size)
    few, many = (digests(data_of(tmp_path / name, val_fraction=0.0)) for name in ("few", "many"))
    assert {key for key in few if few[key] != many[key]} == {"order"}


def test_shards_at_another_place_are_the_same(scans: Path, tmp_path: Path) -> None:
    packed(folder_of(scans), tmp_path / "out")
    before = digests(data_of(tmp_path / "out"))
    assert digests(data_of((tmp_path / "out").rename(tmp_path / "moved"))) == before


def weighted(scans: Path, weights: Sequence[object] | None) -> DataConfig:
    rows = [f"{path.relative_to(scans.parent)},{path.parent.name}" for path in sorted(scans.rglob("*.png"))]
    if weights is None:
        return table_of(scans, "path,label", rows)
    return table_of(
        scans, "path,label,weight", [f"{row},{weights[number % len(weights)]}" for number, row in enumerate(rows)]
    )


@pytest.mark.parametrize("others", [[1, 3], [2, 1], None])
def test_other_weights_of_a_table_are_other_data(scans: Path, others: Sequence[object] | None) -> None:
    before = digests(weighted(scans, [1, 2]))
    after = digests(weighted(scans, others))
    assert {key for key in before if before[key] != after[key]} == {"weights"}


def test_weights_that_count_the_same_are_the_same_data(scans: Path) -> None:
    assert digests(weighted(scans, [1, 2])) == digests(weighted(scans, [2, 4]))


def test_the_place_of_a_validation_shard_is_not_the_order_of_training(scans: Path, tmp_path: Path) -> None:
    packed(folder_of(scans, val_fraction=0.0), tmp_path / "out")
    before = digests(data_of(tmp_path / "out", val_fraction=0.0))
    write_tar(tmp_path / "out" / "val-0.tar", {"0.cls": b"1", "0.png": png(1)})
    shard_index.write_index(tmp_path / "out", processes=1)
    after = digests(data_of(tmp_path / "out", val_fraction=0.0))
    assert {key for key in before if before[key] != after[key]} == {"held_out"}
    assert isinstance(registry.open_splits(data_of(tmp_path / "out")).training, ShardSource)
