"""What a network takes follows from its checkpoint, or from its data where the checkpoint does not say it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from images import write_classes
from made_up import pixels, write_mnist

from entrypoint import Failure
from train.config.schema import DataConfig, RunConfig
from train.data import registry
from train.data.shape import Shape
from train.inference import inputs
from train.inference.inputs import InputSpec

TOLD = {"data": {"classes": ["cat", "dog"]}}


def of(data: DataConfig, told: dict[str, object]) -> InputSpec:
    return inputs.build_input_spec(RunConfig(data=data), told)


def test_a_folder_of_images_need_not_be_there_any_more() -> None:
    found = of(DataConfig(name="folder", root="gone", image_size=48), TOLD)
    assert (found.classes, found.shape, found.bytes_) == (("cat", "dog"), Shape(channels=3, size=(48, 48)), True)


def test_what_is_known_of_digits_is_what_the_data_has(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    data = DataConfig(name="mnist", root=str(tmp_path), image_size=28)
    assert registry.configured_shape(data) == registry.open_splits(data).shape


@pytest.mark.parametrize("frames", [None, 3])
def test_what_is_known_of_drawn_samples_is_what_the_data_has(frames: int | None) -> None:
    data = DataConfig(image_size=16, frames=frames, samples=20)
    assert registry.configured_shape(data) == registry.open_splits(data).shape


def test_an_older_checkpoint_without_class_names_asks_the_data() -> None:
    assert of(DataConfig(image_size=16, classes=2, samples=20), {}).classes == ("outline-0", "outline-1")


@pytest.mark.parametrize(("kind", "bytes_"), [(np.uint8, True), (np.float32, False)])
def test_arrays_say_it_themselves(kind: type, bytes_: bool, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=pixels(20, 9, 9, 1).astype(kind), labels=np.arange(20) % 2)
    found = of(DataConfig(name="npz", root=str(tmp_path / "a.npz")), TOLD)
    assert (found.shape, found.bytes_) == (Shape(channels=1, size=(9, 9)), bytes_)


FACTORY = """
import numpy as np
from PIL import Image
from torch.utils.data import Dataset
from train.config.schema import DataConfig
from train.data import registry
class Images(Dataset):
    def __init__(self, made):
        self.made, self.targets = made, [0, 1] * 10
    def __len__(self):
        return 20
    def __getitem__(self, row):
        return self.made(np.full((8, 8, 3), row, np.uint8)), row % 2

def pictures(data): return Images(Image.fromarray), None
def arrays(data): return Images(np.array), None
def files(data): return registry.open_splits(DataConfig(name="folder", root=data.root, image_size=8))
"""


@pytest.mark.parametrize("made", ["pictures", "arrays", "files"])
def test_a_factory_gives_files_pictures_or_arrays(made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_classes(tmp_path, ant=5, bee=5)
    (tmp_path / "made_by_hand.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(tmp_path)
    found = of(DataConfig(name=f"made_by_hand:{made}", root=str(tmp_path), image_size=8), TOLD)
    sys.modules.pop("made_by_hand")
    assert (found.origin, inputs.array_data_warning(found) is None) == (made, made != "arrays")


@pytest.mark.parametrize("channels", [1, 3])
def test_of_arrays_it_is_said_that_nobody_knows_how_they_were_made(channels: int, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=pixels(20, 9, 9, channels), labels=np.arange(20) % 2)
    said = inputs.array_data_warning(of(DataConfig(name="npz", root=str(tmp_path / "a.npz")), TOLD))
    assert said is not None
    assert f"become 9 x 9 x {channels} of their central part, in {'gray' if channels == 1 else 'RGB'}" in said


@pytest.mark.parametrize("name", ["folder", "mnist", "synthetic"])
def test_of_files_and_published_images_it_is_known(name: str) -> None:
    data = DataConfig(name=name, root="gone", image_size=28)  # type: ignore[arg-type]
    assert inputs.array_data_warning(of(data, TOLD)) is None


@pytest.mark.parametrize(
    ("told", "name", "made"),
    [
        ("pictures", "mine:make", "pictures"),
        (None, "cifar10", "files"),
        (None, "npz", "arrays"),
        (None, None, "arrays"),
        (["files"], "folder", "arrays"),
    ],
)
def test_an_export_tells_it_and_an_older_one_as_far_as_its_data_does(told: object, name: object, made: str) -> None:
    assert inputs.parse_sample_origin(told, name) == made


RENAMING = """
import numpy as np

class Squares(list):
    classes = ["owl", "dog", "cat"]

def make(data):
    return Squares((np.full((8, 8, 3), row, np.uint8), row % 3) for row in range(9)), None
"""


def test_scores_keep_the_names_of_the_training_whatever_a_factory_calls_its_classes_today(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "renaming.py").write_text(RENAMING)
    monkeypatch.syspath_prepend(tmp_path)
    assert of(DataConfig(name="renaming:make"), TOLD).classes == ("cat", "dog")
    assert of(DataConfig(name="renaming:make"), {}).classes == ("owl", "dog", "cat")


def test_arrays_that_are_gone_are_missing(tmp_path: Path) -> None:
    with pytest.raises(Failure) as caught:
        of(DataConfig(name="npz", root=str(tmp_path / "gone.npz")), TOLD)
    assert caught.value.code == 66


def taking(*size: int, channels: int = 3, bytes_: bool = True) -> InputSpec:
    return InputSpec(classes=("a", "b"), shape=Shape(channels=channels, size=size), bytes_=bytes_)


@pytest.mark.parametrize(
    ("taken", "said"),
    [
        (taking(4, 8, 8), "clips of 4 frames"),
        (taking(8, 8, bytes_=False), "as floats"),
        (taking(8, 8, channels=4), "1 or 3 channels"),
    ],
)
def test_what_image_files_cannot_become_is_refused_with_a_way_out(taken: InputSpec, said: str) -> None:
    with pytest.raises(Failure, match="does not take image files") as caught:
        inputs.refuse_image_files(taken)
    assert caught.value.code == 64
    assert said in str(caught.value)
    assert "train export" in caught.value.fix


@pytest.mark.parametrize("taken", [taking(8, 8), taking(8, 8, channels=1)])
def test_squares_of_bytes_are_taken(taken: InputSpec) -> None:
    inputs.refuse_image_files(taken)
    assert taken.sets.classes == ("a", "b")
    assert taken.sets.validation.read(np.arange(0)).shape == torch.Size([0, *taken.shape.stored])
