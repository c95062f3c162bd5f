"""`train data show` draws the images that the network gets, without training."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from images import write_classes
from jobs import TINY, built
from PIL import Image

from entrypoint import ExitCode, Failure
from train import __main__ as front
from train.cli import data_show
from train.config import load
from train.data import augment
from train.data.preprocessing import Preprocessing
from train.report import plots


def png_size(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        return image.size


@pytest.mark.parametrize("augmentation", ["standard", "[translate, mirror, cutout]", "none"])
def test_the_images_are_those_of_the_first_steps(tmp_path: Path, augmentation: str) -> None:
    settings = (f"data.augment={augmentation}", "run.seed=3")
    with built(tmp_path / "run", *settings) as trainer:
        seen = trainer.loader.train(trainer.sampler.micro_batches(0))
        batches = [next(seen)[1] for _ in range(4)]
        images, labels = (torch.cat([batch[name] for batch in batches]) for name in ("image", "label"))
        classes = trainer.dataset.classes
    shown = data_show.first_samples(load.load_config(None, load.keep_last_overrides([*TINY, *settings])))
    assert [name for _, name in shown] == [classes[label] for label in labels.tolist()]
    for (image, _), expected in zip(shown, images, strict=True):
        shade = augment.normalize(image[None])[0]  # a gray border lies between two bytes
        assert (shade - expected).abs().max() <= 0.5 / 63.75 + 1e-6


def test_balanced_sampling_shows_the_images_that_the_training_draws(tmp_path: Path) -> None:
    settings = ("data.sampling=balanced", "data.imbalance=10")
    with built(tmp_path / "run", *settings) as trainer:
        seen = trainer.loader.train(trainer.sampler.micro_batches(0))
        labels = torch.cat([next(seen)[1]["label"] for _ in range(4)])
        classes = trainer.dataset.classes
    shown = data_show.first_samples(load.load_config(None, load.keep_last_overrides([*TINY, *settings])))
    assert [name for _, name in shown] == [classes[label] for label in labels.tolist()]
    assert labels.bincount().min() > 32 / 4  # of the images, one in ten


@pytest.mark.parametrize("preprocessing", [Preprocessing(), Preprocessing(mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.1))])
def test_any_normalization_is_undone_to_the_byte(preprocessing: Preprocessing) -> None:
    pixels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(2, 3, 16, 16)
    mean, std = (torch.tensor(each).view(1, -1, 1, 1) for each in (preprocessing.mean, preprocessing.std))
    assert torch.equal(augment.undo_normalization((pixels / 255 - mean) / std, preprocessing), pixels)


def test_the_picture_goes_into_the_runs_folder_and_its_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_classes(tmp_path / "pets", cat=20, dog=20)
    data_settings = ("data.name=folder", f"data.root={tmp_path / 'pets'}", "data.image_size=8", "data.classes=2")
    words = ["data", "show", *data_settings, "run.name=mine", "train.global_batch_size=10"]
    assert front.run_command(words, {}) == 0
    assert "mine-samples.png: 32 training images" in capsys.readouterr().out
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "metrics.jsonl").write_text('{"event": "train", "step": 1, "loss": 1.0}\n')
    assert front.run_command(words, {}) == 0
    assert png_size(tmp_path / "runs" / "mine" / "samples.png") == png_size(tmp_path / "mine-samples.png")
    assert front.run_command(["report", "runs/mine"], {}) == 0
    report = tmp_path / "runs" / "mine" / "report"
    assert "What the network sees" in (report / "report.html").read_text()
    assert (report / "samples.png").read_bytes() == (tmp_path / "runs" / "mine" / "samples.png").read_bytes()


def test_a_picture_that_is_none_is_left_out_of_the_report(tmp_path: Path) -> None:
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "metrics.jsonl").write_text('{"event": "train", "step": 1, "loss": 1.0}\n')
    (tmp_path / "runs" / "mine" / "samples.png").write_bytes(b"\x89PNG\r\n\x1a\n<script>")
    assert front.run_command(["report", "runs/mine"], {}) == 0
    assert "What the network sees" not in (tmp_path / "runs" / "mine" / "report" / "report.html").read_text()


REFUSED = {
    "another-suffix": (("data", "show", "--output", "a.jpg"), 64),
    "no-folder": (("data", "show", "--output", "none/a.png"), 73),
    "another-command": (("data", "check", "--output", "a.png"), 64),
    "a-training": (("check", "--output", "a.png"), 64),
    "a-group-without-files": (("data", "show", "data.group=x"), 64),
    "less-than-a-batch": (("data", "show", "data.samples=20"), 64),
}


@pytest.mark.parametrize(("words", "code"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_shown_is_refused_and_nothing_is_written(
    words: tuple[str, ...], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert front.run_command(words, {}) == code
    assert "fix:" in capsys.readouterr().err
    assert list(Path().iterdir()) == []


def test_clips_show_their_middle_frame_and_floats_are_stretched() -> None:
    clips = data_show.first_samples(load.load_config(None, ["data.frames=4", "data.image_size=16", "data.samples=800"]))
    assert (len(clips), clips[0][0].shape[:3]) == (32, (4, 16, 16))
    gray = np.zeros((8, 12), np.uint8)
    with Image.open(io.BytesIO(plots.draw_samples([(gray, "a" * 99)] * 3, "b" * 999))) as image:
        assert image.width > 800


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    write_classes(tmp_path / "pets", cat=20, dog=20)
    for path in (tmp_path / "pets" / "cat").iterdir():
        path.write_bytes(b"no image")
    config = load.load_config(None, ["data.name=folder", "data.image_size=8", "train.global_batch_size=10"])
    config = replace(config, data=replace(config.data, root=str(tmp_path / "pets"), classes=2))
    with pytest.raises(Failure) as caught:
        data_show.first_samples(config)
    assert caught.value.code == ExitCode.DATA
