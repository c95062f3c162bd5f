"""The gallery shows a bounded number of the most telling images, of any data."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from images import write_classes
from jobs import ALONE, forget_accelerate, trained
from PIL import Image

from train import __main__ as front
from train.data.image_folder import ImageFileSource
from train.inference import checkpoints, evaluate, gallery
from train.inference.per_image import ImageResults, SampleNames
from train.report import saved_evaluation


def results(labels: list[int], predictions: list[int], confidences: list[float], losses: list[float]) -> ImageResults:
    return ImageResults(
        samples=np.arange(len(labels)),
        labels=np.array(labels),
        predictions=np.array(predictions),
        confidences=np.array(confidences, np.float32),
        losses=np.array(losses, np.float32),
    )


def test_the_most_confident_mistake_comes_first_and_what_is_right_or_no_number_is_none() -> None:
    found = results([0, 0, 1, 1, 0], [1, 0, 0, 0, 1], [0.6, 0.99, 0.9, np.nan, 0.6], [1, 0, 2, 3, 1])
    assert gallery.confident_mistakes(found).tolist() == [2, 0, 4]


def test_of_many_mistakes_24_are_shown() -> None:
    assert len(gallery.confident_mistakes(results([0] * 99, [1] * 99, [0.7] * 99, [1.0] * 99))) == 24


def test_each_class_shows_its_three_images_with_the_highest_loss() -> None:
    found = results([0, 1] * 5, [0, 1] * 5, [0.9] * 10, [1, 2, 3, 4, 5, 6, 7, 8, 9, np.nan])
    assert gallery.hardest_images(found).tolist() == [8, 6, 4, 7, 5, 3]


def test_of_many_classes_the_ten_with_the_lowest_recall_are_shown() -> None:
    labels = list(range(40)) * 5
    wrong = set(range(20, 30))
    predictions = [0 if label in wrong else label for label in labels]
    found = gallery.hardest_images(results(labels, predictions, [0.5] * 200, [1.0] * 200))
    assert len(found) == 30
    assert {labels[row] for row in found} == wrong


@pytest.mark.parametrize(
    ("shape", "dtype", "size"),
    [
        ((32, 32, 3), torch.uint8, (32, 32)),
        ((300, 200, 3), torch.uint8, (85, 128)),
        ((28, 28, 1), torch.uint8, (28, 28)),
        ((8, 40, 20, 3), torch.uint8, (20, 40)),
        ((16, 16, 1), torch.float32, (16, 16)),
        ((16, 16, 7), torch.float32, (16, 16)),
    ],
    ids=["colour", "large", "gray", "clip", "float", "multispectral"],
)
def test_any_sample_has_a_small_thumbnail_of_its_own_shape(
    shape: tuple[int, ...], dtype: torch.dtype, size: tuple[int, int]
) -> None:
    pixels = (torch.rand(shape, generator=torch.Generator().manual_seed(0)) * 255).to(dtype)
    jpeg = gallery.thumbnail(pixels)
    assert saved_evaluation.jpeg_size(jpeg) == size
    assert len(jpeg) < 64_000


def test_floats_are_stretched_over_all_gray_levels() -> None:
    shown = gallery.displayable(torch.tensor([[[-2.0], [0.0]], [[0.0], [2.0]]]))
    assert shown.tolist() == [[0, 128], [128, 255]]


def test_an_image_that_is_gone_is_left_out(tmp_path: Path) -> None:
    write_classes(tmp_path, cat=2)
    paths = [str(tmp_path / "cat" / name) for name in ("000.png", "gone.png")]
    source = ImageFileSource(paths, torch.tensor([0, 0]), 8)
    found = results([0, 0], [1, 1], [0.9, 0.8], [2, 2])
    names = SampleNames(head="path", names=paths)
    (image,) = gallery.make_gallery(np.arange(2), found, source, names, f"{tmp_path}/", ("cat", "dog"))
    assert (image.name, image.label, image.prediction) == ("cat/000.png", "cat", "dog")


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on class folders that was evaluated for its report."""
    place = tmp_path_factory.mktemp("looked")
    write_classes(place / "data" / "train", cat=20, dog=12)
    write_classes(place / "data" / "val", cat=5, dog=4)
    trained(place / "run", "data.name=folder", f"data.root={place / 'data'}", "train.max_steps=2")
    checkpoint = checkpoints.choose_checkpoint(str(place / "run"))
    config, _ = checkpoints.load_config(checkpoint, None, ())
    forget_accelerate()
    try:
        evaluate.evaluate_on_rank(config, checkpoint, ALONE, {}, as_json=True, for_report=True)
    finally:
        forget_accelerate()
    return place / "run"


def test_an_evaluation_for_the_report_is_read_back(looked_at: Path) -> None:
    saved = saved_evaluation.read(looked_at / "evaluation.json")
    assert saved is not None
    assert (saved.samples, saved.classes, saved.step) == (9, ("cat", "dog"), 2)
    assert sum(each.images for each in saved.calibration.bins) == 9
    assert [image.label for image in saved.hardest] == ["cat"] * 3 + ["dog"] * 3
    wrong = round((1 - (saved.values["accuracy"] or 0)) * 9)
    assert len(saved.mistakes) == wrong > 0
    assert all(re.fullmatch(r"val/(cat|dog)/00\d\.png", image.name) for image in saved.mistakes)
    with Image.open(io.BytesIO(saved.mistakes[0].jpeg)) as shown:
        assert shown.size == (8, 8)


def test_the_report_of_the_run_shows_it(looked_at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = saved_evaluation.read(looked_at / "evaluation.json")
    assert saved is not None
    assert front.run_command(["report", str(looked_at)], {}) == 0
    page = (looked_at / "report" / "report.html").read_text()
    assert page.count("data:image/jpeg;base64,") == len(saved.mistakes) + len(saved.hardest)
    assert (looked_at / "report" / "calibration.png").exists()
    assert "calibration.png" in capsys.readouterr().out


def test_a_checkpoint_outside_of_a_run_has_no_place_for_it(
    looked_at: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best = looked_at / json.loads((looked_at / "best.json").read_text())["checkpoint"]
    moved = tmp_path / "moved" / best.name
    moved.parent.mkdir()
    best.rename(moved)
    try:
        assert front.run_command(["eval", str(moved), "--report"], {"TMPDIR": str(tmp_path)}) == 64
    finally:
        moved.rename(best)
    assert "name the run, or leave --report out" in capsys.readouterr().err
