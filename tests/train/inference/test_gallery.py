"""The gallery shows a bounded number of the most telling images, of any data."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from images import write_classes
from inference import evaluate_run
from jobs import trained
from PIL import Image

from train import __main__ as front
from train.data.arrays import ArraySource
from train.data.splits import ImageFileSource
from train.evaluation.mistakes import Selection
from train.inference import explanation, gallery
from train.report import saved_evaluation


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
    jpeg = gallery.encode_thumbnail(explanation.displayable(pixels))
    assert saved_evaluation.jpeg_size(jpeg) == size
    assert len(jpeg) < 64_000


def test_floats_are_stretched_over_all_gray_levels() -> None:
    shown = explanation.displayable(torch.tensor([[[-2.0], [0.0]], [[0.0], [2.0]]]))
    assert shown.tolist() == [[0, 128], [128, 255]]


def test_an_image_that_is_gone_is_left_out(tmp_path: Path) -> None:
    write_classes(tmp_path, cat=2)
    paths = [str(tmp_path / "cat" / name) for name in ("000.png", "gone.png")]
    source = ImageFileSource(paths, torch.tensor([0, 0]), 8)
    selection = Selection(title="t", head=("true",), rows=[0, 1], cells=[["cat"], ["dog"]])
    made = gallery.make_gallery(selection, np.arange(2), source, f"{tmp_path}/")
    assert (made.title, made.head) == ("t", ("true",))
    assert [(image.name, image.cells) for image in made.images] == [("cat/000.png", ("cat",))]


@pytest.mark.parametrize(("root", "left"), [("", ""), ("cat", ""), ("FOLDER", "cat/000.png")])
def test_an_image_outside_of_the_root_keeps_its_whole_path(tmp_path: Path, root: str, left: str) -> None:
    write_classes(tmp_path, cat=1)
    path = str(tmp_path / "cat" / "000.png")
    source = ImageFileSource([path], torch.tensor([0]), 8)
    selection = Selection(title="t", head=("true",), rows=[0], cells=[["cat"]])
    (image,) = gallery.make_gallery(selection, np.arange(1), source, root.replace("FOLDER", str(tmp_path))).images
    assert image.name == (left or path)


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on class folders that was evaluated for its report, with heat maps."""
    folder = tmp_path_factory.mktemp("looked")
    write_classes(folder / "data" / "train", cat=20, dog=12)
    write_classes(folder / "data" / "val", cat=5, dog=4)
    trained(folder / "run", "data.name=folder", f"data.root={folder / 'data'}", "train.max_steps=2")
    evaluate_run(folder / "run", for_report=True, with_heat_maps=True)
    return folder / "run"


def test_an_evaluation_for_the_report_is_read_back(looked_at: Path) -> None:
    saved = saved_evaluation.read(looked_at / "evaluation.json")
    assert saved is not None
    assert (saved.samples, saved.classes, saved.step) == (9, ("cat", "dog"), 2)
    assert sum(each.images for each in saved.calibration.bins) == 9
    mistakes, hardest = (gallery.images for gallery in saved.galleries)
    assert [image.cells[0] for image in hardest] == ["cat"] * 3 + ["dog"] * 3
    wrong = round((1 - (saved.values["accuracy"] or 0)) * 9)
    assert len(mistakes) == wrong > 0
    assert all(re.fullmatch(r"val/(cat|dog)/00\d\.png", image.name) for image in mistakes)
    for jpeg in (mistakes[0].jpeg, mistakes[0].heat):
        assert jpeg is not None
        with Image.open(io.BytesIO(jpeg)) as shown:
            assert shown.size == (8, 8)


def test_the_report_of_the_run_shows_it(looked_at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = saved_evaluation.read(looked_at / "evaluation.json")
    assert saved is not None
    assert front.run_command(["report", str(looked_at)], {}) == 0
    page = (looked_at / "report" / "report.html").read_text()
    assert page.count("data:image/jpeg;base64,") == 2 * sum(len(gallery.images) for gallery in saved.galleries)
    assert "heat map (Grad-CAM)" in page
    assert (looked_at / "report" / "calibration.png").exists()
    assert "calibration.png" in capsys.readouterr().out


def test_a_heat_map_explains_the_output_that_the_selection_names() -> None:
    explained: list[tuple[list[int], list[int] | None]] = []

    def explain(pixels: torch.Tensor, outputs: Sequence[int] | None) -> torch.Tensor:
        explained.append((list(pixels.shape), None if outputs is None else [*outputs]))
        return torch.ones(pixels.shape[:3])

    source = ArraySource(torch.zeros(3, 8, 8, 3, dtype=torch.uint8), torch.arange(3), torch.zeros(3), "a")
    selection = Selection(title="t", head=(), rows=[0, 2], cells=[[], []], outputs=[5, 6])
    (first, _) = gallery.make_gallery(selection, np.arange(3), source, "", explain).images
    assert explained == [([1, 8, 8, 3], [5]), ([1, 8, 8, 3], [6])]
    assert first.heat not in (None, first.jpeg)


def test_heat_maps_without_a_report_are_refused(looked_at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run_command(["eval", str(looked_at), "--explain"], {}) == 64
    assert "add --report" in capsys.readouterr().err


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
