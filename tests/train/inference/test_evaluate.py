"""A checkpoint measured again gives the numbers that its training measured, as one score or as a row for each image."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import flip
from disks import mounted
from evaluations import as_batch, measure, read_together
from images import write_classes
from inference import evaluate_run
from jobs import trained
from processes import python, scratch
from runs import TEN_STEPS, Run
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy

from entrypoint import Failure
from train import __main__ as front
from train.checkpoint import format, manifest, store
from train.config.schema import DataConfig
from train.data import image_folder, registry, splits
from train.data.sampler import rank_blocks
from train.data.shape import Shape
from train.data.splits import DataSplits, ImageFileSource, with_all_as_validation
from train.evaluation import validator
from train.inference import checkpoints, evaluate
from train.logging.metrics_logger import METRICS_FILE, read_events
from train.tasks import TargetScale
from train.tasks.base import Task
from train.tasks.classification import Classification
from train.tasks.multi_label import MultiLabel
from train.tasks.regression import Regression

COUNTED = ("accuracy", "samples", "top5_accuracy", "macro_f1", "recall")
PETS = ("cat", "dog", "owl", "yak")
LOGITS = torch.randn(10, 3, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(10) % 3
TAGS = (torch.arange(30).view(10, 3) % 4 == 0).float()
NUMBERS = torch.arange(10, dtype=torch.float32) / 2
CLASSES = Classification(classes=("a", "b", "c"))
LABEL_SETS = MultiLabel(classes=("a", "b", "c"))
AGES = Regression(classes=("age",), target=TargetScale(mean=2.0, std=3.0))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Ten steps on two ranks, with BatchNorm and an average of the weights; 192 validation images in blocks of 50."""
    folder = tmp_path_factory.mktemp("measuring")
    (folder / "ten.yaml").write_text(TEN_STEPS)
    settings = ("model.args.norm=batch", "eval.batch_size=50", "train.ema_decay=0.9")
    ended = python("-m", "train", "--config", "ten.yaml", "--procs-per-node", "2", *settings, cwd=folder)
    assert ended.returncode == 0, ended.stderr
    return Run(folder=folder / "runs" / "run")


def evaluate_in_shell(run: Run, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return python("-m", "train", "eval", str(run.folder), *arguments, **options)


def numbers(run: Run, *arguments: str) -> dict[str, Any]:
    ended = evaluate_in_shell(run, "--json", *arguments)
    assert ended.returncode == 0, ended.stderr
    output: dict[str, Any] = json.loads(ended.stdout)  # one object, and nothing else
    return output


def last(run: Run) -> dict[str, Any]:
    """What the training itself measured last."""
    return [event for event in read_events(run.folder / METRICS_FILE) if event["event"] == "eval"][-1]


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)])
def test_any_number_of_ranks_measures_what_the_training_did(run: Run, ranks: int) -> None:
    output, before = numbers(run, "--procs-per-node", str(ranks)), last(run)
    assert {name: output[name] for name in COUNTED} == {name: before[name] for name in COUNTED}
    assert output["loss"] == pytest.approx(before["loss"], rel=1e-9)
    assert (output["world_size"], output["weights"], output["step"]) == (ranks, "ema", 10)
    assert output["confusion"] == json.loads((run.folder / "confusion.json").read_text())["matrix"]


@pytest.mark.slow
def test_images_read_by_workers_give_the_same(run: Run) -> None:
    output, before = numbers(run, "data.loader=workers", "data.workers=2", "--procs-per-node", "2"), last(run)
    assert {name: output[name] for name in COUNTED} == {name: before[name] for name in COUNTED}
    assert output["loss"] == pytest.approx(before["loss"], rel=1e-9)


@pytest.mark.parametrize(
    "settings",
    [
        ["eval.batch_size=1"],
        ["eval.batch_size=64"],
        ["eval.batch_size=auto"],
        ["data.loader=workers", "data.workers=0"],
    ],
    ids=lambda settings: settings[0],
)
def test_batches_and_loader_do_not_change_what_is_measured(
    run: Run, settings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate_run(run.folder, *settings) == 0
    output, before = json.loads(capsys.readouterr().out), last(run)
    assert output["confusion"] == json.loads((run.folder / "confusion.json").read_text())["matrix"]
    assert output["loss"] == pytest.approx(before["loss"], rel=1e-5)


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in [folder, *folder.rglob("*")]}


@pytest.mark.slow
def test_nothing_is_written_into_the_run_and_nothing_is_left(run: Run, tmp_path: Path) -> None:
    before = contents(run.folder)
    assert evaluate_in_shell(run, "--procs-per-node", "2", environ={"TMPDIR": str(tmp_path)}).returncode == 0
    assert contents(run.folder) == before
    assert list(tmp_path.glob("train-*")) == []


def test_a_person_reads_a_summary_and_a_table(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate_run(run.folder, as_json=False)
    text = capsys.readouterr().out
    assert "weights        of step 10 (the best and the last), averaged (EMA)" in text
    assert "measured       the 192 validation images of 960 images of synthetic" in text
    assert f"{last(run)['accuracy']:.2%} of 192 validation images" in text
    assert len([line for line in text.splitlines() if "outline-" in line]) == 10


def test_a_failing_rank_keeps_its_log_outside_of_the_run(run: Run, tmp_path: Path) -> None:
    before = contents(run.folder)
    ended = evaluate_in_shell(run, "data.val_fraction=0", environ={"TMPDIR": str(tmp_path)})
    assert (ended.returncode, contents(run.folder)) == (66, before)
    assert "there is no validation image" in ended.stderr
    assert len(list(tmp_path.glob("train-*/logs/rank-0000.log"))) == 1


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """The checkpoint of a tiny run."""
    trainer = trained(tmp_path / "run")
    assert trainer.checkpointer.newest is not None
    return trainer.checkpointer.newest


def test_a_checkpoint_without_an_average_is_measured_by_its_weights(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate_run(small) == 0
    assert json.loads(capsys.readouterr().out)["weights"] == "model"


def test_an_evaluation_reads_the_listing_that_the_users_cache_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_classes(tmp_path / "photos", ant=20, bee=20)
    checkpoint = trained(tmp_path / "run", "data.name=folder", f"data.root={root}").checkpointer.newest
    monkeypatch.setattr(image_folder, "is_worth_keeping", lambda *_, **__: True)
    monkeypatch.setattr(image_folder, "MOUNTS_FILE", Path(os.devnull))
    variables = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert checkpoint is not None
    assert evaluate_run(checkpoint, environ=variables) == 0
    monkeypatch.delattr(image_folder, "list_class_folders")
    assert evaluate_run(checkpoint, environ=variables) == 0


def test_batches_that_do_not_fit_the_gpu_are_told_smaller(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.AcceleratorError("CUDA error: out of memory")  # no GPU said it here

    monkeypatch.setattr(validator, "broadcast_buffers", full)
    with pytest.raises(Failure, match="out of GPU memory") as caught:
        evaluate_run(small, "eval.batch_size=8")
    assert (caught.value.code, caught.value.fix.split()[1]) == (71, "eval.batch_size=2")


def test_the_average_is_measured_where_there_is_one(small: Path) -> None:
    weights = load_file(small / "model.safetensors")
    save_file({name: tensor + 1 for name, tensor in weights.items()}, small / "ema.safetensors")
    reseal(small)
    measured = evaluate.load_weights(checkpoints.choose_checkpoint(str(small)))
    assert measured.averaged
    assert all(torch.equal(measured.tensors[name], tensor + 1) for name, tensor in weights.items())


def reseal(path: Path) -> None:
    """Let the manifest list what is there."""
    before = manifest.from_bytes((path / manifest.FILE_NAME).read_bytes())
    files = {f.name: manifest.make_file_entry(f.read_bytes()) for f in path.iterdir() if f.name != manifest.FILE_NAME}
    after = manifest.Manifest(format=before.format, step=before.step, torch=before.torch, files=files)
    (path / manifest.FILE_NAME).write_bytes(manifest.to_bytes(after))


def without_model(path: Path) -> None:
    (path / "model.safetensors").unlink()
    reseal(path)


def without_a_layer(path: Path) -> None:
    weights = load_file(path / "model.safetensors")
    save_file({name: weights[name] for name in list(weights)[1:]}, path / "model.safetensors")
    reseal(path)


def untold(path: Path) -> None:
    """As a version wrote it that did not tell of the data."""
    recorded = json.loads((path / "state.json").read_text())
    del recorded["data"]
    (path / "state.json").write_text(json.dumps(recorded))
    reseal(path)


BAD: dict[str, tuple[Callable[[Path], object], list[str], int, str]] = {
    "other-classes": (lambda path: None, ["data.classes=3"], 65, "found: 3: outline-0, outline-1, outline-2"),
    "other-classes-of-an-older-one": (untold, ["data.classes=3"], 65, "[2] in the checkpoint, [3] for this data"),
    "other-size": (lambda path: None, ["data.image_size=64"], 65, "in the checkpoint"),
    "no-folder": (lambda path: None, ["data.name=folder", "data.root=nowhere"], 66, "nowhere"),
    "no-validation-images": (lambda path: None, ["data.val_fraction=0"], 66, "no validation image"),
    "no-model": (without_model, [], 65, "no model.safetensors"),
    "a-layer-missing": (without_a_layer, [], 65, "is not in the checkpoint"),
    "half-precision-on-the-cpu": (lambda path: None, ["train.precision=fp16"], 64, "train.precision fp16"),
}


@pytest.mark.parametrize(("spoil", "settings", "code", "text"), BAD.values(), ids=BAD)
def test_what_cannot_be_measured_is_refused(
    small: Path, spoil: Callable[[Path], object], settings: list[str], code: int, text: str
) -> None:
    spoil(small)
    with pytest.raises(Failure) as caught:
        evaluate_run(small, *settings)
    assert caught.value.code == code
    assert text in str(caught.value)


def test_a_file_damaged_between_choosing_and_reading_is_found(small: Path) -> None:
    checkpoint = checkpoints.choose_checkpoint(str(small))
    flip(small / "model.safetensors")
    with pytest.raises(Failure, match="is damaged") as caught:
        evaluate.load_weights(checkpoint)
    assert caught.value.code == 65


def test_what_a_fine_tuned_model_began_with_need_not_be_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = trained(tmp_path)
    assert trainer.checkpointer.newest is not None
    tensors, state = format.load_checkpoint(chosen_committed(trainer.checkpointer.newest))
    state["config"]["model"]["weights"] = str(tmp_path / "gone.safetensors")
    format.save_checkpoint(tmp_path / "other", step=8, tensors=tensors, metadata=state, keep=1)
    assert evaluate_run(tmp_path / "other" / "step-00000008") == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == trainer.state.result.values["accuracy"]  # type: ignore[union-attr]


def chosen_committed(path: Path) -> store.CommittedCheckpoint:
    checkpoint = store.newest_checkpoint(path.parent)
    assert checkpoint is not None
    return checkpoint


@pytest.mark.slow
def test_a_run_that_can_only_be_read_is_measured(small: Path, tmp_path: Path) -> None:
    with mounted(tmp_path / "mounted", "size=16m") as folder:
        shutil.copytree(small.parents[1], folder / "run")
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True, timeout=30)
        ended = python("-m", "train", "eval", str(folder / "run"), "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["samples"] == 16


@pytest.mark.parametrize("loader", ["memory", "workers"])
def test_a_broken_image_is_left_out_as_in_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], loader: str
) -> None:
    write_classes(tmp_path / "data" / "train", cat=20, dog=12)
    write_classes(tmp_path / "data" / "val", cat=5, dog=4)
    (tmp_path / "data" / "val" / "cat" / "002.png").write_bytes(b"no image")
    data_settings = ("data.name=folder", f"data.root={tmp_path / 'data'}", "data.max_bad_images=1")
    trainer = trained(tmp_path / "run", *data_settings, "eval.batch_size=4", f"data.loader={loader}", "data.workers=0")
    capsys.readouterr()
    assert evaluate_run(tmp_path / "run") == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["left_out"], output["samples"]) == (1, 8)
    assert output["loss"] == trainer.state.best.values["loss"]  # type: ignore[union-attr]


@pytest.fixture
def run_on_pets(tmp_path: Path) -> Path:
    """A run on two folders of images: 20 cats and 12 dogs, a quarter of them for validation."""
    write_classes(tmp_path / "pets", cat=20, dog=12)
    data_settings = (
        "data.name=folder",
        f"data.root={tmp_path / 'pets'}",
        "data.val_fraction=0.25",
        "data.classes=2",
    )
    trained(tmp_path / "run", *data_settings)
    return tmp_path


def test_images_of_other_classes_are_refused_by_both_lists_of_names(run_on_pets: Path) -> None:
    write_classes(run_on_pets / "birds", emu=9, jay=9, owl=9)
    with pytest.raises(Failure) as caught:
        evaluate_run(run_on_pets / "run", f"data.root={run_on_pets / 'birds'}")
    assert caught.value.code == 65
    assert "3: emu, jay, owl" in str(caught.value)
    assert "2: cat, dog" in str(caught.value)


def test_images_of_as_many_other_classes_are_refused(run_on_pets: Path) -> None:
    write_classes(run_on_pets / "birds", emu=9, jay=9)
    with pytest.raises(Failure, match="other classes than the model was trained on"):
        evaluate_run(run_on_pets / "run", f"data.root={run_on_pets / 'birds'}", split="all")


def told_of(captured: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], list[str]]:
    printed = captured.readouterr()
    return json.loads(printed.out), [line for line in printed.err.splitlines() if line.startswith("WARNING: ")]


def test_a_split_that_holds_trained_images_is_warned_of_in_a_line(
    run_on_pets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_classes(run_on_pets / "pets", cat=24, dog=16)
    capsys.readouterr()
    assert evaluate_run(run_on_pets / "run") == 0
    output, (warned,) = told_of(capsys)
    assert "images that the model was trained on are among these 10" in warned
    assert [f"WARNING: {note}" for note in output["notes"]] == [warned]


def test_every_image_of_a_test_set_is_measured_once(run_on_pets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_classes(run_on_pets / "test", cat=7, dog=6)
    for path in (run_on_pets / "test").rglob("*.png"):  # not those of the training
        path.rename(path.with_stem(f"test-{path.stem}"))
    capsys.readouterr()
    assert evaluate_run(run_on_pets / "run", f"data.root={run_on_pets / 'test'}", "eval.batch_size=5", split="all") == 0
    output, warned = told_of(capsys)
    assert (output["samples"], [sum(row) for row in output["confusion"]]) == (13, [7, 6])
    assert (output["measured"], output["all"], warned) == (f"all 13 images of {run_on_pets / 'test'}", True, [])


def test_all_of_the_trainings_own_images_agree_with_both_sides(
    run_on_pets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert evaluate_run(run_on_pets / "run", split="all") == 0
    output, (warned,) = told_of(capsys)
    assert output["samples"] == 32
    assert "24 of these 32 images were trained on" in warned


def test_a_test_set_that_lacks_a_class_is_measured_by_the_names_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_classes(tmp_path / "pets", cat=8, dog=8, owl=8)
    write_classes(tmp_path / "test", cat=4, owl=3)
    trained(tmp_path / "run", "data.name=folder", f"data.root={tmp_path / 'pets'}", "data.classes=3")
    capsys.readouterr()
    assert evaluate_run(tmp_path / "run", f"data.root={tmp_path / 'test'}", split="all") == 0
    output, (warned,) = told_of(capsys)
    assert [sum(row) for row in output["confusion"]] == [4, 0, 3]
    assert (output["classes"], output["recall"][1]) == (["cat", "dog", "owl"], None)
    assert "2 of the training's 3 classes are measured: there is no image of dog in" in warned


def test_shards_that_lack_a_class_are_measured_as_the_folder_that_they_were_made_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_classes(tmp_path / "pets", cat=8, dog=8, owl=8)
    write_classes(tmp_path / "test", cat=4, owl=3)
    trained(tmp_path / "run", "data.name=folder", f"data.root={tmp_path / 'pets'}", "data.classes=3")
    assert front.run_command(["data", "pack", str(tmp_path / "test"), "--output", str(tmp_path / "shards")], {}) == 0
    capsys.readouterr()
    assert evaluate_run(tmp_path / "run", f"data.root={tmp_path / 'test'}", split="all") == 0
    by_folder, _ = told_of(capsys)
    assert evaluate_run(tmp_path / "run", "data.name=shards", f"data.root={tmp_path / 'shards'}", split="all") == 0
    by_shards, warned = told_of(capsys)
    assert by_shards["confusion"] == by_folder["confusion"]
    assert [sum(row) for row in by_shards["confusion"]] == [4, 0, 3]
    assert any("2 of the training's 3 classes are measured: there is no image of dog in" in line for line in warned)


OWN = """
from torch import nn

def make(classes, shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape.channels * shape.size[0] * shape.size[1], classes))
"""


@pytest.mark.slow
@pytest.mark.parametrize("named", [("--config", "cfg.yaml"), ("model.name=net_of_ranks:make",)], ids=["file", "typed"])
def test_ranks_run_the_users_own_network_once_he_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: tuple[str, ...]
) -> None:
    (tmp_path / "net_of_ranks.py").write_text(OWN)
    (tmp_path / "cfg.yaml").write_text(
        "model: {name: net_of_ranks:make}\ndata: {samples: 80, image_size: 8, classes: 2}"
    )
    monkeypatch.syspath_prepend(tmp_path)
    trained(tmp_path / "run", "model.name=net_of_ranks:make", "model.args={}", "train.max_steps=2")
    sys.modules.pop("net_of_ranks")
    words = ("-m", "train", "eval", "run", "--json", "--device", "cpu", "--procs-per-node", "2", *named)
    ended = python(*words, cwd=tmp_path)
    assert (ended.returncode, json.loads(ended.stdout)["samples"]) == (0, 16), ended.stderr


@pytest.mark.slow
def test_several_ranks_measure_every_image_and_say_so(run: Run) -> None:
    first, two = (numbers(run, "--all", "--procs-per-node", ranks) for ranks in ("1", "2"))
    assert (first["samples"], first["measured"]) == (960, "all 960 images of synthetic")
    assert {name: first[name] for name in COUNTED} == {name: two[name] for name in COUNTED}


@pytest.mark.slow
def test_torchrun_starts_the_ranks_as_well(run: Run) -> None:
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "train")
    with scratch() as temporary:  # torchrun leaves a folder in it
        line = (*launcher, "eval", str(run.folder), "--device", "cpu", "--json")
        ended = python(*line, environ={"TMPDIR": temporary})
    assert ended.returncode == 0, ended.stderr
    output, before = json.loads(ended.stdout), last(run)
    assert output["world_size"] == 2
    assert {name: output[name] for name in COUNTED} == {name: before[name] for name in COUNTED}


def files(*labels: int, dtype: torch.dtype = torch.int64) -> ImageFileSource:
    return ImageFileSource([f"{number}.png" for number in range(len(labels))], torch.tensor(labels, dtype=dtype), 8)


def sets(*classes: str, dtype: torch.dtype = torch.int64) -> DataSplits:
    shape = Shape(channels=3, size=(8, 8))
    return DataSplits(
        training=files(0, 1, 1, dtype=dtype), validation=files(1, 0, dtype=dtype), classes=classes, shape=shape
    )


@pytest.mark.parametrize("dtype", [torch.int64, torch.int16, torch.uint8], ids=str)
def test_images_of_some_classes_get_the_numbers_of_the_training(dtype: torch.dtype) -> None:
    """In whatever width a source keeps its labels: shards have 16 bits."""
    result = evaluate.map_to_training_classes(sets("dog", "yak", dtype=dtype), PETS)
    assert result.classes == PETS
    assert result.training.labels.tolist() == [1, 3, 3]
    assert result.validation.labels.tolist() == [3, 1]


def test_an_empty_side_stays_empty() -> None:
    none = replace(sets("dog", "yak"), validation=ImageFileSource([], torch.empty(0, dtype=torch.int64), 8))
    assert len(evaluate.map_to_training_classes(none, PETS).validation.labels) == 0


@pytest.mark.parametrize("classes", [PETS, ("dog", "emu"), ("yak", "owl", "dog", "cat")])
def test_all_classes_others_and_another_order_are_left_as_they_are(classes: tuple[str, ...]) -> None:
    given = sets(*classes)
    assert evaluate.map_to_training_classes(given, PETS) is given


def test_classes_that_are_numbers_alone_are_left_as_they_are() -> None:
    given = registry.open_splits(DataConfig(samples=20, classes=2))
    assert evaluate.map_to_training_classes(given, ("outline-0", "outline-1", "outline-2")) is given


def drawn(fraction: float = 0.25) -> DataSplits:
    return registry.open_splits(DataConfig(samples=40, classes=2, image_size=8, val_fraction=fraction))


@pytest.fixture
def pets(tmp_path: Path) -> DataSplits:
    """Eight images of cats and four of dogs, a quarter of them for validation."""
    root = write_classes(tmp_path / "pets", cat=8, dog=4)
    return registry.open_splits(DataConfig(name="folder", root=str(root), image_size=8, val_fraction=0.25))


def test_every_sample_of_both_sides_is_there_once_with_its_label() -> None:
    sets = drawn()
    joined = splits.with_all_as_validation(sets).validation
    assert joined.labels.tolist() == [*sets.training.labels.tolist(), *sets.validation.labels.tolist()]
    assert torch.equal(joined.read(np.arange(30)), sets.training.read(np.arange(30)))
    assert torch.equal(joined.read(np.arange(30, 40)), sets.validation.read(np.arange(10)))


def test_samples_of_both_sides_come_in_the_order_that_was_asked_for() -> None:
    sets = drawn()
    joined = splits.with_all_as_validation(sets).validation.read(np.array([31, 2, 30, 29]))
    own, others = sets.training.read(np.array([2, 29])), sets.validation.read(np.array([1, 0]))
    assert torch.equal(joined, torch.stack([others[0], own[0], others[1], own[1]]))


def test_without_a_validation_split_the_training_split_is_all() -> None:
    sets = drawn(fraction=0)
    assert splits.with_all_as_validation(sets).validation is sets.training


def test_image_files_stay_image_files(pets: DataSplits) -> None:
    joined = splits.with_all_as_validation(pets).validation
    assert isinstance(joined, ImageFileSource)
    assert len(set(joined.paths)) == len(joined.labels) == 12
    assert all(
        Path(path).parent.name == pets.classes[label] for path, label in zip(joined.paths, joined.labels, strict=True)
    )


def test_a_file_that_cannot_be_read_has_one_number(pets: DataSplits) -> None:
    joined = splits.with_all_as_validation(pets).validation
    assert isinstance(joined, ImageFileSource)
    Path(str(joined.paths[11])).write_text("no image")
    with pytest.raises(Failure, match="image 11 cannot be read"):
        joined.read(np.array([11]))


def test_what_else_there_is_to_know_of_the_data_stays() -> None:
    sets = drawn()
    assert (splits.with_all_as_validation(sets).classes, splits.with_all_as_validation(sets).shape) == (
        sets.classes,
        sets.shape,
    )


def collected(
    world_size: int,
    broken: tuple[int, ...] = (),
    task: Task = CLASSES,
    outputs: torch.Tensor = LOGITS,
    labels: torch.Tensor = LABELS,
) -> tuple[list[int], list[Any]]:
    """The samples and the rows of ten images in blocks of three, of which a loader leaves the broken ones out."""
    ranks = []
    for rank in range(world_size):
        blocks = rank_blocks(10, 3, rank=rank, world_size=world_size)
        readable = [torch.tensor([sample for sample in block.tolist() if sample not in broken]) for block in blocks]
        batches = [{"image": outputs[rows], "label": labels[rows], "sample": rows} for rows in readable if len(rows)]
        ranks.append(measure(task, batches, details=True))
    results = task.image_results(read_together(ranks)[0].rows, THRESHOLDS)
    return results.samples.tolist(), [*map(list, results.cells)]


THRESHOLDS = (0.5, 0.25, 0.75)
TASKS = {
    "classification": (CLASSES, LOGITS, LABELS),
    "multi_label": (LABEL_SETS, LOGITS, TAGS),
    "regression": (AGES, LOGITS[:, :1], NUMBERS),
}


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_any_number_of_ranks_gives_the_same_results(world_size: int, task: Any) -> None:
    assert collected(world_size, (), *task) == collected(1, (), *task)


def test_each_image_has_its_own_prediction_confidence_and_loss() -> None:
    samples, rows = collected(1)
    assert samples == list(range(10))
    labels, predictions, confidences, losses = zip(*rows, strict=True)
    assert labels == tuple("abc"[label] for label in LABELS.tolist())
    assert predictions == tuple("abc"[label] for label in LOGITS.argmax(dim=1).tolist())
    assert confidences == pytest.approx(LOGITS.softmax(dim=1).amax(dim=1).tolist())
    assert losses == pytest.approx(cross_entropy(LOGITS, LABELS, reduction="none").tolist())


def test_each_image_has_its_own_labels_those_above_their_threshold_and_the_loss_of_the_training() -> None:
    _, rows = collected(1, (), LABEL_SETS, LOGITS, TAGS)
    labels, predictions, losses = zip(*rows, strict=True)
    predicted = LOGITS.sigmoid() >= torch.tensor(THRESHOLDS)
    for names, members in ((labels, TAGS.bool()), (predictions, predicted)):
        assert names == tuple("|".join(name for name, has in zip("abc", row, strict=True) if has) for row in members)
    assert losses == pytest.approx(LABEL_SETS.losses(LOGITS, TAGS).tolist())


def test_each_image_has_its_own_number_in_the_unit_of_the_labels() -> None:
    _, rows = collected(1, (), AGES, LOGITS[:, :1], NUMBERS)
    numbers, predictions, errors = zip(*rows, strict=True)
    assert list(numbers) == NUMBERS.tolist()
    assert predictions == pytest.approx((LOGITS[:, 0] * 3 + 2).tolist())
    assert errors == pytest.approx((LOGITS[:, 0] * 3 + 2 - NUMBERS).tolist(), abs=1e-6)


@pytest.mark.parametrize("broken", [(4,), (3, 4, 5), (0, 9), (1, 2, 6, 7)])
def test_broken_images_are_left_out_and_the_others_keep_their_numbers(broken: tuple[int, ...]) -> None:
    samples, rows = collected(1, broken)
    assert samples == [sample for sample in range(10) if sample not in broken]
    assert [row[0] for row in rows] == ["abc"[sample % 3] for sample in samples]


NAN = torch.nan
NOT_FINITE = {
    "classification": (
        (Classification, torch.tensor([[1.0, NAN], [0.0, 2.0]]), torch.tensor([0, 1])),
        "label,prediction,confidence,loss",
        ["'-x,y,,", "y,y,0.880797,0.126928"],
    ),
    "multi_label": (
        (MultiLabel, torch.tensor([[NAN, NAN], [4.0, 2.0]]), torch.tensor([[1.0, 0.0], [1.0, 1.0]])),
        "labels,predictions,loss",
        ["'-x,,", "'-x|y,'-x|y,0.072539"],
    ),
    "regression": (
        (Regression, torch.tensor([[NAN], [0.5]]), torch.tensor([-4.0, 3.0])),
        "number,prediction,error",
        ["-4.0,,", "3.0,3.5,0.5"],
    ),
}


@pytest.mark.parametrize(("case", "head", "lines"), NOT_FINITE.values(), ids=NOT_FINITE)
def test_outputs_that_are_not_finite_leave_empty_cells(case: Any, head: str, lines: list[str]) -> None:
    of, outputs, labels = case
    task = of(classes=("-x", "y")[: outputs.shape[1]], target=AGES.target)
    (totals,) = read_together([measure(task, [as_batch(outputs, labels)], details=True)])
    results = task.image_results(totals.rows, (0.5, 0.5))
    table = evaluate.encode_per_image(results, ImageFileSource(["=a.png", "b.png"], torch.zeros(2), 8))
    rows = [",".join(row) for row in csv.reader(table.decode("utf-8-sig").splitlines())]
    assert rows == [f"path,{head}", f"./=a.png,{lines[0]}", f"b.png,{lines[1]}"]


def evaluated(run: Path, table: Path, *settings: str, all_: bool = False) -> list[dict[str, str]]:
    evaluate_run(run, *settings, split="all" if all_ else "validation", per_image=table)
    with table.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("loader", ["memory", "workers"])
def test_the_rows_are_the_images_that_were_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], loader: str
) -> None:
    write_classes(tmp_path / "data" / "train", cat=20, dog=12)
    write_classes(tmp_path / "data" / "val", cat=5, dog=4)
    broken = tmp_path / "data" / "val" / "cat" / "002.png"
    broken.write_bytes(b"no image")
    data_settings = ("data.name=folder", f"data.root={tmp_path / 'data'}", "data.max_bad_images=1")
    trained(tmp_path / "run", *data_settings, "eval.batch_size=4", f"data.loader={loader}", "data.workers=0")
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
    assert sets.validation.file_names is None
    assert [labels[int(name)] for name in sets.validation.names(np.arange(4))] == sets.validation.labels.tolist()


def test_rows_of_both_splits_are_told_apart(tmp_path: Path) -> None:
    sets = registry.open_splits(DataConfig(samples=20, classes=2))
    both = with_all_as_validation(sets).validation
    assert both.names(np.array([3, len(sets.training.labels) + 1])) == ["training 3", "validation 1"]


@pytest.mark.parametrize("is_absolute", [False, True])
def test_images_of_a_table_have_the_paths_that_the_table_has(tmp_path: Path, is_absolute: bool) -> None:
    write_classes(tmp_path / "photos", cat=4, dog=4)
    files = [*map(str, sorted((tmp_path / "photos").rglob("*.png")))]
    paths = files if is_absolute else [str(Path(file).relative_to(tmp_path)) for file in files]
    lines = [f"{path},{Path(path).parent.name}" for path in paths]
    (tmp_path / "photos.csv").write_text("\n".join(["path,label", *lines]))
    sets = registry.open_splits(DataConfig(name="table", root=str(tmp_path / "photos.csv"), val_fraction=0.5))
    source = with_all_as_validation(sets).validation
    assert sorted(source.names(np.arange(8))) == paths
    assert sorted(source.file_names or ()) == files
    assert {*sets.validation.names(np.arange(4))} < {*paths}
