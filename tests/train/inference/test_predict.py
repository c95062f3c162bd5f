"""What a network says of image files is what the evaluation counted, and one image is one line."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from images import write_image
from inference import export_run
from jobs import forget_accelerate, trained
from PIL import Image
from torch import Tensor, nn

from entrypoint import Failure
from train.checkpoint import store
from train.config import load
from train.data import augment, registry
from train.inference import checkpoints, evaluate, export, inputs, predict
from train.inference.predict import InferenceModel
from train.tasks.base import Prediction
from train.tasks.classification import Classification

LOGITS = torch.tensor([[3.0, 1.0]]).log()  # three times as likely
ODD = ["two words", "Größe", "a\nb", "a\tb", "a\r\nb", "\x1b[31mred", "\u2028", "\x85", "\u202egnp.exe", "back\\slash"]


@pytest.fixture(autouse=True)
def _own_accelerate() -> Iterator[None]:
    forget_accelerate()
    yield
    forget_accelerate()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of noise, dark and light, 40 images each."""
    root, draw = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for brightness, name in enumerate(("dark", "light")):
        (root / name).mkdir()
        for number in range(40):
            values = draw.integers(0, 180, (10, 12, 3)) + 40 * brightness
            Image.fromarray(values.astype(np.uint8)).save(root / name / f"{number}.png")
    return root


@pytest.fixture(scope="module")
def run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training on them whose averaged weights are evaluated."""
    settings = ("data.name=folder", f"data.root={photos}", "train.ema_decay=0.5", "model.args.norm=batch")
    folder = tmp_path_factory.mktemp("run")
    trained(folder, *settings)
    return folder


def ready(run: Path, images: int = 80, *settings: str) -> InferenceModel:
    checkpoint = checkpoints.choose_checkpoint(str(run))
    config, _ = checkpoints.load_config(checkpoint, None, settings)
    return predict.prepare_from_checkpoint(config, checkpoint, {"ENTRYPOINT_DEVICE": "cpu"}, images)


def validation_files(photos: Path) -> tuple[list[Path], list[str]]:
    """The validation images of the training, and their classes."""
    data = load.load_config(None, ["data.name=folder", f"data.root={photos}", "data.image_size=8"]).data
    paths = [Path(str(path)) for path in registry.open_splits(data).validation.paths]  # type: ignore[attr-defined]
    return paths, [path.parent.name for path in paths]


@pytest.mark.parametrize("size", [1, 7, 256])
def test_as_many_are_right_as_the_evaluation_counted(run: Path, photos: Path, size: int) -> None:
    paths, labels = validation_files(photos)
    answers = predict.predict_images(ready(run, len(paths), f"eval.batch_size={size}"), paths, 1, print)
    right = sum(answer.values["class"] == label for answer, label in zip(answers, labels, strict=True))
    result = chosen_result(run)
    assert len(paths) == result["samples"]
    assert right / len(paths) == pytest.approx(result["accuracy"])


# The same images, each in a JPEG file that is three times as large, and opened by the user's own code.
PICTURES = """
from PIL import Image
from torchvision.datasets import ImageFolder

def pictures(data):
    return ImageFolder(data.root, loader=lambda path: Image.open(path).convert("RGB")), None
"""


def test_files_are_read_as_the_pictures_that_a_data_set_opened(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_pictures.py").write_text(PICTURES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    for path in photos.rglob("*.png"):
        copy = tmp_path / "images" / path.relative_to(photos).with_suffix(".jpg")
        copy.parent.mkdir(parents=True, exist_ok=True)
        Image.open(path).resize((50, 41)).save(copy)
    trained(
        tmp_path / "run", "data.name=own_pictures:pictures", f"data.root={tmp_path / 'images'}", "train.max_steps=2"
    )
    paths = sorted((tmp_path / "images").rglob("*.jpg"))
    prepared = ready(tmp_path / "run", 80, "data.name=own_pictures:pictures")
    data = load.load_config(
        None, ["data.name=own_pictures:pictures", f"data.root={tmp_path / 'images'}", "data.image_size=8"]
    )
    training = registry.open_splits(data.data).training
    with ThreadPoolExecutor(2) as threads:
        batch, _ = inputs.read_batch(
            [paths[int(row)] for row in training.rows], prepared.spec.shape, threads, draft=prepared.draft
        )
    assert torch.equal(batch, augment.normalize(training.read(np.arange(len(batch)))))


def chosen_result(run: Path) -> dict[str, float]:
    result: dict[str, float] = store.read_state(checkpoints.choose_checkpoint(str(run)))["state"]["result"]
    return result


def test_the_average_of_the_weights_is_what_answers(run: Path) -> None:
    weights, network = evaluate.load_weights(checkpoints.choose_checkpoint(str(run))), ready(run).network
    assert weights.averaged
    assert all(torch.equal(tensor, weights.tensors[name]) for name, tensor in network.state_dict().items())
    assert not any(module.training for module in network.modules())


def test_answers_come_in_the_order_of_the_files_and_broken_ones_are_named(run: Path, photos: Path) -> None:
    good, broken, messages = photos / "dark" / "0.png", photos.parent / "broken\n.png", list[str]()
    broken.write_bytes(b"no image")
    predictions = predict.predict_images(ready(run), [broken, good, broken, good], 1, messages.append)
    assert [prediction.path for prediction in [next(predictions), next(predictions)]] == [good, good]
    with pytest.raises(Failure, match="2 of 4 images") as caught:
        next(predictions)
    assert caught.value.code == 65
    assert [text.splitlines() for text in messages] == [
        [f"{photos.parent}/broken\\n.png: no image that Pillow knows"]
    ] * 2


@pytest.mark.parametrize(
    ("failed", "count", "text"),
    [
        (1, 1, "1 of 1 image has no answer: it is named above"),
        (1, 3, "1 of 3 images has no answer: it is named above"),
        (2, 3, "2 of 3 images have no answer: they are named above"),
    ],
)
def test_one_image_without_an_answer_is_told_of_as_one(failed: int, count: int, text: str) -> None:
    assert predict._incomplete_failure(failed, count).what == text


def test_top_gives_classes_by_falling_probability_that_add_up(run: Path, photos: Path) -> None:
    (prediction_of_one,) = predict.predict_images(ready(run), [photos / "light" / "1.png"], 5, print)
    probabilities = [each["probability"] for each in prediction_of_one.values["top"]]
    assert {each["class"] for each in prediction_of_one.values["top"]} == {"dark", "light"}
    assert probabilities[0] >= probabilities[1]
    assert math.fsum(probabilities) == pytest.approx(1)


class Says(nn.Module):
    """The same scores for each image."""

    def __init__(self, *scores: float) -> None:
        super().__init__()
        self.scores = torch.tensor(scores)

    def forward(self, images: Tensor) -> Tensor:
        return self.scores.expand(len(images), -1)


@pytest.mark.parametrize("scores", [(math.nan, 1.0), (1.0, math.nan), (math.inf, 0.0)])
def test_scores_that_are_no_numbers_are_no_answer(
    run: Path, photos: Path, scores: tuple[float, float], capsys: pytest.CaptureFixture[str]
) -> None:
    strange = replace(ready(run), network=Says(*scores))
    with pytest.raises(Failure, match="1 of 1 image has"):
        list(predict.predict_images(strange, [photos / "dark" / "0.png"], 1, print))
    assert "0.png: the network's scores are not finite numbers" in capsys.readouterr().out


@pytest.mark.parametrize("scores", [(2.0, 2.0), (0.0, -math.inf)])
def test_of_equal_scores_the_first_class_answers_and_a_ruled_out_one_has_nothing(
    run: Path, photos: Path, scores: tuple[float, float]
) -> None:
    (prediction_of_one,) = predict.predict_images(
        replace(ready(run), network=Says(*scores)), [photos / "dark" / "0.png"], 1, print
    )
    assert [each["class"] for each in prediction_of_one.values["top"]] == ["dark"]


def test_a_model_of_clips_is_refused(tmp_path: Path) -> None:
    trained(tmp_path, "data.frames=3", "model.name=cnn3d", "train.max_steps=2")
    with pytest.raises(Failure, match="does not take image files") as caught:
        ready(tmp_path)
    assert caught.value.code == 64


def test_a_handed_on_model_of_clips_is_refused_too(tmp_path: Path) -> None:
    trained(tmp_path / "run", "data.frames=3", "model.name=cnn3d", "train.max_steps=2")
    export_run(tmp_path / "run", tmp_path / "model")
    with pytest.raises(Failure, match="does not take image files"):
        predict.prepare_from_export(tmp_path / "model", "cpu", 1)


def test_a_batch_too_large_for_the_gpu_names_a_smaller_one(run: Path, tmp_path: Path) -> None:
    class Full(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory")

    path = write_image(tmp_path / "a.png")
    with pytest.raises(Failure, match="out of GPU memory") as caught:
        list(predict.predict_images(replace(ready(run), network=Full()), [path] * 16, 1, print))
    assert (caught.value.code, "eval.batch_size=4" in caught.value.fix) == (71, True)


NAMING = """
import numpy as np
from PIL import Image

CLASSES = ["dark", "light"]

class Squares(list):
    classes = CLASSES

def make(data):
    return Squares((Image.fromarray(np.full((8, 8, 3), row, np.uint8)), row % 2) for row in range(80)), None
"""


def test_a_factory_that_calls_its_classes_otherwise_today_renames_no_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "naming.py").write_text(NAMING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    trained(tmp_path / "run", "data.name=naming:make")
    sys.modules["naming"].CLASSES.reverse()
    forget_accelerate()
    assert ready(tmp_path / "run", 80, "data.name=naming:make").spec.classes == ("dark", "light")
    export_run(tmp_path / "run", tmp_path / "model", "data.name=naming:make")
    assert export.load_exported(tmp_path / "model").classes == ("dark", "light")
    assert "dark, light" in (tmp_path / "model" / export.CARD_FILE).read_text()
    sys.modules.pop("naming")


def prediction(name: str, path: str = "a.png") -> Prediction:
    (predicted,) = Classification(classes=(name, "other")).predict(LOGITS, [Path(path)], None, top=2)
    assert predicted is not None
    return predicted


def test_a_line_is_path_class_and_probability_with_tabs_between() -> None:
    assert prediction("cat").as_text() == "a.png\tcat\t0.7500\tother\t0.2500"


@pytest.mark.parametrize("name", ODD)
def test_no_name_breaks_a_line_or_a_column(name: str) -> None:
    text = prediction(name, name).as_text()
    assert (len(text.splitlines()), len(text.split("\t"))) == (1, 5)
    assert text.isprintable() or text.replace("\t", "").isprintable()


@pytest.mark.parametrize("name", ODD)
def test_json_is_one_line_and_gives_the_name_back(name: str) -> None:
    text = prediction(name, name).as_json()
    assert len(text.splitlines()) == 1
    read = json.loads(text)
    assert (read["class"], read["path"], read["probability"]) == (name, str(Path(name)), pytest.approx(0.75))
    assert read["top"][1] == {"class": "other", "probability": pytest.approx(0.25)}


def test_a_path_whose_bytes_are_no_text_comes_back_from_json() -> None:
    text = prediction("cat", os.fsdecode(b"odd\xff.png")).as_json()
    text.encode()  # it can be written
    assert os.fsencode(json.loads(text)["path"]) == b"odd\xff.png"


def test_a_stream_of_ascii_gets_json_too() -> None:
    text = prediction("Größe \U0001f600").as_json(ascii_=True)
    assert text.isascii()
    assert json.loads(text)["class"] == "Größe \U0001f600"
