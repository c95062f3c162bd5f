"""What one start says and leaves behind, from its banner to its last line."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from images import write_classes
from jobs import ALONE, TINY, after, built, forget_accelerate
from made_up_usage import rank, row

from entrypoint import ExitCode, Failure, Handover, pluralize
from entrypoint.run_errors import ExitRecord, RunErrors
from train import build, compilation, files, session
from train.config import environment, load
from train.config.environment import CallerVariables
from train.config.load import keep_last_overrides
from train.data import image_folder
from train.evaluation import results
from train.logging.resources import UsageRecorder
from train.rank_context import RankContext
from train.run import lock, record
from train.trainer import Trainer


def run(folder: Path, *settings: str, environ: dict[str, str] | None = None) -> int:
    forget_accelerate()
    run_settings = (f"run.output_dir={folder.parent}", f"run.name={folder.name}")
    config = load.load_config(None, keep_last_overrides([*TINY, *run_settings, *settings]))
    context = RankContext(world=ALONE, folder=folder)
    try:
        variables = environment.remove_conflicting_variables(environ := dict(environ or {}), download=False)
        return session.train_on_rank(config, context, environ, variables=variables, argv=["train"], started_at=0.0)
    finally:
        forget_accelerate()


def lines(text: str) -> dict[str, str]:
    """The banner's and the summary's rows."""
    return {line.split("  ")[0]: line[14:].strip() for line in text.splitlines() if "  " in line}


def test_the_banner_says_what_is_about_to_happen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "run")
    printed = lines(capsys.readouterr().out)
    assert printed["world"] == "1 rank on 1 node"
    assert printed["precision"] == "fp32"
    assert printed["global batch"] == "16 = 8 micro x 2 accumulation x 1 rank"
    assert printed["data"].startswith("synthetic: 64 training and 16 validation images, 2 classes")
    assert printed["steps"] == "4 per epoch, 8 in all"
    assert printed["learning rate"] == "0.01 after 4 steps of warmup, then cosine to 0"
    assert printed["output"] == str(tmp_path / "run")
    assert "parameters" in printed["model"]


def test_the_banner_says_the_rate_that_auto_stands_for_and_the_record_has_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "run", "optim.lr=auto")
    printed = lines(capsys.readouterr().out)["learning rate"]
    assert printed == "0.00625 (optim.lr: auto) after 4 steps of warmup, then cosine to 0"
    assert load.load_config(str(tmp_path / "run/config.yaml"), []).optim.lr == 0.00625


def test_a_start_keeps_the_listing_of_a_folder_in_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_classes(tmp_path / "photos", ant=20, bee=20)
    monkeypatch.setattr(image_folder, "is_worth_keeping", lambda *_, **__: True)
    monkeypatch.setattr(image_folder, "MOUNTS_FILE", Path(os.devnull))
    settings = ("data.name=folder", f"data.root={tmp_path}/photos", "train.max_steps=1")
    assert run(tmp_path / "run", *settings, environ={"XDG_CACHE_HOME": str(tmp_path / "cache")}) == ExitCode.OK
    assert len(list((tmp_path / "cache/train-image/listings").iterdir())) == 1


@pytest.mark.parametrize("training", ["[1]", '"x"', '{"fit": [1]}'])
def test_a_record_of_other_words_does_not_keep_a_run_from_going_on(tmp_path: Path, training: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/run.json").write_text(f'{{"starts": [], "training": {training}}}')
    assert run(tmp_path / "run") == ExitCode.OK


def test_a_worker_without_a_parent_leaves_a_record_without_sources(tmp_path: Path) -> None:
    assert run(tmp_path / "run") == ExitCode.OK
    assert (record.read_run(tmp_path / "run") or {})["sources"] == {}


def test_the_banner_says_how_often_balanced_sampling_draws_an_image(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "run", "data.sampling=balanced", "data.imbalance=7")
    printed = lines(capsys.readouterr().out)["sampling"]
    assert printed == (
        "balanced: an epoch draws each class 32 times, "
        "an image of outline-1 4 times and an image of outline-0 0.57 times"
    )


def test_the_summary_says_what_came_out_and_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "run") == ExitCode.OK
    text = capsys.readouterr().out
    printed_lines = lines(text)
    assert "of 16 validation images" in printed_lines["accuracy"]
    assert printed_lines["training"].startswith("8 steps in ")
    assert printed_lines["checkpoint"].endswith("step-00000008")
    folder = tmp_path / "run"
    assert text.splitlines()[-3:] == [
        f"report:        train report {folder}",
        f"evaluate:      train eval {folder}",
        "continue:      train train.epochs=4",
    ]


def test_the_summary_of_a_poor_result_says_once_what_to_try(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "run", "data.classes=10", "data.samples=100", "optim.lr=1e-6")
    assert capsys.readouterr().out.count("\ntry            the result is poor: trained weights") == 1


def test_what_was_typed_is_said_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "run", environ={"ENTRYPOINT_TYPED": "train --config my.yaml train.epochs=2"})
    assert "\ncontinue:      train --config my.yaml train.epochs=4\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "longer"),
    [
        (["train.max_steps=2"], "train.max_steps=null"),
        (["train.max_steps=8"], "train.max_steps=null train.epochs=4"),
        (["train.max_steps=9"], "train.epochs=4"),
        (["eval.target=0.01"], "eval.target=null"),
        (["eval.target=0.01", "eval.patience=2"], "eval.target=null train.epochs=4"),
    ],
    ids=["few-steps", "as-many-steps", "more-steps", "target-early", "target-at-the-end"],
)
def test_what_is_to_be_done_next_lifts_what_ended_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: list[str], longer: str
) -> None:
    run(tmp_path / "run", *settings)
    assert capsys.readouterr().out.splitlines()[-1] == f"continue:      train {longer}"
    assert run(tmp_path / "run", *settings, *longer.split()) == ExitCode.OK
    assert "resumed" in lines(capsys.readouterr().out)


def test_a_run_that_ended_early_says_why_and_how_it_trains_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "is_better", lambda metric, new, old: old is None)  # the first one stays the best
    assert run(tmp_path / "run", "train.epochs=9", "eval.early_stop=2") == ExitCode.OK
    text = capsys.readouterr().out
    assert "ended early: accuracy did not improve in 2 evaluations (eval.early_stop)" in text
    assert text.splitlines()[-1] == "continue:      train eval.early_stop=null"


def test_a_finished_run_started_again_shows_its_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "run")
    first = lines(capsys.readouterr().out)
    assert run(tmp_path / "run") == ExitCode.OK
    text = capsys.readouterr().out
    assert text.startswith("this run was finished before (step 8)\n")
    assert (lines(text)["accuracy"], lines(text).get("device")) == (first["accuracy"], None)
    assert text.splitlines()[-1] == "continue:      train train.epochs=4"


def test_the_end_says_which_evaluation_was_the_best_where_the_last_was_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "is_better", lambda metric, new, old: old is None)  # the first one stays the best
    run(tmp_path / "run")
    best = json.loads((tmp_path / "run/best.json").read_text())
    folder = tmp_path / "run/checkpoints/step-00000004"
    assert lines(capsys.readouterr().out)["best"] == f"{best['accuracy']:.2%} at step 4 (epoch 1): {folder}"
    assert folder.is_dir()


@pytest.mark.parametrize("setting", ["train.max_steps=4", "data.val_fraction=0"])
def test_nothing_is_said_of_a_best_evaluation_that_was_the_last_or_was_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], setting: str
) -> None:
    run(tmp_path / "run", setting)
    assert "best" not in lines(capsys.readouterr().out)


def test_a_run_finished_past_what_is_asked_for_stays_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "run")
    kept = (tmp_path / "run/config.yaml").read_text()
    capsys.readouterr()
    assert run(tmp_path / "run", "train.epochs=1", environ=Handover(terminal=True).to_environ()) == ExitCode.OK
    printed = capsys.readouterr()
    assert printed.err.startswith("this run was finished before (step 8)\n")
    assert ("step 8/" in printed.out + printed.err, "epoch 2/1" in printed.err) == (False, False)
    assert (tmp_path / "run/config.yaml").read_text() == kept


def test_compiling_is_said_before_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []

    def slow(*_: Any, **__: Any) -> None:
        seen.append(capsys.readouterr().out)

    monkeypatch.setattr(compilation, "compile_model", slow)
    run(tmp_path / "run", "train.compile=default", "train.max_steps=1")
    assert seen == [f"{build.COMPILING}\n"]


def test_samples_left_out_are_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "run", "data.samples=90", "train.max_steps=1")
    assert capsys.readouterr().out.count("the last 8 samples of an epoch are left out") == 1


def test_a_variable_that_would_have_changed_the_run_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "run", "train.max_steps=1", environ={"NVIDIA_TF32_OVERRIDE": "1", "NCCL_DEBUG": "INFO"})
    text = capsys.readouterr().out
    assert lines(text)["variables"] == "NCCL_DEBUG=INFO"
    assert "note: NVIDIA_TF32_OVERRIDE: not used, train.tf32 decides" in text
    recorded = record.read_run(tmp_path / "run") or {}
    assert recorded["variables"] == {"acting": {"NCCL_DEBUG": "INFO"}, "removed": {"NVIDIA_TF32_OVERRIDE": "1"}}


def test_a_variable_that_contradicts_the_config_ends_the_run_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="ACCELERATE_MIXED_PRECISION"):
        run(tmp_path / "run", environ={"ACCELERATE_MIXED_PRECISION": "fp16"})
    assert not (tmp_path / "run").exists()


def test_a_run_leaves_its_record(tmp_path: Path) -> None:
    run(tmp_path / "run", environ=Handover(hosts=("node01", "node02"), launcher="local").to_environ())
    recorded = record.read_run(tmp_path / "run")
    assert recorded is not None
    assert (recorded["hosts"], recorded["launcher"]) == (["node01", "node02"], "local")
    came_to = {"precision": "fp32", "micro_batch_size": 8, "training_images": 64, "loader": "memory"}
    assert came_to.items() <= recorded["training"].items()
    assert recorded["training"]["device"] == f"CPU, {pluralize(torch.get_num_threads(), 'thread')} per rank"
    assert load.load_config(str(tmp_path / "run" / "config.yaml")).train.epochs == 2
    assert RunErrors.in_run(tmp_path / "run").read_exit() == ExitRecord(code=0, step=8, cause="finished")


def moved(folder: Path) -> dict[str, Any]:
    """The record of a run, as if all of it had been trained on eight GPUs."""
    recorded = record.read_run(folder) or {}
    recorded["training"] |= {"device": "NVIDIA H100", "precision": "bf16", "fit": {"micro": 512, "key": "of 8"}}
    recorded["world"] |= {"world_size": 8, "local_world_size": 8}
    changed = recorded | {
        "versions": {"torch": "2.0"},
        "git": "abc",
        "image": {"digest": "sha256:0"},
        "hosts": ["node01"],
    }
    files.write_json(folder / record.RUN_FILE, changed)
    return changed


def unlike(folder: Path, before: dict[str, Any]) -> set[str]:
    """What is not as it was in the record of a run."""
    after = record.read_run(folder) or {}
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


def test_a_finished_run_started_again_elsewhere_keeps_the_record_of_its_training(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(folder)
    before, config = moved(folder), (folder / "config.yaml").read_text()
    assert run(folder, "log.every_steps=1", environ=Handover(hosts=("login",)).to_environ()) == ExitCode.OK
    assert unlike(folder, before) == {"starts"}
    entry = (record.read_run(folder) or {})["starts"][-1]
    assert (entry["idle"], entry["hosts"], entry.get("world_size")) == (True, ["login"], None)
    assert (folder / "config.yaml").read_text() == config


def test_a_start_that_is_stopped_before_its_first_step_leaves_the_record_of_the_training(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(folder, "train.epochs=1")
    before = moved(folder)
    assert run(folder, environ={"ENTRYPOINT_DEADLINE": "1"}) == ExitCode.STOPPED
    assert unlike(folder, before) == {"starts"}
    assert run(folder) == ExitCode.OK
    assert {"training", "world", "versions"} < unlike(folder, before)
    assert load.load_config(str(folder / "config.yaml")).train.epochs == 2


def test_a_start_that_is_refused_leaves_the_record_of_the_training(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(folder)
    before = moved(folder)
    with pytest.raises(Failure, match="another"):
        run(folder, "optim.lr=0.5", "train.epochs=3")
    assert unlike(folder, before) == set()


def test_a_signal_ends_with_75_and_the_next_start_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    after(1, lambda trainer: trainer.signals.handle(signal.SIGUSR2), monkeypatch)
    assert run(tmp_path / "run") == ExitCode.STOPPED
    assert RunErrors.in_run(tmp_path / "run").read_exit() == ExitRecord(code=75, step=1, cause="SIGUSR2")
    assert "stopped by SIGUSR2 at step 1 of 8" in capsys.readouterr().out
    monkeypatch.undo()
    assert run(tmp_path / "run") == ExitCode.OK
    assert lines(capsys.readouterr().out)["resumed"] == "at step 1 of 8"


def test_a_run_whose_time_is_up_ends_with_75_and_names_the_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "run", environ={"ENTRYPOINT_DEADLINE": "1"}) == ExitCode.STOPPED
    text = capsys.readouterr().out
    assert lines(text)["time limit"].startswith("1970-01-01")
    assert "stopped by the deadline 1970-01-01" in text
    assert "this start had no time for a step" in text
    assert RunErrors.in_run(tmp_path / "run").read_exit() == ExitRecord(code=75, step=0, cause="deadline")


def test_what_became_of_the_start_before_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with built(tmp_path) as trainer:
        assert "note: it was killed" in session.banner(
            trainer, CallerVariables(acting={}, removed={}), previous_notes=["it was killed"]
        )


def test_a_stop_without_a_step_says_that_nothing_was_saved(tmp_path: Path) -> None:
    with built(tmp_path) as trainer:
        trainer.begin()
        trainer.signals.handle(signal.SIGTERM)
        assert "stopped by SIGTERM at step 0 of 8: nothing was saved" in session.stopped_summary(trainer, "train")


def test_a_start_that_has_lost_the_folder_writes_no_exit_file(tmp_path: Path) -> None:
    with built(tmp_path) as trainer:
        trainer.begin()
        trainer.lock = lock.RunLock(folder=trainer.folder, number=1)  # there is no such lock file
        trainer.signals.handle(signal.SIGTERM)
        assert session._finish(trainer, typed="train") == ExitCode.STOPPED
        assert RunErrors.in_run(trainer.folder).read_exit() is None


@pytest.mark.parametrize("summary", [session.stopped_summary, session.finished_summary])
def test_the_summary_tells_what_a_start_has_consumed(tmp_path: Path, summary: Callable[[Trainer, str], str]) -> None:
    with built(tmp_path) as trainer:
        trainer.begin()
        trainer.usage = UsageRecorder(hosts=["node00"])
        trainer.usage.receive(row(rank()))
        text = summary(trainer, "train")
    assert lines(text)["CPU use"] == "1.5 cores per rank on average"
    assert lines(text)["memory"] == "up to 2.0 GiB per rank"
    assert text.splitlines()[-1].startswith("continue:")


def test_a_requeued_job_that_began_anew_goes_on_with_what_it_has_begun(tmp_path: Path) -> None:
    settings, job = ("checkpoint.resume=never", "train.max_steps=2"), {"SLURM_JOB_ID": "7"}
    run(tmp_path / "run", *settings, environ=job)
    run(tmp_path / "run", *settings, "train.max_steps=4", environ={**job, "SLURM_RESTART_COUNT": "1"})
    recorded = record.read_run(tmp_path / "run") or {}
    assert [start["step"] for start in recorded["starts"]] == [0, 2]
