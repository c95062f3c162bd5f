"""`train eval --per-image` writes one row for each image, on any number of ranks."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from evaluations import as_batch, measure, read_together
from images import write_classes
from jobs import ALONE, forget_accelerate, trained
from torch.nn.functional import cross_entropy

from train.config.schema import DataConfig
from train.data import registry
from train.data.sampler import rank_blocks
from train.data.splits import ImageFileSource, with_all_as_validation
from train.inference import checkpoints, evaluate
from train.tasks import TargetScale
from train.tasks.base import Task
from train.tasks.classification import Classification
from train.tasks.multi_label import MultiLabel
from train.tasks.regression import Regression

LOGITS = torch.randn(10, 3, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(10) % 3


TAGS = (torch.arange(30).view(10, 3) % 4 == 0).float()
NUMBERS = torch.arange(10, dtype=torch.float32) / 2
CLASSES = Classification(classes=("a", "b", "c"))
LABEL_SETS = MultiLabel(classes=("a", "b", "c"))
AGES = Regression(classes=("age",), target=TargetScale(mean=2.0, std=3.0))


def collected(
    world_size: int,
    broken: tuple[int, ...] = (),
    task: Task = CLASSES,
    outputs: torch.Tensor = LOGITS,
    labels: torch.Tensor = LABELS,
) -> tuple[list[int], list[Any]]:
    """The samples and the rows of ten images in blocks of three, of which a loader leaves the broken ones out."""
    ranks = []
    for rank in range(world_size):
        blocks = rank_blocks(10, 3, rank=rank, world_size=world_size)
        readable = [torch.tensor([sample for sample in block.tolist() if sample not in broken]) for block in blocks]
        batches = [{"image": outputs[rows], "label": labels[rows], "sample": rows} for rows in readable if len(rows)]
        ranks.append(measure(task, batches, details=True))
    results = task.image_results(read_together(ranks)[0].rows, THRESHOLDS)
    return results.samples.tolist(), [*map(list, results.cells)]


THRESHOLDS = (0.5, 0.25, 0.75)
TASKS = {
    "classification": (CLASSES, LOGITS, LABELS),
    "multi_label": (LABEL_SETS, LOGITS, TAGS),
    "regression": (AGES, LOGITS[:, :1], NUMBERS),
}


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_any_number_of_ranks_gives_the_same_results(world_size: int, task: Any) -> None:
    assert collected(world_size, (), *task) == collected(1, (), *task)


def test_each_image_has_its_own_prediction_confidence_and_loss() -> None:
    samples, rows = collected(1)
    assert samples == list(range(10))
    labels, predictions, confidences, losses = zip(*rows, strict=True)
    assert labels == tuple("abc"[label] for label in LABELS.tolist())
    assert predictions == tuple("abc"[label] for label in LOGITS.argmax(dim=1).tolist())
    assert confidences == pytest.approx(LOGITS.softmax(dim=1).amax(dim=1).tolist())
    assert losses == pytest.approx(cross_entropy(LOGITS, LABELS, reduction="none").tolist())


def test_each_image_has_its_own_labels_those_above_their_threshold_and_the_loss_of_the_training() -> None:
    _, rows = collected(1, (), LABEL_SETS, LOGITS, TAGS)
    labels, predictions, losses = zip(*rows, strict=True)
    predicted = LOGITS.sigmoid() >= torch.tensor(THRESHOLDS)
    for names, members in ((labels, TAGS.bool()), (predictions, predicted)):
        assert names == tuple("|".join(name for name, has in zip("abc", row, strict=True) if has) for row in members)
    assert losses == pytest.approx(LABEL_SETS.losses(LOGITS, TAGS).tolist())


def test_each_image_has_its_own_number_in_the_unit_of_the_labels() -> None:
    _, rows = collected(1, (), AGES, LOGITS[:, :1], NUMBERS)
    numbers, predictions, errors = zip(*rows, strict=True)
    assert list(numbers) == NUMBERS.tolist()
    assert predictions == pytest.approx((LOGITS[:, 0] * 3 + 2).tolist())
    assert errors == pytest.approx((LOGITS[:, 0] * 3 + 2 - NUMBERS).tolist(), abs=1e-6)


@pytest.mark.parametrize("broken", [(4,), (3, 4, 5), (0, 9), (1, 2, 6, 7)])
def test_broken_images_are_left_out_and_the_others_keep_their_numbers(broken: tuple[int, ...]) -> None:
    samples, rows = collected(1, broken)
    assert samples == [sample for sample in range(10) if sample not in broken]
    assert [row[0] for row in rows] == ["abc"[sample % 3] for sample in samples]


NAN = torch.nan
NOT_FINITE = {
    "classification": (
        (Classification, torch.tensor([[1.0, NAN], [0.0, 2.0]]), torch.tensor([0, 1])),
        "label,prediction,confidence,loss",
        ["'-x,y,,", "y,y,0.880797,0.126928"],
    ),
    "multi_label": (
        (MultiLabel, torch.tensor([[NAN, NAN], [4.0, 2.0]]), torch.tensor([[1.0, 0.0], [1.0, 1.0]])),
        "labels,predictions,loss",
        ["'-x,,", "'-x|y,'-x|y,0.072539"],
    ),
    "regression": (
        (Regression, torch.tensor([[NAN], [0.5]]), torch.tensor([-4.0, 3.0])),
        "number,prediction,error",
        ["-4.0,,", "3.0,3.5,0.5"],
    ),
}


@pytest.mark.parametrize(("case", "head", "lines"), NOT_FINITE.values(), ids=NOT_FINITE)
def test_outputs_that_are_not_finite_leave_empty_cells(case: Any, head: str, lines: list[str]) -> None:
    of, outputs, labels = case
    task = of(classes=("-x", "y")[: outputs.shape[1]], target=AGES.target)
    (totals,) = read_together([measure(task, [as_batch(outputs, labels)], details=True)])
    results = task.image_results(totals.rows, (0.5, 0.5))
    table = evaluate.encode_per_image(results, ImageFileSource(["=a.png", "b.png"], torch.zeros(2), 8))
    rows = [",".join(row) for row in csv.reader(table.decode("utf-8-sig").splitlines())]
    assert rows == [f"path,{head}", f"./=a.png,{lines[0]}", f"b.png,{lines[1]}"]


def evaluated(run: Path, table: Path, *settings: str, all_: bool = False) -> list[dict[str, str]]:
    checkpoint = checkpoints.choose_checkpoint(str(run))
    config, _ = checkpoints.load_config(checkpoint, None, settings)
    forget_accelerate()
    try:
        evaluate.evaluate_on_rank(
            config, checkpoint, ALONE, {}, as_json=True, split="all" if all_ else "validation", per_image=table
        )
    finally:
        forget_accelerate()
    with table.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("loader", ["memory", "workers"])
def test_the_rows_are_the_images_that_were_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], loader: str
) -> None:
    write_classes(tmp_path / "data" / "train", cat=20, dog=12)
    write_classes(tmp_path / "data" / "val", cat=5, dog=4)
    broken = tmp_path / "data" / "val" / "cat" / "002.png"
    broken.write_bytes(b"no image")
    place = ("data.name=folder", f"data.root={tmp_path / 'data'}", "data.max_bad_images=1")
    trained(tmp_path / "run", *place, "eval.batch_size=4", f"data.loader={loader}", "data.workers=0")
    capsys.readouterr()
    rows = evaluated(tmp_path / "run", tmp_path / "out.csv")
    result = json.loads(capsys.readouterr().out)
    files = sorted((tmp_path / "data" / "val").rglob("*.png"))
    assert [row["path"] for row in rows] == [str(path) for path in files if path != broken]
    assert [row["label"] for row in rows] == [Path(row["path"]).parent.name for row in rows]
    assert sum(row["label"] == row["prediction"] for row in rows) / len(rows) == result["accuracy"]
    assert np.mean([float(row["loss"]) for row in rows]) == pytest.approx(result["loss"], rel=1e-5)


def test_samples_without_files_are_named_by_their_rows_in_the_users_arrays(tmp_path: Path) -> None:
    images, labels = np.zeros((20, 8, 8, 3), np.uint8), np.arange(20) % 2
    np.savez(tmp_path / "data.npz", images=images, labels=labels)
    sets = registry.open_splits(DataConfig(name="npz", root=str(tmp_path / "data.npz"), val_fraction=0.2))
    assert sets.validation.file_names is None
    assert [labels[int(name)] for name in sets.validation.names(np.arange(4))] == sets.validation.labels.tolist()


def test_rows_of_both_splits_are_told_apart(tmp_path: Path) -> None:
    sets = registry.open_splits(DataConfig(samples=20, classes=2))
    both = with_all_as_validation(sets).validation
    assert both.names(np.array([3, len(sets.training.labels) + 1])) == ["training 3", "validation 1"]


@pytest.mark.parametrize("is_absolute", [False, True])
def test_images_of_a_table_have_the_paths_that_the_table_has(tmp_path: Path, is_absolute: bool) -> None:
    write_classes(tmp_path / "photos", cat=4, dog=4)
    files = [*map(str, sorted((tmp_path / "photos").rglob("*.png")))]
    paths = files if is_absolute else [str(Path(file).relative_to(tmp_path)) for file in files]
    lines = [f"{path},{Path(path).parent.name}" for path in paths]
    (tmp_path / "photos.csv").write_text("\n".join(["path,label", *lines]))
    sets = registry.open_splits(DataConfig(name="table", root=str(tmp_path / "photos.csv"), val_fraction=0.5))
    source = with_all_as_validation(sets).validation
    assert sorted(source.names(np.arange(8))) == paths
    assert sorted(source.file_names or ()) == files
    assert {*sets.validation.names(np.arange(4))} < {*paths}
