"""What is known before anything is started."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from entrypoint import ExitCode, Failure, LaunchOptions, make_plan
from train.checkpoint import format
from train.cli import check, launch
from train.config import load
from train.config.batches import compute_batch_sizes
from train.config.schema import DataConfig, RunConfig
from train.data import class_folders, registry


def images(root: Path, side: str, number: int) -> None:
    for index in range(number):
        path = root / side / "ab"[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def training(data: DataConfig) -> int:
    return len(registry.open_splits(data).training.labels)


def test_synthetic_training_images_are_all_but_the_validation_images() -> None:
    assert training(DataConfig(samples=1001, val_fraction=0.2)) == 801


def test_a_folder_with_a_test_side_trains_on_the_whole_other_side(tmp_path: Path) -> None:
    images(tmp_path, "train", 10)
    images(tmp_path, "test", 4)
    assert training(DataConfig(name="folder", root=str(tmp_path))) == 10


def test_a_folder_with_one_side_holds_a_fraction_out(tmp_path: Path) -> None:
    images(tmp_path, "", 10)
    assert training(DataConfig(name="folder", root=str(tmp_path), val_fraction=0.2)) == 8


@pytest.mark.parametrize("name", ["synthetic", "cifar10", "mnist", "npz", "tensor", "my.package:factory"])
def test_a_group_needs_files_with_paths(name: str) -> None:
    with pytest.raises(Failure, match=r"data\.group") as caught:
        registry.refuse_unused_key(DataConfig(name=name, group="video"), "group")
    assert caught.value.code == ExitCode.USAGE


@pytest.mark.parametrize("data", [DataConfig(), DataConfig(name="folder", group="video"), DataConfig(name="npz")])
def test_a_group_of_a_folder_and_no_group_are_fine(data: DataConfig) -> None:
    registry.refuse_unused_key(data, "group")


def test_before_a_start_the_group_is_looked_at() -> None:
    with pytest.raises(Failure, match=r"data\.group"):
        launch.check_config(load.load_config(None, ["data.group=video"]), 1)


def test_before_a_start_no_image_is_counted(tmp_path: Path) -> None:
    images(tmp_path, "", 2)
    config = load.load_config(None, ["data.name=folder", f"data.root={tmp_path}"])
    assert launch.check_config(config, 1) == compute_batch_sizes(256, "auto", 1)
    with pytest.raises(Failure, match="smaller than"):
        described("data.name=folder", f"data.root={tmp_path}")


def test_a_missing_data_folder_is_missing_input(tmp_path: Path) -> None:
    with pytest.raises(Failure) as caught:
        launch.check_config(load.load_config(None, ["data.name=folder", f"data.root={tmp_path}/no"]), 1)
    assert caught.value.code == ExitCode.NO_INPUT


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ([], "0.1 (optim.lr: auto) after 31 steps of warmup, then cosine to 0"),
        (
            ["optim.schedule=constant", "optim.warmup_epochs=0.5"],
            "0.1 (optim.lr: auto) after 16 steps of warmup, then constant",
        ),
        (["optim.lr=0.2"], "0.2 after 31 steps of warmup"),
        (["optim.name=adamw", "optim.lr=3e-4"], "adamw, weight decay 0.0005\n"),
        (["train.precision=bf16"], "precision      bf16\n"),
        (["train.max_steps=7"], "31 per epoch, 7 in all"),
        (["data.samples=320"], "no sample is left out"),
        (["model.args.width=8"], "small_cnn {width: 8}"),
    ],
)
def test_the_plan_is_described(settings: list[str], said: str) -> None:
    plan = make_plan({}, LaunchOptions(device="cpu"))
    assert said in check.describe_plan(load.load_config(None, settings), None, plan, None)


def test_steps_of_a_file_whose_header_is_a_pickle_are_counted(tmp_path: Path) -> None:
    torch.save({"x": torch.zeros(50, 8, 8, dtype=torch.uint8), "y": torch.arange(50) % 2}, tmp_path / "a.pt")
    shown = described("data.name=tensor", f"data.root={tmp_path}", "data.image_size=8", "train.global_batch_size=8")
    assert "), samples of 8 x 8 x 1, 2 classes (0, 1): 40 for training, 10 for validation" in shown
    assert "steps          5 per epoch" in shown


def test_keys_of_another_kind_of_data_are_refused_before_anything_starts() -> None:
    with pytest.raises(Failure, match=r"data\.imbalance does not go with"):
        launch.check_config(load.load_config(None, ["data.name=mnist", "data.imbalance=2"]), 1)


def test_the_source_and_the_notes_are_said() -> None:
    shown = check.describe_plan(RunConfig(), "my.yaml", make_plan({}, LaunchOptions(device="cpu")), "mind")
    assert shown.startswith("config         my.yaml\n")
    assert shown.endswith("\nnote: mind")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["model.name=cnn3d"], "cnn3d takes clips, and the data has images"),
        (["data.frames=8"], "small_cnn takes images, and the data has clips"),
        (["data.frames=8", "model.name=resnet18"], "resnet18 takes images, and the data has clips"),
    ],
    ids=str,
)
def test_clips_and_images_are_told_apart_before_a_start(settings: list[str], said: str) -> None:
    with pytest.raises(Failure, match=said) as caught:
        launch.check_config(load.load_config(None, settings), 1)
    assert caught.value.code == ExitCode.USAGE


def test_weights_that_are_not_there_are_missing_input(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"nothing at model\.weights") as caught:
        launch.check_config(load.load_config(None, [f"model.weights={tmp_path}/w.pt"]), 1)
    assert caught.value.code == ExitCode.NO_INPUT


def test_a_run_that_goes_on_needs_its_first_weights_no_more(tmp_path: Path) -> None:
    (tmp_path / "quickstart/checkpoints/step-00000004").mkdir(parents=True)
    settings = [f"model.weights={tmp_path}/w.pt", f"run.output_dir={tmp_path}"]
    launch.check_config(load.load_config(None, settings), 1)
    with pytest.raises(Failure, match=r"nothing at model\.weights"):
        launch.check_config(load.load_config(None, [*settings, "checkpoint.resume=never"]), 1)


@pytest.mark.parametrize(("metric", "target"), [("accuracy", 95), ("macro_f1", -1), ("accuracy", 0), ("loss", 0)])
def test_a_target_that_is_never_reached_or_always_is_refused(metric: str, target: float) -> None:
    with pytest.raises(Failure, match=r"eval\.target") as caught:
        launch.check_config(load.load_config(None, [f"eval.metric={metric}", f"eval.target={target}"]), 1)
    assert caught.value.code == ExitCode.USAGE
    assert ("eval.target=0.95" in caught.value.fix) == (target == 95)


@pytest.mark.parametrize(("metric", "target"), [("accuracy", 1), ("macro_f1", 0.2), ("loss", 1.5)])
def test_a_target_that_can_be_reached_is_not(metric: str, target: float) -> None:
    launch.check_config(load.load_config(None, [f"eval.metric={metric}", f"eval.target={target}"]), 1)


def described(*settings: str) -> str:
    return check.describe_plan(load.load_config(None, settings), None, make_plan({}, LaunchOptions(device="cpu")), None)


def test_what_is_in_an_image_folder_is_counted(tmp_path: Path) -> None:
    images(tmp_path, "", 10)
    (tmp_path / "a/notes.txt").touch()
    shown = described("data.name=folder", f"data.root={tmp_path}", "train.global_batch_size=4")
    assert "samples of 32 x 32 x 3, 2 classes (a, b): 8 for training, 2 for validation\n" in shown
    assert "\nnote: 1 file is not read: .txt (1)\n" in shown
    assert shown.endswith("\nnote: 10 optimizer steps in all are few to learn from: more train.epochs give more")


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        (41, "the last sample of an epoch is left out"),
        (42, "the last 2 samples of an epoch are left out"),
        (40, "no sample is left out"),
    ],
)
def test_what_an_epoch_leaves_out_is_said(samples: int, said: str) -> None:
    settings = (f"data.samples={samples}", "data.classes=2", "data.val_fraction=0", "train.global_batch_size=8")
    assert f" in all; {said}\n" in described(*settings)


def test_repeats_say_how_many_images_an_epoch_has() -> None:
    settings = ("data.samples=42", "data.val_fraction=0", "train.global_batch_size=8", "data.repeats=4")
    assert "an epoch trains on 10 images, 4 times each\n" in described(*settings, "data.classes=2")


def test_an_image_folder_is_walked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images(tmp_path, "train", 10)
    images(tmp_path, "val", 10)
    walked: list[Path] = []
    real = class_folders.walk_class_folder
    monkeypatch.setattr(class_folders, "walk_class_folder", lambda folder: walked.append(folder) or real(folder))
    described("data.name=folder", f"data.root={tmp_path}", "train.global_batch_size=4")
    assert len(walked) == len(set(walked)) == 4


def test_a_run_that_is_there_is_told(tmp_path: Path) -> None:
    config = asdict(load.load_config(None, [f"run.output_dir={tmp_path}"]))
    told = {"state": {"step": 31, "result": None}, "config": config, "data": None}
    format.save_checkpoint(tmp_path / "quickstart/checkpoints", step=31, tensors={}, metadata=told, keep=1)
    assert "\nthis run       would go on from step 31 of 155" in described(f"run.output_dir={tmp_path}")
    refused = described(f"run.output_dir={tmp_path}", "optim.lr=0.3")
    assert "\nWARNING: this run would be refused (65): the configuration is not the one" in refused
