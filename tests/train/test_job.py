"""What a start finds in the run's folder decides where it goes on, or that it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from checkpoints import flip
from jobs import opened, trained

from entrypoint import ExitCode, Failure
from train import checkpoint


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run, with checkpoints at steps 4 and 8."""
    trained(tmp_path, "checkpoint.every_steps=4")
    return tmp_path


def refused(folder: Path, *settings: str) -> Failure:
    with pytest.raises(Failure) as caught, opened(folder, *settings):
        pass
    return caught.value


def test_a_new_folder_starts_at_step_zero(tmp_path: Path) -> None:
    with opened(tmp_path) as todo:
        assert (todo.state.step, todo.notes) == (0, ())


def test_a_job_knows_its_sizes(tmp_path: Path) -> None:
    with opened(tmp_path) as todo:
        assert (todo.images, todo.held_out, len(todo.classes)) == (64, 16, 2)
        assert (todo.steps.per_epoch, todo.steps.total, todo.batches.accumulation) == (4, 8, 2)


def test_a_run_goes_on_from_its_newest_checkpoint(run: Path) -> None:
    with opened(run, "train.epochs=4") as todo:
        assert todo.state.step == 8
        assert todo.optimizer.state


def test_a_damaged_checkpoint_is_skipped_and_said(run: Path) -> None:
    flip(run / "checkpoints" / "step-00000008" / "model.safetensors")
    with opened(run) as todo:
        assert todo.state.step == 4
        assert "step-00000008" in todo.notes[0]


def test_a_run_whose_checkpoints_are_all_damaged_is_refused(run: Path) -> None:
    for path in (run / "checkpoints").glob("*/model.safetensors"):
        flip(path)
    assert refused(run).code == ExitCode.DATA


@pytest.mark.parametrize("setting", ["optim.lr=0.02", "run.seed=1", "model.args.width=5", "data.samples=96"])
def test_a_changed_configuration_is_refused_with_the_difference(run: Path, setting: str) -> None:
    failure = refused(run, setting)
    assert failure.code == ExitCode.DATA
    assert setting.partition("=")[0].removesuffix(".width") in str(failure.found)


def test_resume_never_moves_the_earlier_run_away_and_starts_over(run: Path) -> None:
    with opened(run, "checkpoint.resume=never", "optim.lr=0.02") as todo:
        assert todo.state.step == 0
        assert "before-1" in todo.notes[0]
    assert (run / "before-1" / "checkpoints" / "step-00000008").exists()


def test_another_number_of_ranks_is_said(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = checkpoint.load
    monkeypatch.setattr(checkpoint, "load", lambda found: (real(found)[0], real(found)[1] | {"world_size": 4}))
    with opened(run) as todo:
        assert "4 ranks" in todo.notes[0]


@pytest.mark.parametrize(
    ("setting", "code"),
    [
        ("train.global_batch_size=72", ExitCode.USAGE),
        ("data.name=folder", ExitCode.NO_INPUT),
        ("model.args.depth=3", ExitCode.USAGE),
        ("optim.args.nesterof=true", ExitCode.USAGE),
    ],
    ids=["epoch-without-a-step", "no-folder", "model-argument", "optimizer-argument"],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(
    tmp_path: Path, setting: str, code: ExitCode
) -> None:
    assert refused(tmp_path / "run", setting).code == code
    assert not (tmp_path / "run").exists()


def test_first_weights_do_not_depend_on_what_happened_before(tmp_path: Path) -> None:
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        with opened(tmp_path / str(seed)) as todo:
            found.append(torch.cat([p.detach().flatten() for p in todo.state.network.parameters()]))
    assert torch.equal(*found)
