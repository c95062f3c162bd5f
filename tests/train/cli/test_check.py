"""What `train check` says before anything is started, and what a start then does in a folder with an earlier run."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import plant
from images import write_classes
from jobs import ALONE, TINY, forget_accelerate

from entrypoint import ExitCode, Failure, LaunchOptions, make_plan
from train import session
from train.checkpoint import format
from train.cli import check, launch
from train.config import environment, load
from train.config.batches import StepCounts, compute_batch_sizes
from train.config.load import keep_last_overrides
from train.config.schema import DataConfig, RunConfig
from train.data import class_folders, registry
from train.rank_context import RankContext
from train.run import lock, record

SCORES = {"accuracy": 0.9, "loss": 0.3, "samples": 10}
HERE = (*TINY, "data.name=folder", "data.root=pets", "run.output_dir=runs", "run.name=run", "checkpoint.every_steps=4")
IDLE = ("data.samples=80", "data.classes=2")  # of other data
SETTINGS = tuple(setting for setting in HERE if setting not in IDLE)
RUN = Path("runs/run")
LAST, FIRST = RUN / "checkpoints/step-00000008", RUN / "checkpoints/step-00000004"
Change = Callable[[], object]


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
        described_plan("data.name=folder", f"data.root={tmp_path}")


def test_a_missing_data_folder_is_missing_input(tmp_path: Path) -> None:
    with pytest.raises(Failure) as caught:
        launch.check_config(load.load_config(None, ["data.name=folder", f"data.root={tmp_path}/no"]), 1)
    assert caught.value.code == ExitCode.NO_INPUT


@pytest.mark.parametrize(
    ("settings", "text"),
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
def test_the_plan_is_described(settings: list[str], text: str) -> None:
    plan = make_plan({}, LaunchOptions(device="cpu"))
    assert text in check.describe_plan(load.load_config(None, settings), None, plan, None)


def test_steps_of_a_file_whose_header_is_a_pickle_are_counted(tmp_path: Path) -> None:
    torch.save({"x": torch.zeros(50, 8, 8, dtype=torch.uint8), "y": torch.arange(50) % 2}, tmp_path / "a.pt")
    shown = described_plan(
        "data.name=tensor", f"data.root={tmp_path}", "data.image_size=8", "train.global_batch_size=8"
    )
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
    ("settings", "text"),
    [
        (["model.name=cnn3d"], "cnn3d takes clips, and the data has images"),
        (["data.frames=8"], "small_cnn takes images, and the data has clips"),
        (["data.frames=8", "model.name=resnet18"], "resnet18 takes images, and the data has clips"),
    ],
    ids=str,
)
def test_clips_and_images_are_told_apart_before_a_start(settings: list[str], text: str) -> None:
    with pytest.raises(Failure, match=text) as caught:
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


def described_plan(*settings: str) -> str:
    return check.describe_plan(load.load_config(None, settings), None, make_plan({}, LaunchOptions(device="cpu")), None)


def test_what_is_in_an_image_folder_is_counted(tmp_path: Path) -> None:
    images(tmp_path, "", 10)
    (tmp_path / "a/notes.txt").touch()
    shown = described_plan("data.name=folder", f"data.root={tmp_path}", "train.global_batch_size=4")
    assert "samples of 32 x 32 x 3, 2 classes (a, b): 8 for training, 2 for validation\n" in shown
    assert "\nnote: 1 file is not read: .txt (1)\n" in shown
    assert shown.endswith("\nnote: 10 optimizer steps in all are few to learn from: more train.epochs give more")


@pytest.mark.parametrize(
    ("samples", "text"),
    [
        (41, "the last sample of an epoch is left out"),
        (42, "the last 2 samples of an epoch are left out"),
        (40, "no sample is left out"),
    ],
)
def test_what_an_epoch_leaves_out_is_said(samples: int, text: str) -> None:
    settings = (f"data.samples={samples}", "data.classes=2", "data.val_fraction=0", "train.global_batch_size=8")
    assert f" in all; {text}\n" in described_plan(*settings)


def test_repeats_say_how_many_images_an_epoch_has() -> None:
    settings = ("data.samples=42", "data.val_fraction=0", "train.global_batch_size=8", "data.repeats=4")
    assert "an epoch trains on 10 images, 4 times each\n" in described_plan(*settings, "data.classes=2")


def test_an_image_folder_is_walked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images(tmp_path, "train", 10)
    images(tmp_path, "val", 10)
    walked: list[Path] = []
    real = class_folders.walk_class_folder
    monkeypatch.setattr(class_folders, "walk_class_folder", lambda folder: walked.append(folder) or real(folder))
    described_plan("data.name=folder", f"data.root={tmp_path}", "train.global_batch_size=4")
    assert len(walked) == len(set(walked)) == 4


def test_a_run_that_is_there_is_told(tmp_path: Path) -> None:
    config = asdict(load.load_config(None, [f"run.output_dir={tmp_path}"]))
    recorded = {"state": {"step": 31, "result": None}, "config": config, "data": None}
    format.save_checkpoint(tmp_path / "quickstart/checkpoints", step=31, tensors={}, metadata=recorded, keep=1)
    assert "\nthis run       would go on from step 31 of 155" in described_plan(f"run.output_dir={tmp_path}")
    refused = described_plan(f"run.output_dir={tmp_path}", "optim.lr=0.3")
    assert "\nWARNING: this run would be refused (65): the configuration is not the one" in refused


def saved(folder: Path, *settings: str, step: int = 20, **more: Any) -> Path:
    """A run's folder with one checkpoint."""
    state = {"step": step, "held": 0, "result": None} | more.pop("state", {})
    recorded = {"state": state, "config": asdict(load.load_config(None, settings)), "data": None} | more
    format.save_checkpoint(folder / "checkpoints", step=step, tensors={}, metadata=recorded, keep=9)
    return folder


def stands(
    folder: Path, *settings: str, total: int = 40, per_epoch: int = 8, data: Mapping[str, Any] | None = None
) -> str:
    steps = StepCounts(per_epoch=per_epoch, total=total, dropped=0)
    try:
        verdict = check.preview_resume(load.load_config(None, settings), folder, steps=steps, data=data)
    except Failure as failure:
        return check.describe_refusal(failure)
    assert verdict is not None
    return verdict


@pytest.mark.parametrize("never", [(), ("checkpoint.resume=never",)])
def test_where_no_run_is_nothing_is_said(tmp_path: Path, never: tuple[str, ...]) -> None:
    (tmp_path / "logs").mkdir()
    assert (
        check.preview_resume(
            load.load_config(None, never), tmp_path, steps=StepCounts(per_epoch=8, total=40, dropped=0)
        )
        is None
    )


def test_an_unfinished_run_would_go_on(tmp_path: Path) -> None:
    assert stands(saved(tmp_path)) == "would go on from step 20 of 40"


def test_a_finished_run_would_do_nothing_and_is_told_what_goes_on(tmp_path: Path) -> None:
    verdict = stands(saved(tmp_path, step=40))
    assert verdict.startswith("is finished (step 40 of 40): train would do nothing; add train.epochs=10 to go on")


def test_a_run_at_its_last_of_so_many_steps_is_told_that_setting(tmp_path: Path) -> None:
    verdict = stands(saved(tmp_path), "train.max_steps=20", total=20)
    assert "is finished (step 20 of 20): train would do nothing; add train.max_steps=null to go on" in verdict


def test_a_run_that_has_reached_its_target_is_finished(tmp_path: Path) -> None:
    saved(tmp_path, "eval.target=0.8", state={"held": 1, "result": SCORES})
    assert "add eval.target=null to go on" in stands(tmp_path, "eval.target=0.8")
    assert stands(tmp_path, "eval.target=0.95") == "would go on from step 20 of 40"


def test_a_changed_configuration_would_be_refused_with_the_difference_and_the_fix(tmp_path: Path) -> None:
    verdict = stands(saved(tmp_path), "optim.lr=0.5")
    assert verdict.startswith("would be refused (65): the configuration is not the one that this run began with")
    assert "found: optim.lr: 0.1 -> 0.5; fix: to go on with this run, write optim.lr=0.1;" in verdict


def test_other_data_would_be_refused_as_far_as_it_is_known(tmp_path: Path) -> None:
    saved(tmp_path, data={"classes": ["a", "b"], "training": 80, "held_out": 20})
    verdict = stands(tmp_path, data={"classes": ["a", "b"], "training": 81, "held_out": 20})
    assert verdict.startswith("would be refused (65): ")
    assert "training: 81; expected: training: 80" in verdict
    assert stands(tmp_path) == "would go on from step 20 of 40"


def test_never_begins_anew_whatever_is_there(tmp_path: Path) -> None:
    verdict = stands(saved(tmp_path), "optim.lr=0.5", "checkpoint.resume=never")
    assert verdict == f"would start over: what is in {tmp_path} moves to before-N there"


def test_the_last_whole_checkpoint_counts(tmp_path: Path) -> None:
    saved(saved(tmp_path, step=10), step=30)
    (tmp_path / "checkpoints/step-00000030/state.json").write_text("{}")
    assert stands(tmp_path) == "would go on from step 10 of 40"
    (tmp_path / "checkpoints/step-00000010/manifest.json").write_text("{}")
    assert "would be refused (65): no checkpoint in" in stands(tmp_path)


@pytest.mark.parametrize(
    "more", [{"state": {"step": "x"}}, {"config": {}}, {"config": 3}, {"data": {}}, {"state": {"result": 3}}]
)
def test_a_state_of_other_words_would_be_refused(tmp_path: Path, more: dict[str, Any]) -> None:
    verdict = stands(saved(tmp_path, **more), data={"classes": []})
    assert verdict.startswith("would be refused (65): ")


def test_a_link_inside_would_be_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run/checkpoints").symlink_to(tmp_path / "elsewhere")
    assert stands(tmp_path / "run").startswith("would be refused (77): ")


def test_a_file_in_the_runs_place_would_be_refused(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    assert stands(tmp_path / "run").startswith(f"would be refused (73): {tmp_path}/run is no folder; fix: ")


@pytest.mark.parametrize("shut", [".", "checkpoints"])
def test_a_folder_that_cannot_be_written_would_be_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shut: str
) -> None:
    folder = saved(tmp_path) / shut
    monkeypatch.setattr(os, "access", lambda asked, _: Path(asked) != folder)
    assert stands(tmp_path, "run.output_dir=mine").startswith(f"would be refused (73): {folder} cannot be written")


def test_where_the_default_place_cannot_be_written_a_start_takes_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "starts over in a temporary folder" in stands(saved(tmp_path))


def held_by(folder: Path, **facts: Any) -> None:
    holder = lock.this_start_as_holder({}, launch_id="theirs", started_at=0.0)
    (folder / f"{lock.LOCK_NAME}.1").write_text(json.dumps(asdict(replace(holder, **facts))))


@pytest.mark.parametrize("settings", [(), ("checkpoint.resume=never",), ("optim.lr=0.5",)])
def test_a_run_that_trains_just_now_would_be_refused(tmp_path: Path, settings: tuple[str, ...]) -> None:
    held_by(saved(tmp_path))
    verdict = stands(tmp_path, *settings)
    assert verdict.startswith("would be refused (73): another start of this run is at work")


def test_a_run_that_may_train_on_another_machine_is_waited_for(tmp_path: Path) -> None:
    held_by(tmp_path, host="node07", machine="another boot")
    assert stands(tmp_path).startswith("would begin; first process ")
    verdict = stands(saved(tmp_path))
    assert verdict.startswith("would go on from step 20 of 40; first process ")
    assert "on node07, since 1970" in verdict
    assert verdict.endswith("train would wait up to 60 s for a sign of life, and be refused (73) if there is one")


def test_what_a_real_training_leaves_is_understood(tmp_path: Path) -> None:
    settings = [*TINY, f"run.output_dir={tmp_path}", "run.name=run"]
    environ: dict[str, str] = {}
    variables = environment.remove_conflicting_variables(environ, download=False)
    context = RankContext(world=ALONE, folder=tmp_path / "run")
    forget_accelerate()
    try:
        session.train_on_rank(
            load.load_config(None, settings), context, environ, variables=variables, argv=["train"], started_at=0.0
        )
    finally:
        forget_accelerate()
    assert stands(tmp_path / "run", *settings, total=8, per_epoch=4).startswith("is finished (step 8 of 8)")
    assert "run.seed: 0 -> 7" in stands(tmp_path / "run", *settings, "run.seed=7")


def test_a_run_that_no_longer_improved_is_finished(tmp_path: Path) -> None:
    saved(tmp_path, "eval.early_stop=3", state={"stale": 3, "result": SCORES})
    assert "add eval.early_stop=null to go on" in stands(tmp_path, "eval.early_stop=3")
    assert stands(tmp_path, "eval.early_stop=4") == "would go on from step 20 of 40"


def start(*settings: str) -> int:
    """One start, in this process."""
    environ: dict[str, str] = {}
    variables = environment.remove_conflicting_variables(environ, download=False)
    forget_accelerate()
    try:
        config = load.load_config(None, keep_last_overrides([*SETTINGS, *settings]))
        context = RankContext(world=ALONE, folder=Path(config.run.output_dir, config.run.name))
        return session.train_on_rank(config, context, environ, variables=variables, argv=["train"], started_at=0.0)
    finally:
        forget_accelerate()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a data set, and a run of eight steps on it."""
    folder = tmp_path_factory.mktemp("foretold")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_classes(Path("pets"), cat=40, dog=40)
        assert start() == 0
    return folder


@pytest.fixture
def again(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, as the working directory."""
    shutil.copytree(finished, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")


def described(*settings: str) -> str:
    """The line in which `train check` says what a start would do."""
    plan = make_plan({}, LaunchOptions(device="cpu"))
    text = check.describe_plan(load.load_config(None, keep_last_overrides([*SETTINGS, *settings])), None, plan, None)
    return next(line for line in text.splitlines() if line.startswith(("this run ", "WARNING: this run ")))


def foretold(*settings: str) -> str:
    """The verdict: what, and from which step or with which code."""
    verdict = described(*settings)
    match = re.search(r"is finished \(step \S+ of [^):]+|would go on from step .*|refused \(\d+\)|start over", verdict)
    assert match, verdict
    return match[0].replace("would go on from", "goes on,").replace("is finished (", "is finished, ")


def happened(*settings: str) -> str:
    """The same words for what a start does."""
    try:
        start(*settings)
    except Failure as failure:
        return f"refused ({int(failure.code)})"
    if list(RUN.glob("before-*")):
        return "start over"
    began = record.read_starts(RUN)[-1]["step"]
    if json.loads((RUN / "errors/exit.json").read_text())["step"] == began:
        return f"is finished, step {began}"
    facts = json.loads((RUN / "run.json").read_text())["training"]
    return f"goes on, step {began} of {facts['steps']}"


def done(verdict: str) -> str:
    """What a start leaves of it: one that finds the run finished does not record how many steps it asked for."""
    return verdict.partition(" of ")[0] if verdict.startswith("is finished") else verdict


def state(change: Callable[[dict[str, Any]], object]) -> Change:
    """Another state.json in the newest checkpoint, with the right hashes."""

    def apply() -> None:
        recorded = json.loads((LAST / "state.json").read_text())
        change(recorded)
        plant(LAST, "state.json", json.dumps(recorded).encode())

    return apply


def cut(name: str, *folders: Path) -> Change:
    return lambda: [(folder / name).write_bytes((folder / name).read_bytes()[:-9]) for folder in folders]


def linked() -> None:
    (LAST / "model.safetensors").rename("elsewhere")
    (LAST / "model.safetensors").symlink_to(Path("elsewhere").absolute())


def grown() -> None:
    shutil.copy("pets/cat/000.png", "pets/cat/one-more.png")


def nothing() -> None:
    """The settings alone change."""


def has_reached_its_target(record: dict[str, Any]) -> None:
    record["config"]["eval"]["target"] = TARGET
    record["state"]["held"] = 1


def was_to_do_more(record: dict[str, Any]) -> None:
    record["config"]["train"]["epochs"] = 4


def had_reached_its_target_early(record: dict[str, Any]) -> None:
    was_to_do_more(record)
    has_reached_its_target(record)


FINISHED, FALLS_BACK, REFUSED = "is finished, step 8 of 8", "goes on, step 4 of 8", "refused (65)"
TARGET = 0.001
MORE, AIM = "train.epochs=4", f"eval.target={TARGET}"
SETTINGS_CHANGED: dict[str, tuple[tuple[str, ...], str]] = {
    "none": ((), FINISHED),
    "more epochs": ((MORE,), "goes on, step 8 of 16"),
    "fewer epochs": (("train.epochs=1",), "is finished, step 8 of 4"),
    "fewer steps": (("train.max_steps=4",), "is finished, step 8 of 4"),
    "more steps": ((MORE, "train.max_steps=10"), "goes on, step 8 of 10"),
    "another micro batch": (("train.micro_batch_size=4", "train.epochs=3"), "goes on, step 8 of 12"),
    "a target that nobody has looked at yet": ((MORE, AIM), "goes on, step 8 of 16"),
    "another rate": (("optim.lr=0.02",), REFUSED),
    "another seed": (("run.seed=3",), REFUSED),
    "another global batch": (("train.global_batch_size=8",), REFUSED),
    "another model": (("model.args.width=8",), REFUSED),
    "another share for validation": (("data.val_fraction=0.4",), REFUSED),
    "another kind of data": (("data.name=synthetic",), REFUSED),
    "another precision": (("train.precision=bf16",), REFUSED),
    "another metric": (("eval.metric=loss",), REFUSED),
    "an average of the weights": (("train.ema_decay=0.9",), REFUSED),
    "the same bits everywhere": (("train.reproducible=bitwise",), REFUSED),
    "a number that nobody reads": (("data.samples=99",), REFUSED),
    "start over": (("checkpoint.resume=never", "optim.lr=0.02"), "start over"),
}
FILES_CHANGED: dict[str, tuple[Change, tuple[str, ...], str]] = {
    "the data was moved": (lambda: Path("pets").rename("moved"), ("data.root=moved",), FINISHED),
    "an image more": (grown, (), REFUSED),
    "an image less": (Path("pets/cat/001.png").unlink, (), REFUSED),
    "an image renamed": (lambda: Path("pets/cat/001.png").rename("pets/cat/zzz.png"), (), REFUSED),
    "a class more": (lambda: shutil.copytree("pets/cat", "pets/emu"), (), REFUSED),
    "a class renamed": (lambda: Path("pets/cat").rename("pets/animal"), (), REFUSED),
    "a file that is no image": (Path("pets/cat/notes.txt").touch, (), FINISHED),
    "the newest state is cut off": (cut("state.json", LAST), (), FALLS_BACK),
    "the newest weights are cut off": (cut("model.safetensors", LAST), (), FALLS_BACK),
    "the newest weights are gone": ((LAST / "model.safetensors").unlink, (), FALLS_BACK),
    "the newest list is gone": ((LAST / "manifest.json").unlink, (), FALLS_BACK),
    "all weights are cut off": (cut("model.safetensors", LAST, FIRST), (), REFUSED),
    "the weights are a link": (linked, (), "refused (77)"),
    "a save was about to replace it": (lambda: LAST.rename(LAST.with_name(f".old-{LAST.name}")), (), FINISHED),
    "best.json is nonsense": (lambda: (RUN / "best.json").write_text("[[[]]]"), (), FINISHED),
    "run.json is half-written": (lambda: (RUN / "run.json").write_text('{"starts": [{'), (), FINISHED),
    "an older version told nothing of the data": (state(lambda record: record.pop("data")), (), FINISHED),
    "an older version lacked a key": (state(lambda record: record["config"]["train"].pop("spike")), (), FINISHED),
    "another version had a key more": (state(lambda record: record["config"]["train"].update(zzz=1)), (), REFUSED),
    "its target was reached": (state(has_reached_its_target), (MORE, AIM), "is finished, step 8 of 16"),
    "its target was reached once": (
        state(has_reached_its_target),
        (MORE, AIM, "eval.patience=3"),
        "goes on, step 8 of 16",
    ),
    "it was stopped past the end": (state(was_to_do_more), ("train.epochs=1",), REFUSED),
    "it was stopped past the last step": (state(was_to_do_more), ("train.max_steps=7",), REFUSED),
    "it was stopped at the end": (state(was_to_do_more), (), FINISHED),
    "it was stopped before the end": (state(was_to_do_more), ("train.epochs=3",), "goes on, step 8 of 12"),
    "it had reached a target past the end": (
        state(had_reached_its_target_early),
        ("train.epochs=1",),
        "is finished, step 8 of 4",
    ),
    "no classes are told": (state(lambda record: record["data"].pop("classes")), (), REFUSED),
    "the data is a list": (state(lambda record: record.update(data=[1])), (), REFUSED),
    "the step is a word": (state(lambda record: record["state"].update(step="8")), (), REFUSED),
    "the step is below zero": (state(lambda record: record["state"].update(step=-5)), (), REFUSED),
    "the step is endless": (state(lambda record: record["state"].update(step=float("inf"))), (), REFUSED),
    "the step is huge": (state(lambda record: record["state"].update(step=10**30)), (), REFUSED),
    "the result is a list": (state(lambda record: record["state"].update(result=[1])), (), REFUSED),
    "the count is a word": (state(lambda record: record["state"].update(held="x")), (), REFUSED),
    "the configuration is a list": (state(lambda record: record.update(config=[[[]]])), (), REFUSED),
    "the state is gone": (state(lambda record: record.pop("state")), (), REFUSED),
}


@pytest.mark.usefixtures("again")
@pytest.mark.parametrize(("settings", "expected"), SETTINGS_CHANGED.values(), ids=SETTINGS_CHANGED)
def test_after_a_change_of_settings_a_start_does_what_check_foretells(settings: tuple[str, ...], expected: str) -> None:
    verdict = foretold(*settings)
    assert (verdict, happened(*settings)) == (expected, done(expected))


@pytest.mark.usefixtures("again")
@pytest.mark.parametrize(("change", "settings", "expected"), FILES_CHANGED.values(), ids=FILES_CHANGED)
def test_after_a_change_of_files_a_start_does_what_check_foretells(
    change: Change, settings: tuple[str, ...], expected: str
) -> None:
    change()
    verdict = foretold(*settings)
    assert (verdict, happened(*settings)) == (expected, done(expected))


@pytest.mark.usefixtures("again")
@pytest.mark.parametrize(
    "settings",
    [(), ("train.epochs=1",), ("train.max_steps=4",), ("train.max_steps=8",), ("train.max_steps=4", MORE)],
)
def test_who_does_what_a_finished_run_says_goes_on(settings: tuple[str, ...]) -> None:
    shown = described(*settings)
    advice = re.search(r"; add (\S+=\S+(?: \S+=\S+)*) to go on", shown)
    assert advice, shown
    assert foretold(*settings, *advice[1].split()).startswith("goes on, step 8 of ")


@pytest.mark.usefixtures("again")
def test_the_end_of_a_run_gives_the_advice_that_check_gives(capsys: pytest.CaptureFixture[str]) -> None:
    shorter = ("train.max_steps=4",)
    start(*shorter)
    more = "train.max_steps=null train.epochs=4"
    assert f"\ncontinue:      train {more}\n" in capsys.readouterr().out
    assert f"; add {more} to go on" in described(*shorter)


@pytest.mark.parametrize(
    ("now", "expected"), [((32, 8), FINISHED), ((33, 8), REFUSED), ((32, 9), REFUSED), ((50, None), REFUSED)]
)
def test_of_arrays_both_sides_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: tuple[int, int | None], expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    arrays = ("data.name=npz", "data.root=arrays.npz", "train.epochs=4")
    save(32, 8)
    start(*arrays)
    save(*now)
    assert (foretold(*arrays), happened(*arrays)) == (expected, done(expected))


def save(training: int, validation: int | None) -> None:
    sides = {"train": training} | ({"test": validation} if validation else {})
    images = {f"x_{side}": np.zeros((count, 8, 8, 3), np.uint8) for side, count in sides.items()}
    labels = {f"y_{side}": np.arange(count) % 2 for side, count in sides.items()}
    np.savez("arrays.npz", **images, **labels)


def test_of_a_table_the_weights_of_its_images_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_classes(Path("pets"), cat=20, dog=20)
    table = ("data.name=table", "data.root=pets.csv", "train.epochs=4")
    images = sorted(Path("pets").rglob("*.png"))

    def weigh(weight: int) -> None:
        rows = (f"{path},{path.parent.name},{weight if path == images[0] else 1}" for path in images)
        Path("pets.csv").write_text("path,label,weight\n" + "\n".join(rows))

    weigh(1)
    start(*table)
    weigh(3)
    assert (foretold(*table), happened(*table)) == (REFUSED, REFUSED)
