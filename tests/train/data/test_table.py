"""Images and labels that a CSV or TSV file lists."""

from __future__ import annotations

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
