"""What the labels in tar shards become: a class, several labels, or a number for each image."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jobs import trained
from label_tables import rows, write_table
from tars import data_of, png, write_tar

from entrypoint import Failure
from train.config.schema import DataConfig
from train.data import registry
from train.data.shards import index as shard_index
from train.data.shards import packing
from train.data.splits import DataSplits


def indexed(folder: Path, contents: list[Any], task: str = "auto") -> Path:
    """A shard of images with a .json of these contents."""
    members = {}
    for number, content in enumerate(contents):
        members |= {f"{number:03d}.png": png(number), f"{number:03d}.json": json.dumps(content).encode()}
    write_tar(folder / "0.tar", members)
    shard_index.write_index(folder, processes=1, task=task)
    return folder


def opened(folder: Path, **values: object) -> DataSplits:
    return registry.open_splits(data_of(folder, val_fraction=0.0, **values))


def test_a_list_is_several_labels(tmp_path: Path) -> None:
    splits = opened(indexed(tmp_path, [{"labels": ["dog", "cat"]}, {"labels": []}, {"label": "sofa"}]))
    assert (splits.task, splits.classes) == ("multi_label", ("cat", "dog", "sofa"))
    assert splits.training.labels.tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 1]]
    assert splits.training.labels.dtype == torch.float32


def test_a_number_with_a_fraction_is_a_number_to_predict(tmp_path: Path) -> None:
    splits = opened(indexed(tmp_path, [{"target": 1.5}, {"target": -2}, {"target": 30}]))
    assert (splits.task, splits.classes, splits.training.labels.tolist()) == ("regression", ("target",), [1.5, -2, 30])
    assert splits.target is not None
    assert splits.target.mean == pytest.approx(29.5 / 3)


def test_integers_are_numbers_to_predict_if_the_index_is_asked_for_that(tmp_path: Path) -> None:
    splits = opened(indexed(tmp_path, [{"label": 3}, {"label": 7}], task="regression"))
    assert (splits.task, splits.training.labels.tolist()) == ("regression", [3, 7])


@pytest.mark.parametrize(
    ("contents", "task", "says"),
    [
        ([{"labels": ["a", "b"]}, {"label": "a"}], "classification", "an image has several labels"),
        ([{"label": 1.5}, {"label": "a"}], "regression", "a label is no number"),
    ],
)
def test_labels_of_another_kind_than_asked_for_are_refused(
    tmp_path: Path, contents: list[Any], task: str, says: str
) -> None:
    with pytest.raises(Failure, match=says) as caught:
        indexed(tmp_path, contents, task)
    assert (caught.value.code, f"train data index {tmp_path} data.task=" in caught.value.fix) == (65, True)


def test_an_index_for_another_task_is_refused_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="indexed for another task") as caught:
        opened(indexed(tmp_path, [{"label": 3}, {"label": 7}]), task="regression")
    assert (caught.value.code, f"train data index {tmp_path} data.task=regression" in caught.value.fix) == (64, True)


def test_numbers_that_are_all_equal_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="the same number"):
        opened(indexed(tmp_path, [{"target": 1.5}, {"target": 1.5}]))


def of_members(folder: Path, samples: list[dict[str, str | bytes]]) -> Path:
    """A shard of images with members of these endings and contents."""
    members = {}
    for number, contents in enumerate(samples):
        members[f"{number:03d}.png"] = png(number)
        for ending, text in contents.items():
            members[f"{number:03d}.{ending}"] = text.encode() if isinstance(text, str) else text
    write_tar(folder / "0.tar", members)
    shard_index.write_index(folder, processes=1)
    return folder


def refused(folder: Path, samples: list[dict[str, str | bytes]], *words: str) -> None:
    with pytest.raises(Failure) as caught:
        of_members(folder, samples)
    assert (caught.value.code, [word for word in words if word not in str(caught.value)]) == (65, []), caught.value
    assert not (folder / "index.json").exists()


@pytest.mark.parametrize("ending", ["json", "txt"])
def test_what_is_long_is_not_read_where_a_cls_gives_the_label(tmp_path: Path, ending: str) -> None:
    masks = json.dumps({"label": 7, "mask": "0" * 2**20})
    folder = of_members(tmp_path, [{ending: masks, "cls": "1"}, {"cls": "0", ending: masks}])
    assert opened(folder).training.labels.tolist() == [1, 0]


def test_a_key_twice_that_is_no_label_passes(tmp_path: Path) -> None:
    text = '{"label": 1, "w": 1, "w": 2, "boxes": [{"label": 1, "label": 2}]}'
    assert opened(of_members(tmp_path, [{"json": text}, {"json": '{"label": 0}'}])).training.labels.tolist() == [1, 0]


def test_a_label_twice_is_refused_by_its_key(tmp_path: Path) -> None:
    refused(tmp_path, [{"json": '{"label": 1, "label": 2}'}], "000.json", "the key 'label' is there twice")


@pytest.mark.parametrize("contents", [{"json": '{"label": 3}'}, {"cls": "3"}, {"txt": "3"}])
def test_a_mark_of_the_byte_order_is_no_part_of_a_label(tmp_path: Path, contents: dict[str, str]) -> None:
    marked = {ending: text.encode("utf-8-sig") for ending, text in contents.items()}
    assert opened(of_members(tmp_path, [{"cls": "0"}, {**marked}])).training.labels.tolist() == [0, 3]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "1e39"])
def test_a_number_that_is_none_to_predict_is_refused_by_its_sample(tmp_path: Path, number: str) -> None:
    samples: list[dict[str, str | bytes]] = [{"json": f'{{"target": {row}.5}}'} for row in range(3)]
    refused(tmp_path, [*samples, {"json": f'{{"target": {number}}}'}], "003.json", "'target'")


@pytest.mark.parametrize("ending", ["cls", "txt"])
@pytest.mark.parametrize("number", ["nan", "inf", "-Infinity", "1e39"])
def test_a_text_that_is_no_number_to_predict_makes_no_classes_of_the_others(
    tmp_path: Path, ending: str, number: str
) -> None:
    refused(tmp_path, [{ending: "1.5"}, {ending: "2"}, {ending: number}], f"'{number}'", "not finite or too large")


@pytest.mark.parametrize(("name", "other"), [("01", "1"), ("1", "001"), ("0", "00"), ("٣", "3")])
def test_a_number_of_a_class_in_two_spellings_is_refused(tmp_path: Path, name: str, other: str) -> None:
    refused(tmp_path, [{"cls": name}, {"cls": other}, {"cls": "2"}], "in two ways", f"'{name}'", f"'{other}'")


def test_numbers_that_all_have_zeros_before_them_are_classes(tmp_path: Path) -> None:
    assert opened(of_members(tmp_path, [{"cls": "007"}, {"cls": "001"}])).training.labels.tolist() == [7, 1]


@pytest.mark.parametrize("labels", [("9" * 4000, "1"), ("9" * 4000, "a"), ("1", "a" * 4000)])
def test_a_long_label_is_cut_in_a_message(tmp_path: Path, labels: tuple[str, str]) -> None:
    with pytest.raises(Failure) as caught:
        of_members(tmp_path, [{"cls": label} for label in labels])
    assert len(str(caught.value)) < 1000


TABLES = {
    "multi_label": [["cat; dog", "dog", "", "cat|sofa"][number % 4] for number in range(40)],
    "regression": [str(number / 4 - 3) for number in range(40)],
}


@pytest.mark.parametrize("task", TABLES)
def test_a_packed_table_keeps_the_labels_of_its_images_and_its_splits(tmp_path: Path, task: str) -> None:
    table = write_table(tmp_path, rows(TABLES[task]))
    data = DataConfig(name="table", root=str(table), image_size=8, task=task, val_fraction=0.25)
    packing.pack_images(data, tmp_path / "shards", scaling=None, say=lambda line: None)
    of_table, of_shards = registry.open_splits(data), opened(tmp_path / "shards")
    assert (of_shards.task, of_shards.classes) == (of_table.task, of_table.classes)
    for name in ("training", "validation"):
        known, read = (getattr(splits, name).labels.numpy() for splits in (of_table, of_shards))
        assert np.array_equal(np.sort(known, axis=0), np.sort(read, axis=0))


@pytest.mark.parametrize("task", TABLES)
def test_a_share_of_shards_validates_and_every_image_keeps_its_label(tmp_path: Path, task: str) -> None:
    values = [number / 4 for number in range(40)]
    labels = [{"target": value} if task == "regression" else {"labels": [str(int(value))]} for value in values]
    splits = registry.open_splits(data_of(indexed(tmp_path, labels, task), val_fraction=0.25))
    for source in (splits.training, splits.validation):
        images = source.read(np.arange(len(source.labels)))[:, 0, 0, 0].numpy() / 4
        expected = images if task == "regression" else np.eye(10)[images.astype(int)]
        assert np.array_equal(source.labels.numpy(), expected)
    assert len(splits.validation.labels) == 10


@pytest.mark.parametrize(("task", "metric"), [("multi_label", "map"), ("regression", "mae")])
def test_a_training_on_shards_learns_other_tasks_too(tmp_path: Path, task: str, metric: str) -> None:
    table = write_table(tmp_path, rows(TABLES[task]))
    data = DataConfig(name="table", root=str(table), image_size=8, task=task, val_fraction=0.25)
    packing.pack_images(data, tmp_path / "shards", scaling=None, say=lambda line: None)
    trainer = trained(
        tmp_path / "run",
        "data.name=shards",
        f"data.root={tmp_path / 'shards'}",
        "data.classes=3",
        "train.global_batch_size=8",
    )
    evaluated = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert trainer.state.step > 0
    assert any(metric in event for event in evaluated if event["event"] == "eval")
