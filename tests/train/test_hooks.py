"""What watches a training: profile.steps, and code that is compiled again. The training is the same with it."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jobs import TINY, after, built, trained
from processes import python
from torch.profiler import profile

from entrypoint import ExitCode, Failure
from train import compilation, hooks, profiler
from train.checkpoint import store
from train.hooks import RecompilationWarning, StepProfiler
from train.trainer import Trainer


def printed_by_training(folder: Path, *settings: str) -> str:
    """What a tiny training says: eight steps."""
    out = io.StringIO()
    with built(folder, *settings, out=out) as trainer:
        trainer.fit()
    return out.getvalue()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / hooks.PROFILE_FOLDER).iterdir())


def timeline(folder: Path) -> Sequence[dict[str, Any]]:
    (path,) = (folder / hooks.PROFILE_FOLDER).glob("*.json.gz")
    return json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]  # type: ignore[no-any-return]


def test_the_first_and_the_last_step_are_recorded_and_no_other(tmp_path: Path) -> None:
    text = printed_by_training(tmp_path, "profile.steps=[3,5]", "train.micro_batch_size=16")
    steps = [event for event in timeline(tmp_path) if event["name"].startswith("Optimizer.step#")]
    assert len(steps) == 3
    assert names(tmp_path) == ["rank-0000-steps-3-5.json.gz", "rank-0000-steps-3-5.txt"]
    assert text.count("profile of steps 3 to 5, rank 0: 3 steps in ") == 1


def test_the_console_shows_the_costliest_and_where_the_rest_is(tmp_path: Path) -> None:
    lines = printed_by_training(tmp_path, "profile.steps=[3,5]").splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("operation "))
    assert lines[at + 11].startswith(f"table     {tmp_path}/profile/rank-0000-steps-3-5.txt")
    assert lines[at + 12].startswith(f"timeline  {tmp_path}/profile/rank-0000-steps-3-5.json.gz")
    assert all(line.endswith("%") for line in lines[at + 1 : at + 11])
    assert (tmp_path / "profile/rank-0000-steps-3-5.txt").read_text().count("\n") > 20


def test_a_training_has_the_same_bits_with_it(tmp_path: Path) -> None:
    weights = set()
    for name, settings in {"with": ("profile.steps=[2,6]",), "without": ()}.items():
        trained(tmp_path / name, *settings)
        checkpoint = store.newest_checkpoint(tmp_path / name / "checkpoints")
        assert checkpoint is not None
        weights.add(checkpoint.contents.files["model.safetensors"].sha256)
    assert len(weights) == 1


def test_a_run_that_ends_among_these_steps_writes_what_it_has(tmp_path: Path) -> None:
    printed_by_training(tmp_path, "profile.steps=[7,20]")
    assert names(tmp_path) == ["rank-0000-steps-7-8.json.gz", "rank-0000-steps-7-8.txt"]


def test_a_run_that_ends_among_them_commits_its_checkpoint_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[list[str]] = []
    folder = tmp_path / "checkpoints"
    monkeypatch.setattr(
        profiler, "write_timeline", lambda *given: kept.append([path.name for path in folder.iterdir()])
    )
    printed_by_training(tmp_path, "profile.steps=[7,20]")
    assert [names for names in kept if "step-00000008" in names] == kept != []


def test_a_run_that_fails_among_them_writes_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(trainer: Trainer) -> None:
        raise Failure("enough", fix="none", code=ExitCode.PEER)

    after(4, fail, monkeypatch)
    with pytest.raises(Failure, match="enough"):
        printed_by_training(tmp_path, "profile.steps=[3,20]")
    assert names(tmp_path) == ["rank-0000-steps-3-4.json.gz", "rank-0000-steps-3-4.txt"]


def test_a_resumed_run_records_the_rest_of_the_steps(tmp_path: Path) -> None:
    printed_by_training(tmp_path, "train.max_steps=4")
    printed_by_training(tmp_path, "profile.steps=[3,6]")
    assert names(tmp_path) == ["rank-0000-steps-5-6.json.gz", "rank-0000-steps-5-6.txt"]


def test_a_resumed_run_beyond_them_says_nothing(tmp_path: Path) -> None:
    printed_by_training(tmp_path, "train.max_steps=4")
    assert "profile" not in printed_by_training(tmp_path, "profile.steps=[2,4]")
    assert not (tmp_path / hooks.PROFILE_FOLDER).exists()


def test_steps_that_the_run_does_not_have_are_said(tmp_path: Path) -> None:
    text = printed_by_training(tmp_path, "profile.steps=[10,20]")
    assert text.count("profile.steps [10, 20]: nothing is recorded, the run has 8 steps") == 1


def test_a_profile_that_cannot_be_written_ends_no_run(tmp_path: Path) -> None:
    (tmp_path / hooks.PROFILE_FOLDER).write_text("in the way")
    text = printed_by_training(tmp_path, "profile.steps=[3,5]")
    assert text.count("warning: the profile is incomplete, training goes on: FileExistsError") == 1
    assert "epoch 2/2" in text


def test_a_timeline_that_was_cut_off_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "export_chrome_trace", lambda self, path: Path(path).write_text('{"traceEvents": ['))
    assert "was not written whole" in printed_by_training(tmp_path, "profile.steps=[3,5]")
    assert names(tmp_path) == ["rank-0000-steps-3-5.txt"]


def test_the_time_of_the_steps_is_that_of_the_steps_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, train_step, start = [0.0], Trainer.train_step, StepProfiler._start
    seconds = {"step": 1.0, "start": 100.0}
    monkeypatch.setattr(Trainer, "train_step", lambda *rest: (now.append(now[-1] + seconds["step"]), train_step(*rest)))
    monkeypatch.setattr(StepProfiler, "_start", lambda self: (now.append(now[-1] + seconds["start"]), start(self)))
    out = io.StringIO()
    with built(tmp_path, "profile.steps=[3,5]", "data.val_fraction=0", out=out) as trainer:
        trainer.clock = lambda: now[-1]
        trainer.fit()
    assert "3 steps in 3.0 s " in out.getvalue()


@pytest.mark.slow
def test_ranks_do_not_take_each_other_for_dead_while_one_writes(tmp_path: Path) -> None:
    run = ("--device", "cpu", "--procs-per-node", "2", "run.output_dir=.", "run.name=run")
    done = python("-m", "train", *run, *TINY, "profile.steps=[2,3]", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("profile of steps 2 to 3, rank 0: 2 steps in ") == 1
    assert names(tmp_path / "run") == ["rank-0000-steps-2-3.json.gz", "rank-0000-steps-2-3.txt"]


def test_code_that_is_compiled_again_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs, events, lines = [2], list[tuple[str, dict[str, int]]](), list[str]()
    monkeypatch.setattr(compilation, "count_compiled", lambda: {"graphs": graphs[-1]})
    logger = SimpleNamespace(write=lambda event, **values: events.append((event, values)))
    warning = RecompilationWarning(logger, lines.append)  # type: ignore[arg-type]
    warning.at_log(1)
    graphs.append(5)
    warning.at_log(2)
    warning.at_log(3)
    assert events == [("compiled", {"step": 2, "graphs": 3})]
    assert [line.partition(";")[0] for line in lines] == ["warning: graphs compiled again by step 2: 3"]


def test_a_run_that_asks_for_nothing_is_not_watched(tmp_path: Path) -> None:
    with built(tmp_path, "train.check_replicas_every_steps=null", "train.max_steps=1") as trainer:
        trainer.fit()
    assert trainer.hooks == []
