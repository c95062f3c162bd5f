"""`train eval --per-image` writes one row for each image, on any number of ranks."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from images import write_classes
from jobs import ALONE, forget_accelerate, trained
from torch.nn.functional import cross_entropy

from train.config.schema import DataConfig
from train.data import registry
from train.data.sampler import rank_blocks
from train.data.workers import UnreadableLog
from train.inference import checkpoints, evaluate, per_image
from train.inference.per_image import ImageResults, ResultCollector, SampleNames

LOGITS = torch.randn(10, 3, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(10) % 3


def collected(world_size: int, broken: tuple[int, ...] = ()) -> ImageResults:
    """The results of ten images in blocks of three, of which a loader leaves the broken ones out."""
    parts: list[Any] = []
    for rank in range(world_size):
        log = UnreadableLog(5, lambda line: None)
        log.add("validation", dict.fromkeys(broken, "broken"))
        blocks = rank_blocks(10, 3, rank=rank, world_size=world_size)
        collector = ResultCollector(blocks, log)
        for block in blocks:
            rows = torch.tensor([sample for sample in block.tolist() if sample not in broken], dtype=torch.int64)
            if len(rows):
                collector.add(LOGITS[rows], LABELS[rows])
        collector.gather(lambda part: parts.append(part) or [part])  # type: ignore[func-returns-value]
    return ResultCollector([], log).gather(lambda empty: [*parts, empty])


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_any_number_of_ranks_gives_the_same_table(world_size: int) -> None:
    found, alone = collected(world_size), collected(1)
    for name in ("samples", "labels", "predictions", "confidences", "losses"):
        assert np.array_equal(getattr(found, name), getattr(alone, name))


def test_each_image_has_its_own_prediction_confidence_and_loss() -> None:
    found = collected(1)
    assert found.samples.tolist() == list(range(10))
    assert found.labels.tolist() == LABELS.tolist()
    assert found.predictions.tolist() == LOGITS.argmax(dim=1).tolist()
    assert found.confidences == pytest.approx(LOGITS.softmax(dim=1).amax(dim=1).numpy())
    assert found.losses == pytest.approx(cross_entropy(LOGITS, LABELS, reduction="none").numpy())


@pytest.mark.parametrize("broken", [(4,), (3, 4, 5), (0, 9), (1, 2, 6, 7)])
def test_broken_images_are_left_out_and_the_others_keep_their_numbers(broken: tuple[int, ...]) -> None:
    found = collected(1, broken)
    assert found.samples.tolist() == [sample for sample in range(10) if sample not in broken]
    assert found.labels.tolist() == (found.samples % 3).tolist()


def test_logits_that_are_not_finite_leave_empty_cells() -> None:
    collector = ResultCollector([np.arange(2)], UnreadableLog(0, lambda line: None))
    collector.add(torch.tensor([[1.0, torch.nan], [0.0, 2.0]]), torch.tensor([0, 1]))
    results = collector.gather(lambda part: [part])
    table = per_image.encode_table(results, SampleNames(head="path", names=["=a.png", "b.png"]), ("-x", "y"))
    rows = list(csv.reader(table.decode().splitlines()))
    assert rows[0] == ["path", "label", "prediction", "confidence", "loss"]
    assert rows[1] == ["./=a.png", "'-x", "y", "", ""]
    assert rows[2] == ["b.png", "y", "y", "0.880797", "0.126928"]


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
    with table.open(newline="") as file:
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
    names = evaluate.sample_names(sets.validation)
    assert names.head == "sample"
    assert [labels[int(names.names[sample])] for sample in range(4)] == sets.validation.labels.tolist()


def test_rows_of_both_splits_are_told_apart(tmp_path: Path) -> None:
    sets = registry.open_splits(DataConfig(samples=20, classes=2))
    names = evaluate.sample_names(evaluate.use_all_for_validation(sets).validation)
    assert (names.cell(3), names.cell(len(sets.training.labels) + 1)) == ("training 3", "validation 1")
