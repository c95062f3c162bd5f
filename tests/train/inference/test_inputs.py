"""What a network takes follows from its checkpoint or its data, and image files become the numbers of an evaluation."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from images import write_classes, write_image
from made_up import pixels, write_mnist
from PIL import Image

from entrypoint import Failure
from train.config.schema import DataConfig, EvalConfig, RunConfig
from train.data import augment, custom, decode, registry
from train.data.shape import Shape
from train.inference import inputs
from train.inference.inputs import InputSpec

STORED = {"data": {"classes": ["cat", "dog"]}}
COLOUR, GRAY = Shape(channels=3, size=(8, 8)), Shape(channels=1, size=(8, 8))


def of(data: DataConfig, state: dict[str, object]) -> InputSpec:
    return inputs.build_input_spec(RunConfig(data=data), state)


def test_a_folder_of_images_need_not_be_there_any_more() -> None:
    input_spec = of(DataConfig(name="folder", root="gone", image_size=48), STORED)
    assert (input_spec.classes, input_spec.shape, input_spec.bytes_) == (
        ("cat", "dog"),
        Shape(channels=3, size=(48, 48)),
        True,
    )


def test_what_is_known_of_digits_is_what_the_data_has(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    data = DataConfig(name="mnist", root=str(tmp_path), image_size=28)
    assert registry.configured_shape(data) == registry.open_splits(data).shape


@pytest.mark.parametrize("frames", [None, 3])
def test_what_is_known_of_drawn_samples_is_what_the_data_has(frames: int | None) -> None:
    data = DataConfig(image_size=16, frames=frames, samples=20)
    assert registry.configured_shape(data) == registry.open_splits(data).shape


@pytest.mark.parametrize(("trained", "thresholds"), [(0.3, (0.3, 0.3)), ("auto", (0.5, 0.5))])
def test_labels_of_weights_that_no_evaluation_measured_have_the_threshold_of_the_training(
    trained: float | Literal["auto"], thresholds: tuple[float, ...]
) -> None:
    state = {
        "data": {**STORED["data"], "task": "multi_label"},
        "config": {"eval": {"threshold": trained}},
    }
    config = RunConfig(data=DataConfig(name="folder", root="gone"), eval=EvalConfig(threshold=trained))
    assert inputs.build_input_spec(config, state).thresholds == thresholds


def test_a_prediction_refuses_another_threshold_and_names_the_evaluation_that_takes_one() -> None:
    config = RunConfig(data=DataConfig(name="folder", root="gone"), eval=EvalConfig(threshold="auto"))
    with pytest.raises(Failure) as refused:
        inputs.build_input_spec(config, {"data": {**STORED["data"], "task": "multi_label"}})
    assert refused.value.code == 64
    assert "train eval RUN eval.threshold=auto" in refused.value.fix


def test_an_older_checkpoint_without_class_names_asks_the_data() -> None:
    assert of(DataConfig(image_size=16, classes=2, samples=20), {}).classes == ("outline-0", "outline-1")


@pytest.mark.parametrize(("kind", "bytes_"), [(np.uint8, True), (np.float32, False)])
def test_arrays_say_it_themselves(kind: type, bytes_: bool, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=pixels(20, 9, 9, 1).astype(kind), labels=np.arange(20) % 2)
    input_spec = of(DataConfig(name="npz", root=str(tmp_path / "a.npz")), STORED)
    assert (input_spec.shape, input_spec.bytes_) == (Shape(channels=1, size=(9, 9)), bytes_)


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
    input_spec = of(DataConfig(name=f"made_by_hand:{made}", root=str(tmp_path), image_size=8), STORED)
    sys.modules.pop("made_by_hand")
    assert (input_spec.origin, inputs.array_data_warning(input_spec) is None) == (made, made != "arrays")


@pytest.mark.parametrize("channels", [1, 3])
def test_of_arrays_it_is_said_that_nobody_knows_how_they_were_made(channels: int, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=pixels(20, 9, 9, channels), labels=np.arange(20) % 2)
    caveats = inputs.array_data_warning(of(DataConfig(name="npz", root=str(tmp_path / "a.npz")), STORED))
    assert caveats is not None
    assert f"become 9 x 9 x {channels} of their central part, in {'gray' if channels == 1 else 'RGB'}" in caveats


@pytest.mark.parametrize("name", ["folder", "mnist", "synthetic"])
def test_of_files_and_published_images_it_is_known(name: str) -> None:
    data = DataConfig(name=name, root="gone", image_size=28)  # type: ignore[arg-type]
    assert inputs.array_data_warning(of(data, STORED)) is None


@pytest.mark.parametrize(
    ("value", "name", "made"),
    [
        ("pictures", "mine:make", "pictures"),
        (None, "cifar10", "files"),
        (None, "npz", "arrays"),
        (None, None, "arrays"),
        (["files"], "folder", "arrays"),
    ],
)
def test_an_export_tells_it_and_an_older_one_as_far_as_its_data_does(value: object, name: object, made: str) -> None:
    assert inputs.parse_sample_origin(value, name) == made


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
    assert of(DataConfig(name="renaming:make"), STORED).classes == ("cat", "dog")
    assert of(DataConfig(name="renaming:make"), {}).classes == ("owl", "dog", "cat")


def test_arrays_that_are_gone_are_missing(tmp_path: Path) -> None:
    with pytest.raises(Failure) as caught:
        of(DataConfig(name="npz", root=str(tmp_path / "gone.npz")), STORED)
    assert caught.value.code == 66


def taking(*size: int, channels: int = 3, bytes_: bool = True) -> InputSpec:
    return InputSpec(classes=("a", "b"), shape=Shape(channels=channels, size=size), bytes_=bytes_)


@pytest.mark.parametrize(
    ("taken", "text"),
    [
        (taking(4, 8, 8), "clips of 4 frames"),
        (taking(8, 8, bytes_=False), "as floats"),
        (taking(8, 8, channels=4), "1 or 3 channels"),
    ],
)
def test_what_image_files_cannot_become_is_refused_with_a_way_out(taken: InputSpec, text: str) -> None:
    with pytest.raises(Failure, match="does not take image files") as caught:
        inputs.refuse_image_files(taken)
    assert caught.value.code == 64
    assert text in str(caught.value)
    assert "train export" in caught.value.fix


@pytest.mark.parametrize("taken", [taking(8, 8), taking(8, 8, channels=1)])
def test_squares_of_bytes_are_taken(taken: InputSpec) -> None:
    inputs.refuse_image_files(taken)
    assert taken.sets.classes == ("a", "b")
    assert taken.sets.validation.read(np.arange(0)).shape == torch.Size([0, *taken.shape.stored])


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def noise(*shape: int, kind: type = np.uint8) -> np.ndarray:  # type: ignore[type-arg]
    return np.random.default_rng(1).integers(0, np.iinfo(kind).max, shape, dtype=kind)


def test_a_batch_is_what_the_folder_of_these_images_gives(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    sets = registry.open_splits(DataConfig(name="folder", root=str(write_classes(tmp_path, a=3, b=2)), image_size=8))
    paths = [Path(str(path)) for path in sets.training.paths]  # type: ignore[attr-defined]
    batch, bad = inputs.read_batch(paths, COLOUR, threads)
    assert torch.equal(batch, augment.normalize(sets.training.read(np.arange(len(paths)))))
    assert bad == [None] * len(paths)


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "P", "1", "CMYK", "I;16"])
@pytest.mark.parametrize("shape", [COLOUR, GRAY], ids=["colour", "gray"])
def test_images_of_every_kind_become_what_the_network_takes(mode: str, shape: Shape, tmp_path: Path) -> None:
    path = tmp_path / "image.tif"
    image = Image.fromarray(noise(9, 12, kind=np.uint16)) if mode == "I;16" else Image.fromarray(noise(9, 12, 3))
    (image if mode == "I;16" else image.convert(mode)).save(path)
    read = inputs.read_image(path, shape)
    assert (read.shape, read.dtype) == (shape.stored, np.uint8)
    assert read.std() > 0


def test_without_a_draft_a_file_is_the_picture_that_it_holds(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    Image.fromarray(noise(50, 41, 3)).save(path := tmp_path / "a.jpg")
    with Image.open(path) as image:
        expected = custom.open_dataset_source([(image.convert("RGB"), 0)], torch.zeros(1, dtype=torch.int64), 8, "mine")
    batch, _ = inputs.read_batch([path], COLOUR, threads, draft=False)
    assert torch.equal(batch, augment.normalize(expected.read(np.arange(1))))
    assert not torch.equal(batch, inputs.read_batch([path], COLOUR, threads)[0])


def test_a_gray_image_is_the_same_to_a_network_of_gray_ones(tmp_path: Path) -> None:
    values = noise(8, 8)
    Image.fromarray(values).save(tmp_path / "gray.png")
    assert np.array_equal(inputs.read_image(tmp_path / "gray.png", GRAY)[..., 0], values)


def test_what_cannot_be_read_is_told_in_its_place_and_the_rest_is_there(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    good, bad = write_image(tmp_path / "good.png"), tmp_path / "bad.png"
    bad.write_bytes(good.read_bytes()[:40])
    batch, reasons = inputs.read_batch([bad, good, bad, tmp_path / "gone.png"], COLOUR, threads)
    assert len(batch) == 1
    assert [reason is None for reason in reasons] == [False, True, False, False]


def test_a_lost_disk_is_no_broken_image(
    tmp_path: Path, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> Image.Image:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(decode, "open_image", fail)
    with pytest.raises(Failure) as caught:
        inputs.read_batch([tmp_path / "a.png"], COLOUR, threads)
    assert caught.value.code == 74
