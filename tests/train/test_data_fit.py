"""A start on arrays or tensors says whether image files can be predicted afterwards, and what would help."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import built, trained

from entrypoint import Failure
from train.checkpoint import store
from train.config.schema import DataConfig
from train.data import registry
from train.data_fit import image_file_notes
from train.inference import checkpoints, inputs

MODULE = """
import numpy as np, torch
from PIL import Image
class Items:
    def __init__(self, form):
        self.form = form
    def __len__(self):
        return 80
    def __getitem__(self, row):
        pixels = np.full((8, 8, 3), 3 * row, np.uint8)
        return MAKE[self.form](pixels), row % 2
MAKE = {
    "pictures": Image.fromarray,
    "tensors": lambda pixels: torch.from_numpy(pixels).permute(2, 0, 1) / 255,
    "arrays of floats": lambda pixels: pixels / np.float32(255),
    "arrays of bytes": lambda pixels: pixels,
    "many channels": lambda pixels: torch.from_numpy(np.concatenate([pixels, pixels], axis=-1)).permute(2, 0, 1),
    "clips": lambda pixels: torch.from_numpy(np.stack([pixels] * 4)).permute(3, 0, 1, 2),
}
"""
FIX = "let the data set return PIL images"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a module with a data set of such items, and returns its data.name."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(form: str) -> str:
        (tmp_path / "own_items.py").write_text(f"{MODULE}\n\ndef make(data):\n    return Items({form!r}), None\n")
        sys.modules.pop("own_items", None)
        return "own_items:make"

    return write


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("pictures", []),
        ("tensors", ["will not take image files: samples of 8 x 8 x 3, as floats", f"fix: {FIX}"]),
        ("arrays of floats", ["will not take image files: samples of 8 x 8 x 3, as floats", f"fix: {FIX}"]),
        ("arrays of bytes", ["right only for image files made into arrays as these were", FIX]),
        ("many channels", ["will not take image files: samples of 8 x 8 x 6"]),
        ("clips", ["will not take image files: clips of 4 frames"]),
    ],
)
def test_items_of_ones_own_data_set(own: Callable[[str], str], form: str, words: list[str]) -> None:
    data = DataConfig(name=own(form), image_size=8)
    notes = image_file_notes(data, registry.open_splits(data))
    assert len(notes) == bool(words)
    assert all(word in notes[0] for word in words)
    if form in ("many channels", "clips"):
        assert FIX not in notes[0]  # it would not help


@pytest.mark.parametrize(("dtype", "words"), [(np.uint8, "right only for image files"), (np.float32, "as floats")])
def test_arrays_in_a_file(tmp_path: Path, dtype: Any, words: str) -> None:
    images = np.random.default_rng(0).integers(0, 255, (80, 8, 8, 3)).astype(dtype)
    np.savez(tmp_path / "images.npz", images=images, labels=np.arange(80) % 2)
    data = DataConfig(name="npz", root=str(tmp_path / "images.npz"))
    (note,) = image_file_notes(data, registry.open_splits(data))
    assert words in note
    assert "train on the image files: data.name=folder or table" in note


def test_a_start_says_what_a_prediction_is_refused_for(own: Callable[[str], str], tmp_path: Path) -> None:
    words = (f"data.name={own('tensors')}", "data.image_size=8", "data.classes=10", "data.samples=10000")
    trainer = trained(tmp_path / "run", *words)
    (note,) = [note for note in trainer.notes if "train predict" in note]
    chosen = checkpoints.choose_checkpoint(str(tmp_path / "run"))
    config = checkpoints.load_training_config(chosen)
    with pytest.raises(Failure, match="this model does not take image files") as caught:
        inputs.refuse_image_files(inputs.build_input_spec(config, store.read_state(chosen)))
    assert str(caught.value.found) in note


def test_computed_images_need_no_note(tmp_path: Path) -> None:
    with built(tmp_path) as trainer:
        assert trainer.notes == ()
