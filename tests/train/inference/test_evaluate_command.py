"""A checkpoint measured again gives the numbers that its training measured, on any world."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import flip
from disks import mounted
from images import write_classes
from jobs import ALONE, forget_accelerate, trained
from processes import python, scratch
from runs import TEN_STEPS, Run
from safetensors.torch import load_file, save_file

from entrypoint import Failure
from train import __main__ as front
from train.checkpoint import format, manifest, store
from train.data import image_folder
from train.evaluation import validator
from train.inference import checkpoints, evaluate
from train.logging.metrics_logger import METRICS_FILE, read_events

COUNTED = ("accuracy", "samples", "top5_accuracy", "macro_f1", "recall")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Ten steps on two ranks, with BatchNorm and an average of the weights; 192 validation images in blocks of 50."""
    place = tmp_path_factory.mktemp("measuring")
    (place / "ten.yaml").write_text(TEN_STEPS)
    settings = ("model.args.norm=batch", "eval.batch_size=50", "train.ema_decay=0.9")
    ended = python("-m", "train", "--config", "ten.yaml", "--procs-per-node", "2", *settings, cwd=place)
    assert ended.returncode == 0, ended.stderr
    return Run(folder=place / "runs" / "run")


def evaluated(run: Run, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return python("-m", "train", "eval", str(run.folder), *arguments, **options)


def numbers(run: Run, *arguments: str) -> dict[str, Any]:
    ended = evaluated(run, "--json", *arguments)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)  # one object, and nothing else
    return found


def last(run: Run) -> dict[str, Any]:
    """What the training itself measured last."""
    return [event for event in read_events(run.folder / METRICS_FILE) if event["event"] == "eval"][-1]


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)])
def test_any_number_of_ranks_measures_what_the_training_did(run: Run, ranks: int) -> None:
    found, before = numbers(run, "--procs-per-node", str(ranks)), last(run)
    assert {name: found[name] for name in COUNTED} == {name: before[name] for name in COUNTED}
    assert found["loss"] == pytest.approx(before["loss"], rel=1e-9)
    assert (found["world_size"], found["weights"], found["step"]) == (ranks, "ema", 10)
    assert found["confusion"] == json.loads((run.folder / "confusion.json").read_text())["matrix"]


@pytest.mark.slow
def test_images_read_by_workers_give_the_same(run: Run) -> None:
    found, before = numbers(run, "data.loader=workers", "data.workers=2", "--procs-per-node", "2"), last(run)
    assert {name: found[name] for name in COUNTED} == {name: before[name] for name in COUNTED}
    assert found["loss"] == pytest.approx(before["loss"], rel=1e-9)


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
    assert measure(run.folder, *settings) == 0
    found, before = json.loads(capsys.readouterr().out), last(run)
    assert found["confusion"] == json.loads((run.folder / "confusion.json").read_text())["matrix"]
    assert found["loss"] == pytest.approx(before["loss"], rel=1e-5)


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in [folder, *folder.rglob("*")]}


@pytest.mark.slow
def test_nothing_is_written_into_the_run_and_nothing_is_left(run: Run, tmp_path: Path) -> None:
    before = contents(run.folder)
    assert evaluated(run, "--procs-per-node", "2", environ={"TMPDIR": str(tmp_path)}).returncode == 0
    assert contents(run.folder) == before
    assert list(tmp_path.glob("train-*")) == []


def test_a_person_reads_a_summary_and_a_table(run: Run) -> None:
    text = evaluated(run).stdout
    assert "weights        of step 10 (the best and the last), averaged (EMA)" in text
    assert "measured       the 192 validation images of 960 images of synthetic" in text
    assert f"{last(run)['accuracy']:.2%} of 192 validation images" in text
    assert len([line for line in text.splitlines() if "outline-" in line]) == 10


def test_a_failing_rank_keeps_its_log_outside_of_the_run(run: Run, tmp_path: Path) -> None:
    before = contents(run.folder)
    ended = evaluated(run, "data.val_fraction=0", environ={"TMPDIR": str(tmp_path)})
    assert (ended.returncode, contents(run.folder)) == (66, before)
    assert "there is no validation image" in ended.stderr
    assert len(list(tmp_path.glob("train-*/logs/rank-0000.log"))) == 1


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """The checkpoint of a tiny run."""
    trainer = trained(tmp_path / "run")
    assert trainer.checkpointer.newest is not None
    return trainer.checkpointer.newest


def measure(
    path: Path,
    *settings: str,
    as_json: bool = True,
    split: checkpoints.EvaluatedSplit = "validation",
    environ: dict[str, str] | None = None,
) -> int:
    found = checkpoints.choose_checkpoint(str(path))
    config, _ = checkpoints.load_config(found, None, settings)
    forget_accelerate()
    try:
        return evaluate.evaluate_on_rank(config, found, ALONE, environ or {}, as_json=as_json, split=split)
    finally:
        forget_accelerate()


def test_a_checkpoint_without_an_average_is_measured_by_its_weights(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert measure(small) == 0
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
    assert measure(checkpoint, environ=variables) == 0
    monkeypatch.delattr(image_folder, "list_class_folders")
    assert measure(checkpoint, environ=variables) == 0


def test_batches_that_do_not_fit_the_gpu_are_told_smaller(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.AcceleratorError("CUDA error: out of memory")  # no GPU said it here

    monkeypatch.setattr(validator, "broadcast_buffers", full)
    with pytest.raises(Failure, match="out of GPU memory") as caught:
        measure(small, "eval.batch_size=8")
    assert (caught.value.code, caught.value.fix.split()[1]) == (71, "eval.batch_size=2")


def test_the_average_is_measured_where_there_is_one(small: Path) -> None:
    weights = load_file(small / "model.safetensors")
    save_file({name: tensor + 1 for name, tensor in weights.items()}, small / "ema.safetensors")
    reseal(small)
    found = evaluate.load_weights(checkpoints.choose_checkpoint(str(small)))
    assert found.averaged
    assert all(torch.equal(found.tensors[name], tensor + 1) for name, tensor in weights.items())


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
    told = json.loads((path / "state.json").read_text())
    del told["data"]
    (path / "state.json").write_text(json.dumps(told))
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


@pytest.mark.parametrize(("spoil", "settings", "code", "said"), BAD.values(), ids=BAD)
def test_what_cannot_be_measured_is_refused(
    small: Path, spoil: Callable[[Path], object], settings: list[str], code: int, said: str
) -> None:
    spoil(small)
    with pytest.raises(Failure) as caught:
        measure(small, *settings)
    assert caught.value.code == code
    assert said in str(caught.value)


def test_a_file_damaged_between_choosing_and_reading_is_found(small: Path) -> None:
    found = checkpoints.choose_checkpoint(str(small))
    flip(small / "model.safetensors")
    with pytest.raises(Failure, match="is damaged") as caught:
        evaluate.load_weights(found)
    assert caught.value.code == 65


def test_what_a_fine_tuned_model_began_with_need_not_be_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = trained(tmp_path)
    assert trainer.checkpointer.newest is not None
    tensors, state = format.load_checkpoint(chosen_committed(trainer.checkpointer.newest))
    state["config"]["model"]["weights"] = str(tmp_path / "gone.safetensors")
    format.save_checkpoint(tmp_path / "other", step=8, tensors=tensors, metadata=state, keep=1)
    assert measure(tmp_path / "other" / "step-00000008") == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == trainer.state.result.values["accuracy"]  # type: ignore[union-attr]


def chosen_committed(path: Path) -> store.CommittedCheckpoint:
    found = store.newest_checkpoint(path.parent)
    assert found is not None
    return found


@pytest.mark.slow
def test_a_run_that_can_only_be_read_is_measured(small: Path, tmp_path: Path) -> None:
    with mounted(tmp_path / "mounted", "size=16m") as place:
        shutil.copytree(small.parents[1], place / "run")
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True, timeout=30)
        ended = python("-m", "train", "eval", str(place / "run"), "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["samples"] == 16


@pytest.mark.parametrize("loader", ["memory", "workers"])
def test_a_broken_image_is_left_out_as_in_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], loader: str
) -> None:
    write_classes(tmp_path / "data" / "train", cat=20, dog=12)
    write_classes(tmp_path / "data" / "val", cat=5, dog=4)
    (tmp_path / "data" / "val" / "cat" / "002.png").write_bytes(b"no image")
    place = ("data.name=folder", f"data.root={tmp_path / 'data'}", "data.max_bad_images=1")
    trainer = trained(tmp_path / "run", *place, "eval.batch_size=4", f"data.loader={loader}", "data.workers=0")
    capsys.readouterr()
    assert measure(tmp_path / "run") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["left_out"], found["samples"]) == (1, 8)
    assert found["loss"] == trainer.state.best.values["loss"]  # type: ignore[union-attr]


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """A run on two folders of images: 20 cats and 12 dogs, a quarter of them for validation."""
    write_classes(tmp_path / "pets", cat=20, dog=12)
    place = ("data.name=folder", f"data.root={tmp_path / 'pets'}", "data.val_fraction=0.25", "data.classes=2")
    trained(tmp_path / "run", *place)
    return tmp_path


def test_images_of_other_classes_are_refused_by_both_lists_of_names(pets: Path) -> None:
    write_classes(pets / "birds", emu=9, jay=9, owl=9)
    with pytest.raises(Failure) as caught:
        measure(pets / "run", f"data.root={pets / 'birds'}")
    assert caught.value.code == 65
    assert "3: emu, jay, owl" in str(caught.value)
    assert "2: cat, dog" in str(caught.value)


def test_images_of_as_many_other_classes_are_refused(pets: Path) -> None:
    write_classes(pets / "birds", emu=9, jay=9)
    with pytest.raises(Failure, match="other classes than the model was trained on"):
        measure(pets / "run", f"data.root={pets / 'birds'}", split="all")


def told_of(captured: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], list[str]]:
    said = captured.readouterr()
    return json.loads(said.out), [line for line in said.err.splitlines() if line.startswith("WARNING: ")]


def test_a_split_that_holds_trained_images_is_warned_of_in_a_line(
    pets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_classes(pets / "pets", cat=24, dog=16)
    capsys.readouterr()
    assert measure(pets / "run") == 0
    found, (warned,) = told_of(capsys)
    assert "images that the model was trained on are among these 10" in warned
    assert [f"WARNING: {note}" for note in found["notes"]] == [warned]


def test_every_image_of_a_test_set_is_measured_once(pets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_classes(pets / "test", cat=7, dog=6)
    capsys.readouterr()
    assert measure(pets / "run", f"data.root={pets / 'test'}", "eval.batch_size=5", split="all") == 0
    found, warned = told_of(capsys)
    assert (found["samples"], [sum(row) for row in found["confusion"]]) == (13, [7, 6])
    assert (found["measured"], found["all"], warned) == (f"all 13 images of {pets / 'test'}", True, [])


def test_all_of_the_trainings_own_images_agree_with_both_sides(pets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert measure(pets / "run", split="all") == 0
    found, (warned,) = told_of(capsys)
    assert found["samples"] == 32
    assert "24 of these 32 images were trained on" in warned


def test_a_test_set_that_lacks_a_class_is_measured_by_the_names_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_classes(tmp_path / "pets", cat=8, dog=8, owl=8)
    write_classes(tmp_path / "test", cat=4, owl=3)
    trained(tmp_path / "run", "data.name=folder", f"data.root={tmp_path / 'pets'}", "data.classes=3")
    capsys.readouterr()
    assert measure(tmp_path / "run", f"data.root={tmp_path / 'test'}", split="all") == 0
    found, (warned,) = told_of(capsys)
    assert [sum(row) for row in found["confusion"]] == [4, 0, 3]
    assert (found["classes"], found["recall"][1]) == (["cat", "dog", "owl"], None)
    assert "2 of the training's 3 classes are measured: there is no image of dog in" in warned


def test_shards_that_lack_a_class_are_measured_as_the_folder_that_they_were_made_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_classes(tmp_path / "pets", cat=8, dog=8, owl=8)
    write_classes(tmp_path / "test", cat=4, owl=3)
    trained(tmp_path / "run", "data.name=folder", f"data.root={tmp_path / 'pets'}", "data.classes=3")
    assert front.run_command(["data", "pack", str(tmp_path / "test"), "--output", str(tmp_path / "shards")], {}) == 0
    capsys.readouterr()
    assert measure(tmp_path / "run", f"data.root={tmp_path / 'test'}", split="all") == 0
    by_folder, _ = told_of(capsys)
    assert measure(tmp_path / "run", "data.name=shards", f"data.root={tmp_path / 'shards'}", split="all") == 0
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
    one, two = (numbers(run, "--all", "--procs-per-node", ranks) for ranks in ("1", "2"))
    assert (one["samples"], one["measured"]) == (960, "all 960 images of synthetic")
    assert {name: one[name] for name in COUNTED} == {name: two[name] for name in COUNTED}


@pytest.mark.slow
def test_torchrun_starts_the_ranks_as_well(run: Run) -> None:
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "train")
    with scratch() as temporary:  # torchrun leaves a folder in it
        line = (*launcher, "eval", str(run.folder), "--device", "cpu", "--json")
        ended = python(*line, environ={"TMPDIR": temporary})
    assert ended.returncode == 0, ended.stderr
    found, before = json.loads(ended.stdout), last(run)
    assert found["world_size"] == 2
    assert {name: found[name] for name in COUNTED} == {name: before[name] for name in COUNTED}
