"""Several labels and numbers out of arrays and of a user's own data set."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jobs import ALONE, forget_accelerate, trained
from safetensors.torch import save_file

from entrypoint import Failure
from train.config.schema import DataConfig
from train.data import custom, registry
from train.data.arrays import ArraySource
from train.data.shape import Shape
from train.data.splits import DataSplits
from train.inference import checkpoints, evaluate

COUNT = 60
IMAGES = np.random.default_rng(0).integers(0, 256, (COUNT, 8, 8, 3), np.uint8)
NUMBERS = IMAGES.mean(axis=(1, 2, 3))
TAGS = np.stack([NUMBERS > 127, np.arange(COUNT) % 3 == 0, np.arange(COUNT) % 20 == 1], axis=1)


def opened(path: Path, task: str, name: str = "npz", **settings: Any) -> Any:
    return registry.open_splits(DataConfig(name=name, root=str(path), task=task, **settings))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8"])
@pytest.mark.parametrize("column", [False, True])
def test_numbers_in_an_array_are_numbers_to_predict(tmp_path: Path, dtype: str, column: bool) -> None:
    labels = (np.arange(COUNT) % 50).astype(dtype)
    np.savez(tmp_path / "a.npz", images=IMAGES, labels=labels[:, None] if column else labels)
    splits = opened(tmp_path / "a.npz", "regression", test_fraction=0.1)
    assert (splits.task, splits.classes) == ("regression", ("number",))
    assert splits.training.labels.dtype == torch.float32
    counts = [len(split.labels) for split in (splits.training, splits.validation, splits.test)]
    assert counts == [42, 12, 6]
    for split in (splits.training, splits.validation, splits.test):
        assert split.labels.tolist() == labels[split.rows.numpy()].tolist()
    assert splits.target.mean == pytest.approx(splits.training.labels.double().mean().item())
    assert splits.target.std == pytest.approx(splits.training.labels.double().std(correction=0).item())


def test_each_tenth_of_the_numbers_is_in_the_validation_split(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=IMAGES, labels=np.arange(COUNT, dtype=np.float32))
    validation = opened(tmp_path / "a.npz", "regression", val_fraction=0.5).validation
    tenths = (validation.labels // 6).long().bincount(minlength=10)
    assert set(tenths.tolist()) == {3}


@pytest.mark.parametrize("dtype", ["bool", "float32", "int64"])
def test_a_table_of_0_and_1_holds_several_labels(tmp_path: Path, dtype: str) -> None:
    np.savez(tmp_path / "a.npz", images=IMAGES, labels=TAGS.astype(dtype))
    splits = opened(tmp_path / "a.npz", "multi_label")
    assert (splits.task, splits.classes, splits.target) == ("multi_label", ("0", "1", "2"), None)
    assert torch.equal(splits.training.labels, torch.from_numpy(TAGS).float()[splits.training.rows])
    assert all(0 < split.labels[:, 2].sum() < 3 for split in (splits.training, splits.validation))  # a rare label


def test_tensor_files_have_labels_of_each_task_too(tmp_path: Path) -> None:
    images = torch.from_numpy(IMAGES).movedim(-1, 1).contiguous()
    save_file({"images": images, "labels": torch.from_numpy(TAGS)}, tmp_path / "a.safetensors")
    assert opened(tmp_path / "a.safetensors", "multi_label", "tensor").classes == ("0", "1", "2")
    torch.save({"images": images, "labels": torch.from_numpy(NUMBERS)}, tmp_path / "a.pt")
    assert opened(tmp_path / "a.pt", "regression", "tensor").task == "regression"


def test_classes_stay_what_labels_are_unless_the_config_says_otherwise(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=IMAGES, labels=np.arange(COUNT) % 3)
    splits = opened(tmp_path / "a.npz", "auto")
    assert (splits.task, splits.training.labels.dtype) == ("classification", torch.int64)


def test_train_check_describes_the_task(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=IMAGES, labels=NUMBERS)
    data = DataConfig(name="npz", root=str(tmp_path / "a.npz"), task="regression")
    summary = registry.summarize(data, registry.open_splits(data))
    assert summary.task == "regression"
    assert "one number for each image (number): " in summary.description


class Items:
    """A user's data set whose items have this label."""

    def __init__(self, label: Any, count: int = COUNT) -> None:
        self._label, self._count = label, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: int) -> tuple[Any, Any]:
        if row >= self._count:
            raise IndexError
        return IMAGES[row], self._label(row)


LABELS = {
    "float": ("regression", lambda row: float(NUMBERS[row])),
    "numpy": ("regression", lambda row: NUMBERS[row]),
    "tensor": ("regression", lambda row: torch.tensor(NUMBERS[row])),
    "integer": ("regression", lambda row: row),
    "row": ("multi_label", lambda row: TAGS[row]),
    "list": ("multi_label", lambda row: TAGS[row].astype(int).tolist()),
    "float-tensor": ("multi_label", lambda row: torch.from_numpy(TAGS[row]).float()),
}


@pytest.fixture
def factory(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets what the user's factory returns."""

    def set_to(returned: Any) -> None:
        monkeypatch.setattr(custom.plugin, "call_factory", lambda name, key, data: returned)

    return set_to


@pytest.mark.parametrize(("task", "label"), LABELS.values(), ids=LABELS)
def test_items_have_labels_of_the_task(factory: Any, task: str, label: Any) -> None:
    factory((Items(label), None))
    splits = opened(Path("x"), task, "mine:make")
    assert splits.task == task
    assert splits.training.read(np.arange(3)).shape == (3, 8, 8, 3)
    expected = torch.stack([torch.as_tensor(label(row)).float() for row in splits.training.rows.tolist()])
    assert torch.equal(splits.training.labels, expected)
    assert (splits.target is None) == (task == "multi_label")


def test_names_of_the_labels_are_those_of_the_data_set(factory: Any) -> None:
    items = Items(lambda row: TAGS[row])
    items.classes = ["bright", "third", "rare"]  # type: ignore[attr-defined]
    factory((items, None))
    assert opened(Path("x"), "multi_label", "mine:make").classes == ("bright", "third", "rare")


def made_splits(labels: torch.Tensor, classes: tuple[str, ...], task: str) -> DataSplits:
    """DataSplits of the user's own."""
    pixels = torch.from_numpy(IMAGES)
    training, validation = (ArraySource(pixels, torch.arange(n), labels[:n], "mine") for n in (COUNT, 10))
    shape = Shape(channels=3, size=(8, 8))
    return DataSplits(training=training, validation=validation, classes=classes, shape=shape, task=task)


@pytest.mark.parametrize("task", ["regression", "auto"])
def test_a_users_splits_may_say_their_task_themselves(factory: Any, task: str) -> None:
    factory(made_splits(torch.from_numpy(NUMBERS).float(), ("age",), "regression"))
    splits = opened(Path("x"), task, "mine:make")
    assert (splits.task, splits.classes, len(splits.validation.labels)) == ("regression", ("age",), 10)
    assert splits.target.mean == pytest.approx(NUMBERS.mean(), rel=1e-5)


def test_a_users_splits_with_another_number_of_names_than_labels_are_refused(factory: Any) -> None:
    factory(made_splits(torch.from_numpy(TAGS).float(), ("bright", "third"), "multi_label"))
    with pytest.raises(Failure, match="something else than a data set") as caught:
        opened(Path("x"), "auto", "mine:make")
    assert caught.value.found == "3 labels, and 2 classes"


UNFIT = {
    "vector": ("regression", lambda row: TAGS[row], "is a vector", "return one finite number for each image"),
    "text": ("regression", lambda row: "x", "is text", "return one finite number for each image"),
    "number": ("multi_label", lambda row: 1.0, "decimal point", "return a row of 0 and 1 for each image"),
    "share": ("multi_label", lambda row: [0.5, 1.0], "is a vector", "return a row of 0 and 1 for each image"),
    "class": ("auto", lambda row: NUMBERS[row], "decimal point", "set data.task=regression"),
    "row": ("auto", lambda row: TAGS[row], "is a vector", "set data.task=multi_label"),
}


@pytest.mark.parametrize(("task", "label", "what", "fix"), UNFIT.values(), ids=UNFIT)
def test_items_with_other_labels_are_refused(factory: Any, task: str, label: Any, what: str, fix: str) -> None:
    factory((Items(label), None))
    with pytest.raises(Failure) as caught:
        opened(Path("x"), task, "mine:make")
    assert what in caught.value.what
    assert fix in (caught.value.fix or "")


def test_an_item_whose_number_changes_is_named(factory: Any) -> None:
    items = Items(lambda row: float(row))
    items.targets = [float(row) for row in range(COUNT)]  # type: ignore[attr-defined]
    factory((items, None))
    splits = opened(Path("x"), "regression", "mine:make")
    items._label = lambda row: row + 0.5
    with pytest.raises(Failure, match="has another label than the dataset lists"):
        splits.training.read(np.arange(1))


@pytest.mark.parametrize(
    ("task", "labels"), [("regression", NUMBERS), ("multi_label", TAGS)], ids=["regression", "multi_label"]
)
def test_a_training_on_arrays_is_measured_image_by_image(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], task: str, labels: Any
) -> None:
    np.savez(tmp_path / "a.npz", images=IMAGES, labels=labels)
    place = ("data.name=npz", f"data.root={tmp_path / 'a.npz'}", f"data.task={task}", "data.classes=10")
    trained(tmp_path / "run", *place, "data.augment=none", "train.epochs=1")
    checkpoint = checkpoints.choose_checkpoint(str(tmp_path / "run"))
    config, _ = checkpoints.load_config(checkpoint, None, ())
    forget_accelerate()
    try:
        evaluate.evaluate_on_rank(config, checkpoint, ALONE, {}, as_json=True, per_image=tmp_path / "out.csv")
    finally:
        forget_accelerate()
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    if task == "regression":
        assert all(float(row["number"]) == pytest.approx(NUMBERS[int(row["sample"])], rel=1e-5) for row in rows)
    else:
        names = [["0", "1", "2"][number] for number in range(3)]
        expected = ["|".join(np.array(names)[TAGS[int(row["sample"])]]) for row in rows]
        assert [row["labels"] for row in rows] == expected
