"""What a start would do in a folder that has a run already."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from jobs import ALONE, TINY, forget_accelerate

from entrypoint import Failure
from train import session
from train.checkpoint import format
from train.cli import check
from train.config import environment, load
from train.config.batches import StepCounts
from train.rank_context import RankContext
from train.run import lock

SCORES = {"accuracy": 0.9, "loss": 0.3, "samples": 10}


def saved(folder: Path, *settings: str, step: int = 20, **more: Any) -> Path:
    """A run's folder with one checkpoint."""
    state = {"step": step, "held": 0, "result": None} | more.pop("state", {})
    told = {"state": state, "config": asdict(load.load_config(None, settings)), "data": None} | more
    format.save_checkpoint(folder / "checkpoints", step=step, tensors={}, metadata=told, keep=9)
    return folder


def stands(
    folder: Path, *settings: str, total: int = 40, per_epoch: int = 8, data: Mapping[str, Any] | None = None
) -> str:
    steps = StepCounts(per_epoch=per_epoch, total=total, dropped=0)
    try:
        found = check.preview_resume(load.load_config(None, settings), folder, steps=steps, data=data)
    except Failure as failure:
        return check.describe_refusal(failure)
    assert found is not None
    return found


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
    said = stands(saved(tmp_path, step=40))
    assert said.startswith("is finished (step 40 of 40): train would do nothing; add train.epochs=10 to go on")


def test_a_run_at_its_last_of_so_many_steps_is_told_that_setting(tmp_path: Path) -> None:
    said = stands(saved(tmp_path), "train.max_steps=20", total=20)
    assert "is finished (step 20 of 20): train would do nothing; add train.max_steps=null to go on" in said


def test_a_run_that_has_reached_its_target_is_finished(tmp_path: Path) -> None:
    saved(tmp_path, "eval.target=0.8", state={"held": 1, "result": SCORES})
    assert "add eval.target=null to go on" in stands(tmp_path, "eval.target=0.8")
    assert stands(tmp_path, "eval.target=0.95") == "would go on from step 20 of 40"


def test_a_changed_configuration_would_be_refused_with_the_difference_and_the_fix(tmp_path: Path) -> None:
    found = stands(saved(tmp_path), "optim.lr=0.5")
    assert found.startswith("would be refused (65): the configuration is not the one that this run began with")
    assert "found: optim.lr: 0.1 -> 0.5; fix: to go on with this run, write optim.lr=0.1;" in found


def test_other_data_would_be_refused_as_far_as_it_is_known(tmp_path: Path) -> None:
    saved(tmp_path, data={"classes": ["a", "b"], "training": 80, "held_out": 20})
    found = stands(tmp_path, data={"classes": ["a", "b"], "training": 81, "held_out": 20})
    assert found.startswith("would be refused (65): ")
    assert "training: 81; expected: training: 80" in found
    assert stands(tmp_path) == "would go on from step 20 of 40"


def test_never_begins_anew_whatever_is_there(tmp_path: Path) -> None:
    found = stands(saved(tmp_path), "optim.lr=0.5", "checkpoint.resume=never")
    assert found == f"would start over: what is in {tmp_path} moves to before-N there"


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
    found = stands(saved(tmp_path, **more), data={"classes": []})
    assert found.startswith("would be refused (65): ")


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
    place = saved(tmp_path) / shut
    monkeypatch.setattr(os, "access", lambda asked, _: Path(asked) != place)
    assert stands(tmp_path, "run.output_dir=mine").startswith(f"would be refused (73): {place} cannot be written")


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
    found = stands(tmp_path, *settings)
    assert found.startswith("would be refused (73): another start of this run is at work")


def test_a_run_that_may_train_on_another_machine_is_waited_for(tmp_path: Path) -> None:
    held_by(tmp_path, host="node07", machine="another boot")
    assert stands(tmp_path).startswith("would begin; first process ")
    found = stands(saved(tmp_path))
    assert found.startswith("would go on from step 20 of 40; first process ")
    assert "on node07, since 1970" in found
    assert found.endswith("train would wait up to 60 s for a sign of life, and be refused (73) if there is one")


def test_what_a_real_training_leaves_is_understood(tmp_path: Path) -> None:
    settings = [*TINY, f"run.output_dir={tmp_path}", "run.name=run"]
    environ: dict[str, str] = {}
    found = environment.remove_conflicting_variables(environ, download=False)
    context = RankContext(world=ALONE, folder=tmp_path / "run")
    forget_accelerate()
    try:
        session.train_on_rank(
            load.load_config(None, settings), context, environ, variables=found, argv=["train"], started_at=0.0
        )
    finally:
        forget_accelerate()
    assert stands(tmp_path / "run", *settings, total=8, per_epoch=4).startswith("is finished (step 8 of 8)")
    assert "run.seed: 0 -> 7" in stands(tmp_path / "run", *settings, "run.seed=7")


def test_a_run_that_no_longer_improved_is_finished(tmp_path: Path) -> None:
    saved(tmp_path, "eval.early_stop=3", state={"stale": 3, "result": SCORES})
    assert "add eval.early_stop=null to go on" in stands(tmp_path, "eval.early_stop=3")
    assert stands(tmp_path, "eval.early_stop=4") == "would go on from step 20 of 40"
