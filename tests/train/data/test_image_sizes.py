"""Sizes beside data.image_size: that of evaluations, and those of the first epochs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from inference import evaluate_run, export_run, run_command
from jobs import refused, trained
from PIL import Image

from entrypoint import Failure
from train.cli import launch
from train.config import load
from train.config.schema import KEYS, DataConfig
from train.data import image_sizes, loader, registry
from train.data.image_sizes import ProgressiveSize
from train.data.sampler import MicroBatch
from train.data.shape import Shape

CPU = torch.device("cpu")
GROWING = ProgressiveSize(start=96, full=160, epochs=4)


@pytest.fixture
def photos(tmp_path: Path) -> DataConfig:
    """Wide images of noise in two classes."""
    noise = np.random.default_rng(0)
    for split, count in (("train", 8), ("val", 4)):
        for number in range(count):
            path = tmp_path / "photos" / split / "ab"[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(noise.integers(0, 256, (40, 50, 3), np.uint8)).save(path)
    return DataConfig(name="folder", root=str(tmp_path / "photos"), image_size=16, augment="none", classes=2)


@pytest.mark.parametrize("reader", ["memory", "workers"])
def test_evaluation_reads_files_in_its_own_size(photos: DataConfig, reader: str) -> None:
    data = replace(photos, loader=reader, workers=0)  # type: ignore[arg-type]
    splits = image_sizes.with_evaluation_size(registry.open_splits(data), 24)
    opened = loader.open_loader(splits, data, seed=0, device=CPU, cores=1)
    first = MicroBatch(step=0, epoch=0, number=0, samples=np.arange(4))
    ((_, training),) = opened.train([first])
    (evaluation,) = opened.evaluate([np.arange(4)])
    assert training["image"].shape == (4, 3, 16, 16)
    assert evaluation["image"].shape == (4, 3, 24, 24)
    larger = registry.open_splits(replace(data, image_size=24))
    (expected,) = loader.open_loader(larger, data, seed=0, device=CPU, cores=1).evaluate([np.arange(4)])
    assert torch.equal(evaluation["image"], expected["image"])


def test_the_size_of_training_needs_no_other_reader(photos: DataConfig) -> None:
    splits = registry.open_splits(photos)
    assert image_sizes.with_evaluation_size(splits, None) is splits
    assert image_sizes.with_evaluation_size(splits, 16) is splits


def test_samples_of_one_size_are_refused() -> None:
    with pytest.raises(Failure, match="stored in one size") as caught:
        image_sizes.with_evaluation_size(registry.open_splits(DataConfig(samples=20, image_size=8)), 16)
    assert caught.value.code == 64
    assert "folder or table" in str(caught.value.fix)


def test_a_cache_of_one_size_is_refused(photos: DataConfig, tmp_path: Path) -> None:
    words = ["data.name=folder", f"data.root={photos.root}", f"data.cache={tmp_path}", "eval.image_size=64"]
    with pytest.raises(Failure, match="keeps images of one size"):
        launch.check_config(load.load_config(None, words), 1)


def test_images_grow_in_steps_of_eight_pixels_and_then_stay() -> None:
    assert [GROWING.side(epoch) for epoch in range(7)] == [96, 112, 128, 144, 160, 160, 160]
    assert [replace(GROWING, epochs=3).side(epoch) for epoch in range(5)] == [96, 112, 136, 160, 160]


def test_growing_images_keep_their_shape_and_are_scaled_without_aliasing() -> None:
    images = torch.rand(2, 3, 160, 320)
    assert GROWING.scale(images, 0).shape == (2, 3, 96, 192)
    assert GROWING.scale(images, 4) is images
    stripes = torch.arange(160).remainder(2).float().expand(1, 1, 160, 160)
    inner = GROWING.scale(stripes, 0)[..., 4:-4]
    assert float((inner - 0.5).abs().max()) < 0.3  # without antialiasing: up to 0.5


def test_each_epoch_has_its_size() -> None:
    data = DataConfig(samples=20, image_size=24, progressive_size={"start": 8, "epochs": 2})
    opened = loader.open_loader(registry.open_splits(data), data, seed=0, device=CPU, cores=1)
    batches = [MicroBatch(step=epoch, epoch=epoch, number=0, samples=np.arange(2)) for epoch in range(3)]
    assert [batch["image"].shape[-1] for _, batch in opened.train(batches)] == [8, 16, 24]
    (evaluation,) = opened.evaluate([np.arange(2)])
    assert evaluation["image"].shape[-1] == 24


@pytest.mark.parametrize("size", [(16, 16), (8, 32), (3, 32, 32)])
def test_a_start_that_is_not_smaller_and_clips_are_refused(size: tuple[int, ...]) -> None:
    data = DataConfig(progressive_size={"start": 16, "epochs": 1})
    with pytest.raises(Failure, match="grows from a smaller size") as caught:
        ProgressiveSize.of_config(data, Shape(channels=3, size=size))
    assert caught.value.code == 64


@pytest.mark.parametrize("value", [{"start": 8}, {"start": 8, "epochs": 0}, {"start": "8", "epochs": 1}, "8"])
def test_a_progressive_size_that_is_none_is_refused(value: object) -> None:
    assert KEYS["data.progressive_size"].violation(value) is not None


def test_growing_images_are_refused_with_compiled_code() -> None:
    words = ["data.progressive_size={start: 8, epochs: 1}", "train.compile=default"]
    with pytest.raises(Failure, match="each size would be compiled"):
        launch.check_config(load.load_config(None, words), 1)


def test_a_network_for_one_size_is_refused(tmp_path: Path) -> None:
    settings = ("model.name=timm/vit_tiny_patch16_224", "model.args={depth: 1}", "data.image_size=32")
    failure = refused(tmp_path / "run", *settings, "data.progressive_size={start: 16, epochs: 1}")
    assert "does not take samples of 16 x 16 x 3" in failure.what
    assert failure.code == 64


def test_a_run_is_evaluated_predicts_and_is_exported_in_its_own_size(
    photos: DataConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With 32 pixels this network skips the last features: it must be built for the training's size everywhere."""
    words = ["data.name=folder", f"data.root={photos.root}", "data.image_size=32", "data.augment=mirror"]
    words += ["model.name=wide_resnet", "model.args.depth=1", "model.args.width=1", "optim.warmup_epochs=0"]
    words += ["train.global_batch_size=4", "train.micro_batch_size=4", "eval.image_size=40", "eval.flip=true"]
    run = trained(tmp_path / "run", *words, "data.repeats=2")
    assert run.state.best is not None

    def predictions(name: str, *settings: str) -> list[dict[str, Any]]:
        capsys.readouterr()
        assert run_command("predict", tmp_path / name, "--json", "--top", "2", *settings, *images) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    capsys.readouterr()
    assert evaluate_run(tmp_path / "run") == 0
    measured = json.loads(capsys.readouterr().out)
    assert measured["accuracy"] == run.state.best.values["accuracy"]
    assert measured["loss"] == pytest.approx(run.state.best.values["loss"], abs=1e-6)
    images = sorted(map(str, Path(photos.root, "val").rglob("*.png")))
    predicted = predictions("run")
    shares = [
        next(each["probability"] for each in answer["top"] if each["class"] == Path(answer["path"]).parent.name)
        for answer in predicted
    ]
    assert -np.log(shares).mean() == pytest.approx(measured["loss"], abs=1e-5)
    export_run(tmp_path / "run", tmp_path / "export")
    plain = predictions("run", "eval.flip=false")
    assert plain != predicted
    assert predictions("export") == plain


def test_a_run_of_a_network_for_one_size_is_neither_measured_nor_exported_in_another(
    photos: DataConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The default network's last layer sees positions."""
    words = ["data.name=folder", f"data.root={photos.root}", "data.image_size=16", "optim.warmup_epochs=0"]
    trained(tmp_path / "run", *words, "train.global_batch_size=4", "train.micro_batch_size=4")
    image = next(Path(photos.root, "val").rglob("*.png"))
    for command in (["predict", tmp_path / "run", image], ["export", tmp_path / "run", "--output", tmp_path / "model"]):
        assert run_command(*command, "eval.image_size=24") == 64
        assert "small_cnn was built for images of data.image_size" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()
    with pytest.raises(Failure, match=r"small_cnn was built for images of data\.image_size"):
        evaluate_run(tmp_path / "run", "eval.image_size=24")
    capsys.readouterr()
    evaluate_run(tmp_path / "run", "eval.image_size=16")
    assert json.loads(capsys.readouterr().out)["samples"] == 4
