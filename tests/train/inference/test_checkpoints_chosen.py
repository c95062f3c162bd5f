"""Which checkpoint is meant, and with which configuration it is measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import flip, plant, reseal
from processes import python

from entrypoint import Failure
from train.checkpoint import format
from train.config import load
from train.inference import checkpoints

TRAINED = ("model.args.width=4", "data.samples=80", "optim.lr=0.01")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder with checkpoints of steps 10, 20 and 30; the best is the first."""
    state = {"config": asdict(load.load_config(None, TRAINED))}
    tensors = {"model": {"w": torch.ones(4)}}
    for step in (10, 20, 30):
        format.save_checkpoint(tmp_path / "checkpoints", step=step, tensors=tensors, metadata=state, keep=9)
    (tmp_path / "best.json").write_text('{"step": 10}')
    return tmp_path


def at(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:08d}"


def configured(run: Path, *overrides: str, file: Path | None = None) -> Any:
    return checkpoints.load_config(
        checkpoints.choose_checkpoint(str(at(run, 10))), str(file) if file else None, overrides
    )


def test_a_checkpoint_is_itself(run: Path) -> None:
    assert checkpoints.choose_checkpoint(str(at(run, 20))).path == at(run, 20)
    assert checkpoints.choose_checkpoint(f"{at(run, 20)}/").contents.step == 20


def test_a_runs_folder_means_its_best(run: Path) -> None:
    assert checkpoints.choose_checkpoint(str(run)).path == at(run, 10)


@pytest.mark.parametrize("told", [None, "{", "[]", '{"step": 77}', '{"step": [1]}'])
def test_without_a_best_one_the_newest_is_meant(run: Path, told: str | None) -> None:
    (run / "best.json").unlink() if told is None else (run / "best.json").write_text(told)
    assert checkpoints.choose_checkpoint(str(run)).path == at(run, 30)


def test_damaged_ones_are_passed_over_and_said(run: Path) -> None:
    flip(at(run, 10) / "model.safetensors")
    flip(at(run, 30) / "state.json")
    found = checkpoints.choose_checkpoint(str(run))
    assert (found.path, len(found.notes)) == (at(run, 20), 2)
    assert "step-00000010: model.safetensors does not match its hash" in found.notes[0]


def test_the_folder_of_checkpoints_and_a_link_to_one_are_understood(run: Path) -> None:
    (run / "mine").symlink_to(at(run, 20))
    assert checkpoints.choose_checkpoint(str(run / "checkpoints")).path == at(run, 30)
    assert checkpoints.choose_checkpoint(str(run / "mine")).path == at(run, 20)


def all_damaged(run: Path) -> Path:
    for step in (10, 20, 30):
        flip(at(run, step) / "state.json")
    return run


def linked(run: Path) -> Path:
    (run / "checkpoints").rename(run / "elsewhere")
    (run / "checkpoints").symlink_to(run / "elsewhere")
    return run


def newer(run: Path) -> Path:
    reseal(at(run, 10), torch="99.0")
    return at(run, 10)


def empty(run: Path) -> Path:
    (run / "empty").mkdir()
    return run / "empty"


def exported(run: Path) -> Path:
    (empty(run) / "model.json").touch()
    return run / "empty"


WRONG: dict[str, tuple[Callable[[Path], Path], int, str]] = {
    "missing": (lambda run: run / "nothing", 66, "does not exist"),
    "a-file": (lambda run: run / "best.json", 66, "it is a file"),
    "no-checkpoints": (empty, 66, "without checkpoints"),
    "an-export": (exported, 66, "is an exported model, not a run"),
    "none-whole": (all_damaged, 65, "is whole"),
    "a-link-inside": (linked, 77, "symbolic link"),
    "newer-torch": (newer, 65, "newer version"),
}


@pytest.mark.parametrize(("make", "code", "said"), WRONG.values(), ids=WRONG)
def test_what_is_no_checkpoint_is_refused(run: Path, make: Callable[[Path], Path], code: int, said: str) -> None:
    with pytest.raises(Failure) as caught:
        checkpoints.choose_checkpoint(str(make(run)))
    assert caught.value.code == code
    assert said in str(caught.value)


def test_a_damaged_checkpoint_is_refused(run: Path) -> None:
    flip(at(run, 30) / "model.safetensors")
    with pytest.raises(Failure, match="is damaged") as caught:
        checkpoints.choose_checkpoint(str(at(run, 30)))
    assert caught.value.code == 65


@pytest.mark.parametrize("state", [b"{}", b"[]", b'{"config": 3}', b"{", b"\xff", b"[" * 5000])
def test_a_state_without_a_configuration_is_damage(run: Path, state: bytes) -> None:
    plant(at(run, 10), "state.json", state)
    with pytest.raises(Failure, match="is damaged") as caught:
        configured(run)
    assert caught.value.code == 65


def test_the_configuration_is_the_checkpoints_with_the_settings_on_top(run: Path) -> None:
    config, notes = configured(run, "data.root=elsewhere", "eval.batch_size=7", "train.precision=fp32")
    assert config.model.args == {"width": 4}
    assert (config.data.root, config.data.samples, config.eval.batch_size) == ("elsewhere", 80, 7)
    assert notes == ()


@pytest.mark.parametrize(
    "setting",
    ["model.name=resnet18", "model.args.width=8", "optim.lr=3", "train.epochs=9", "run.name=x", "eval.every_epochs=2"],
)
def test_settings_that_an_evaluation_cannot_change_are_refused(run: Path, setting: str) -> None:
    with pytest.raises(
        Failure, match=r"(model\.(name|args) is the checkpoint's)|does not change an evaluation"
    ) as caught:
        configured(run, setting)
    assert caught.value.code == 64


def test_a_setting_that_changes_nothing_is_no_mistake(run: Path) -> None:
    assert configured(run, "model.args.width=4")[0] == configured(run)[0]


def test_what_a_model_gets_otherwise_than_in_its_training_is_said(run: Path) -> None:
    (said,) = configured(run, "data.image_size=48", "data.val_fraction=0.5", "data.augment=none")[1]
    assert said == "the data is not as in the training: data.image_size: 32 -> 48"


@pytest.mark.parametrize(
    ("step", "best", "said"),
    [
        (10, '{"step": 10}', "the best"),
        (30, '{"step": 10}', "the last"),
        (30, '{"step": 30}', "the best and the last"),
        (20, '{"step": 10}', "neither the best nor the last"),
        (20, "{", "not the last"),
    ],
)
def test_a_checkpoint_stands_somewhere_in_its_run(run: Path, step: int, best: str, said: str) -> None:
    (run / "best.json").write_text(best)
    assert checkpoints.describe_standing(at(run, step)) == said


def test_a_checkpoint_that_was_copied_away_or_is_gone_stands_nowhere(run: Path) -> None:
    (run / "mine").mkdir()
    assert checkpoints.describe_standing(at(run, 10).rename(run / "mine" / "step-00000010")) is None
    assert checkpoints.describe_standing(linked(run) / "checkpoints" / "step-00000020") is None


def test_a_file_gives_the_data_and_leaves_the_training_alone(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("data: {root: there, samples: 80}\nmodel: {args: {width: 4}}\noptim: {lr: 7}\n")
    config, _ = configured(run, file=file)
    assert (config.data.root, config.optim.lr) == ("there", 0.01)


def test_a_file_that_leaves_the_normalization_to_the_weights_means_that_of_the_training(
    run: Path, tmp_path: Path
) -> None:
    recorded = {"mean": [0.1], "std": [0.2]}
    state = {"config": asdict(load.load_config(None, (*TRAINED, "data.normalize={mean: [0.1], std: [0.2]}")))}
    tensors = {"model": {"w": torch.ones(4)}}
    format.save_checkpoint(run / "other", step=40, tensors=tensors, metadata=state, keep=9)
    file = tmp_path / "cfg.yaml"
    file.write_text("data: {samples: 80}\nmodel: {args: {width: 4}}\n")
    chosen = checkpoints.choose_checkpoint(str(run / "other"))
    config, _ = checkpoints.load_config(chosen, str(file), [])
    assert config.data.normalize == recorded


def test_a_file_with_another_model_is_refused(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("model: {args: {width: 5}}\n")
    with pytest.raises(Failure, match="is the checkpoint's") as caught:
        configured(run, file=file)
    assert caught.value.code == 64


def test_an_older_versions_configuration_is_completed(run: Path) -> None:
    plant(at(run, 10), "state.json", json.dumps({"config": {"data": {"samples": 80}}}).encode())
    assert configured(run)[0] == load.load_config(None, ["data.samples=80"])


def test_a_run_that_an_older_version_kept_in_a_folder_called_as_a_variable_is_measured(run: Path) -> None:
    plant(at(run, 10), "state.json", json.dumps({"config": {"run": {"output_dir": "$SCRATCH/runs"}}}).encode())
    assert configured(run)[0] == load.load_config(None)


@pytest.mark.parametrize("words", [[], ["data.root=x"], ["eval.batch_size=3", "runs/x"]])
def test_a_line_without_a_checkpoint_is_refused(words: list[str]) -> None:
    with pytest.raises(Failure, match="needs a checkpoint") as caught:
        checkpoints.split_arguments(words)
    assert caught.value.code == 64


def test_a_folder_may_have_an_equals_sign_in_its_name(tmp_path: Path) -> None:
    (tmp_path / "lr=1").mkdir()
    assert checkpoints.split_arguments([str(tmp_path / "lr=1"), "a.b=c"]) == (str(tmp_path / "lr=1"), ["a.b=c"])


def test_choosing_loads_no_torch() -> None:
    script = "import sys; import train.inference.checkpoints; print('torch' in sys.modules or 'numpy' in sys.modules)"
    assert python("-c", script).stdout == "False\n"
