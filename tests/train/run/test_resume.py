"""What a start finds in the run's folder decides where it goes on, with other ranks or on another machine too."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import flip
from images import write_classes
from jobs import after, built, refused, trained
from torch.optim import SGD, Adam

from entrypoint import ExitCode, Failure
from train import build
from train.checkpoint import format, store
from train.config.schema import TrainConfig
from train.distributed.device import describe_arithmetic
from train.run import resume
from train.run.stop import StopSignals


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run, with checkpoints at steps 4 and 8."""
    trained(tmp_path, "checkpoint.every_steps=4")
    return tmp_path


def test_a_run_goes_on_from_its_newest_checkpoint(run: Path) -> None:
    with built(run, "train.epochs=4") as trainer:
        assert trainer.state.step == 8
        assert trainer.parallel.optimizer.state


def test_what_a_kill_left_of_a_small_file_is_removed_and_named_and_what_others_write_stays(run: Path) -> None:
    left, others = ".tmp-best.json-0123456789abcdef", ".tmp-evaluation.json-0123456789abcdef"
    for name in (left, others, ".tmp-mine.json-0123456789abcdef"):
        (run / name).write_text("half")
    with built(run) as trainer:
        assert f"removed {left}, which an interrupted save left" in trainer.notes
    assert {path.name for path in run.glob(".tmp-*")} == {others, ".tmp-mine.json-0123456789abcdef"}


def test_a_damaged_checkpoint_is_skipped_and_said(run: Path) -> None:
    flip(run / "checkpoints" / "step-00000008" / "model.safetensors")
    with built(run) as trainer:
        assert trainer.state.step == 4
        assert "step-00000008" in trainer.notes[0]


def test_a_changed_configuration_is_refused_with_the_difference(run: Path) -> None:
    failure = refused(run, "optim.lr=0.02")
    assert failure.code == ExitCode.DATA
    assert "optim.lr" in str(failure.found)


def test_a_run_that_was_begun_with_the_former_default_of_the_rate_is_told_how_to_go_on(tmp_path: Path) -> None:
    trained(tmp_path, "optim.lr=0.1")
    failure = refused(tmp_path, "optim.lr=auto")
    assert (failure.code, failure.found) == (ExitCode.DATA, "optim.lr: 0.1 -> 0.00625")
    assert "write optim.lr=0.1;" in failure.fix
    with built(tmp_path, "optim.lr=0.1", "train.epochs=4") as trainer:
        assert trainer.state.step == 8


@pytest.mark.parametrize(("setting", "rate"), [("optim.lr=auto", 0.00625), ("optim.name=adamw", 0.00025)])
def test_a_run_records_the_rate_that_auto_stands_for_and_resumes_with_either(
    tmp_path: Path, setting: str, rate: float
) -> None:
    assert trained(tmp_path, "optim.lr=auto", setting).config.optim.lr == rate
    for again in ("optim.lr=auto", f"optim.lr={rate}"):
        with built(tmp_path, setting, again, "train.epochs=4") as trainer:
            assert (trainer.state.step, trainer.schedule.peak) == (8, rate)
    assert refused(tmp_path, setting, "optim.lr=0.01").found == f"optim.lr: {rate} -> 0.01"


def test_a_run_that_was_to_do_more_is_not_taken_for_finished(tmp_path: Path) -> None:
    watch = StopSignals()
    with built(tmp_path, "train.epochs=9", signals=watch) as trainer, pytest.MonkeyPatch.context() as patch:
        after(5, lambda job: watch.handle(signal.SIGTERM), patch)
        trainer.fit()
    failure = refused(tmp_path, "train.epochs=1")
    assert (failure.code, failure.found) == (ExitCode.DATA, "step 5, epoch 2")
    assert failure.expected == "at most 4 steps (1 epoch); the last start was to do 36"
    assert failure.fix.startswith("add train.epochs=9 to go on as the last start did")


@pytest.mark.parametrize(("epochs", "notes"), [(2, 1), (9, 0), (12, 0)])
def test_a_run_that_goes_on_to_an_earlier_end_is_said_to(tmp_path: Path, epochs: int, notes: int) -> None:
    watch = StopSignals()
    with built(tmp_path, "train.epochs=9", signals=watch) as trainer, pytest.MonkeyPatch.context() as patch:
        after(5, lambda job: watch.handle(signal.SIGTERM), patch)
        trainer.fit()
    with built(tmp_path, f"train.epochs={epochs}") as trainer:
        assert [note.startswith("the run was to have train.epochs=9") for note in trainer.notes] == [True] * notes


def test_what_ended_at_its_end_is_finished_wherever_that_is_today(run: Path) -> None:
    with built(run, "train.epochs=1") as trainer:
        assert trainer.state.step > trainer.steps.total


def test_resume_never_moves_the_earlier_run_away_and_starts_over(run: Path) -> None:
    with built(run, "checkpoint.resume=never", "optim.lr=0.02") as trainer:
        assert trainer.state.step == 0
        assert "before-1" in trainer.notes[0]
    assert (run / "before-1" / "checkpoints" / "step-00000008").exists()


@pytest.mark.parametrize("earlier", [True, False])
def test_a_run_that_was_begun_anew_is_not_missed_by_a_requeued_job(tmp_path: Path, earlier: bool) -> None:
    if earlier:
        trained(tmp_path)
    with built(tmp_path, "checkpoint.resume=never") as trainer:
        assert ("before-1" in "".join(trainer.notes)) == earlier
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_what_cannot_be_started_over_leaves_the_earlier_run_where_it_is(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_loader(*rest: Any, **settings: Any) -> None:
        raise Failure("no memory for the images", fix="free some", code=ExitCode.RESOURCE)

    before = sorted(run.rglob("*"))
    monkeypatch.setattr(build, "open_loader", no_loader)
    assert refused(run, "checkpoint.resume=never").code == ExitCode.RESOURCE
    assert sorted(run.rglob("*")) == before


def test_another_number_of_ranks_is_said(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = format.load_checkpoint
    monkeypatch.setattr(
        format, "load_checkpoint", lambda *of, **groups: (real(*of)[0], real(*of)[1] | {"world_size": 4})
    )
    with built(run) as trainer:
        assert "instead of 4" in trainer.notes[0]


@pytest.mark.parametrize(
    ("before", "named"),
    [({"training": 65}, "training: 65"), ({"held_out": 0}, "validation: 0"), ({"classes": ["cat", "dog"]}, "cat, dog")],
    ids=["a-file-more", "a-side-less", "other-classes"],
)
def test_a_run_does_not_go_on_with_other_data(
    run: Path, before: dict[str, object], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = format.load_checkpoint

    def other(checkpoint: store.CommittedCheckpoint, **groups: Any) -> tuple[Any, dict[str, Any]]:
        tensors, facts = real(checkpoint)
        return tensors, facts | {"data": facts["data"] | before}

    monkeypatch.setattr(format, "load_checkpoint", other)
    failure = refused(run)
    assert failure.code == ExitCode.DATA
    assert named in str(failure.expected)


def photos(folder: Path) -> tuple[str, ...]:
    """Settings of a training on eighty images."""
    return "data.name=folder", f"data.root={write_classes(folder / 'photos', ant=40, bee=40)}"


def test_as_many_files_of_which_one_is_another_are_refused_with_the_split_in_the_fix(tmp_path: Path) -> None:
    settings = photos(tmp_path)
    trained(tmp_path / "run", *settings)
    (tmp_path / "photos/ant/007.png").rename(tmp_path / "photos/ant/100.png")
    failure = refused(tmp_path / "run", *settings)
    assert (failure.code, str(failure.found)[:22]) == (ExitCode.DATA, "training: 64 as before")
    assert "draw a new split" in failure.fix


def test_the_same_files_at_another_place_go_on(tmp_path: Path) -> None:
    trained(tmp_path / "run", *photos(tmp_path))
    moved = (tmp_path / "photos").rename(tmp_path / "moved")
    with built(tmp_path / "run", "data.name=folder", f"data.root={moved}") as trainer:
        assert trainer.state.step == 8


@pytest.mark.parametrize(
    ("kind", "averaged", "copies"),
    [(SGD, False, 2), (SGD, True, 3), (Adam, False, 3), (Adam, True, 4)],
    ids=["sgd", "sgd-averaged", "adam", "adam-averaged"],
)
def test_room_is_asked_for_weights_moments_and_average(kind: type, averaged: bool, copies: int) -> None:
    network = torch.nn.Linear(2, 3)
    optimizer = kind(network.parameters(), lr=0.1)
    train = TrainConfig(ema_decay=0.9 if averaged else None)
    assert resume.checkpoint_bytes(train, network, optimizer) == copies * 4 * (2 * 3 + 3)


BITWISE = "train.reproducible=bitwise"


def notes_after(folder: Path, *settings: str, **changed: object) -> list[str]:
    """What is said where these facts of the checkpoint were others."""
    with built(folder, *settings) as trainer:
        arithmetic = describe_arithmetic(trainer.runtime.device)
        arithmetic = {name: changed.get(name, value) for name, value in arithmetic.items()}
        facts = {"arithmetic": arithmetic, "world_size": changed.get("world_size", 1)}
        return resume.machine_notes(trainer.config, facts, trainer.runtime)


def test_the_same_place_needs_no_word(tmp_path: Path) -> None:
    assert notes_after(tmp_path) == notes_after(tmp_path, BITWISE) == []


@pytest.mark.parametrize(("mode", "promise"), [("fast", "other rounding"), ("bitwise", "same bits")])
def test_another_number_of_ranks_is_said_with_what_it_means(tmp_path: Path, mode: str, promise: str) -> None:
    (note,) = notes_after(tmp_path, f"train.reproducible={mode}", world_size=2)
    assert note.startswith("the run goes on with 1 rank instead of 2: ")
    assert note.endswith(promise)


@pytest.mark.parametrize("other", [{"threads": 7}, {"device": "NVIDIA H100"}, {"torch": "2.0"}], ids=str)
def test_other_arithmetic_is_said_where_bits_are_not_promised(tmp_path: Path, other: dict[str, object]) -> None:
    assert [note.split()[0] for note in notes_after(tmp_path, **other)] == list(other)


@pytest.mark.parametrize("other", [{"threads": 7}, {"device": "NVIDIA H100"}, {"torch": "2.0"}], ids=str)
def test_other_arithmetic_is_refused_where_they_are(tmp_path: Path, other: dict[str, object]) -> None:
    with pytest.raises(Failure) as caught:
        notes_after(tmp_path, BITWISE, **other)
    assert caught.value.code == ExitCode.LAUNCH_CONFLICT
    assert caught.value.found.startswith(next(iter(other)))


def test_a_checkpoint_that_says_nothing_of_its_machine_is_taken(tmp_path: Path) -> None:
    with built(tmp_path, BITWISE) as trainer:
        assert resume.machine_notes(trainer.config, {"world_size": 1}, trainer.runtime) == []


@pytest.mark.parametrize(("environ", "threads"), [({}, 1), ({"OMP_NUM_THREADS": "2"}, 2)], ids=["ours", "the-users"])
def test_bitwise_computes_with_one_thread_unless_the_user_says_so(
    tmp_path: Path, environ: dict[str, str], threads: int
) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with built(tmp_path, BITWISE, environ=environ) as trainer:
            assert describe_arithmetic(trainer.runtime.device)["threads"] == threads
    finally:
        torch.set_num_threads(before)
