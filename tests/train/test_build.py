"""Everything that a training needs, put together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from jobs import built, refused, trained
from torch import nn

from entrypoint import ExitCode
from train.trainer import Trainer


def test_a_new_folder_starts_at_step_zero(tmp_path: Path) -> None:
    with built(tmp_path) as trainer:
        assert (trainer.state.step, trainer.notes) == (0, ())


def test_a_job_knows_its_sizes(tmp_path: Path) -> None:
    with built(tmp_path) as trainer:
        assert (trainer.dataset.num_training, trainer.dataset.num_validation, len(trainer.dataset.classes)) == (
            64,
            16,
            2,
        )
        assert (trainer.steps.per_epoch, trainer.steps.total, trainer.batches.accumulation) == (4, 8, 2)


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
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        with built(tmp_path / str(seed)) as trainer:
            results.append(weights_of(trainer))
    assert torch.equal(*results)


def test_a_fresh_run_begins_with_the_weights_it_is_given(tmp_path: Path) -> None:
    first = trained(tmp_path / "first")
    with built(tmp_path / "second", f"model.weights={tmp_path / 'first'}") as trainer:
        assert torch.equal(weights_of(trainer), weights_of(first))
        assert trainer.notes


def test_a_run_that_goes_on_does_not_take_them_again(tmp_path: Path) -> None:
    trained(tmp_path / "first")
    settings = (f"model.weights={tmp_path / 'first'}", "optim.lr=0.02")
    second = trained(tmp_path / "second", *settings)
    with built(tmp_path / "second", *settings) as trainer:
        assert torch.equal(weights_of(trainer), weights_of(second))


FROZEN = """
from torch import nn
def make(classes, width):
    return nn.Sequential(nn.BatchNorm2d(3).eval(), nn.Flatten(), nn.LazyLinear(classes))
"""


def test_the_banner_tells_of_parts_in_evaluation_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "frozen_part.py").write_text(FROZEN)
    monkeypatch.syspath_prepend(tmp_path)
    with built(tmp_path / "run", "model.name=frozen_part:make") as trainer:
        assert "in evaluation mode" in trainer.notes[0]


def test_batch_norm_of_one_rank_needs_no_other(tmp_path: Path) -> None:
    with built(tmp_path, "model.args.norm=batch", "train.sync_batchnorm=true") as trainer:
        assert not any(isinstance(module, nn.SyncBatchNorm) for module in trainer.state.network.modules())


def weights_of(trainer: Trainer) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.state.network.parameters()])
