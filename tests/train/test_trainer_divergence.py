"""A run whose numbers are not finite ends, and is never kept as good."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch
from jobs import after, built
from processes import python
from runs import TEN_STEPS

from entrypoint import ExitCode, Failure
from train.checkpoint import format, store
from train.checkpoint.checkpointer import find_nonfinite
from train.config import load, resume_rules
from train.config.schema import RunConfig
from train.distributed import replica_check
from train.tasks.base import StepLoss
from train.trainer import Trainer

LOWER = ("optim.lr=0.001", "optim.warmup_epochs=9", "train.clip_grad_norm=1.0")


def spoil(trainer: Trainer) -> None:
    with torch.no_grad():
        next(trainer.state.network.parameters()).fill_(float("nan"))


@pytest.mark.parametrize("at", [3, 4, 8], ids=["between-logs", "before-an-evaluation", "before-the-last-commit"])
def test_a_run_that_diverges_ends_with_90_and_keeps_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    after(at, spoil, monkeypatch)
    with built(tmp_path, "checkpoint.every_steps=2") as trainer, pytest.raises(Failure) as caught:
        trainer.fit()
    assert caught.value.code == ExitCode.DIVERGED
    kept = store.newest_checkpoint(tmp_path / "checkpoints")
    assert kept is not None
    assert caught.value.kept == str(kept.path)
    assert all(tensor.isfinite().all() for tensor in format.load_checkpoint(kept)[0]["model"].values())


def test_what_would_help_a_diverged_run_is_offered_to_a_new_one_as_the_old_one_would_refuse_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    after(3, spoil, monkeypatch)
    with built(tmp_path, "checkpoint.every_steps=2") as trainer, pytest.raises(Failure) as caught:
        trainer.fit()
    before, _, keys = caught.value.fix.partition("another run.name")
    assert before == "start a new run under "
    assert {*re.findall(r"(?:optim|train)\.\w+", keys)} == {
        *resume_rules.changed_keys(asdict(RunConfig()), asdict(load.load_config(None, LOWER)))
    }


def test_statistics_that_are_not_finite_end_a_run_whose_loss_they_do_not_touch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil_statistics(trainer: Trainer) -> None:
        next(b for b in trainer.state.network.buffers() if b.is_floating_point()).fill_(float("inf"))

    after(3, spoil_statistics, monkeypatch)
    settings = ("model.name=wide_resnet", "model.args={depth: 2, width: 1}", "data.image_size=32")
    with (
        built(tmp_path, *settings, "checkpoint.every_steps=1") as trainer,
        pytest.raises(Failure, match="step 3") as caught,
    ):
        trainer.fit()
    assert (caught.value.code, caught.value.found) == (90, "running statistics that are not finite")
    assert caught.value.kept == str(tmp_path / "checkpoints" / "step-00000002")


def test_a_buffer_that_no_checkpoint_holds_may_hold_what_it_likes(tmp_path: Path) -> None:
    with built(tmp_path) as trainer:
        trainer.state.network.register_buffer("mask", torch.tensor([0.0, float("-inf")]), persistent=False)
        assert find_nonfinite(trainer.runtime, trainer.state.network) is None


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (math.nan, torch.float32),
        (-math.inf, torch.float64),
        (math.inf, torch.bfloat16),
        (complex(0, math.inf), torch.complex64),
        (math.inf, torch.float8_e5m2),
        (math.nan, torch.float8_e4m3fn),
    ],
    ids=str,
)
def test_one_number_that_is_not_finite_is_seen_before_a_save(
    tmp_path: Path, value: complex, dtype: torch.dtype
) -> None:
    with built(tmp_path) as trainer:
        trainer.begin()
        trainer.state.network.register_buffer("finite", torch.tensor([1e18, 1e-40, 0.0]))
        trainer.state.network.register_buffer("in_half", torch.full((9,), 65504.0, dtype=torch.float16))
        trainer.state.network.register_buffer("none", torch.empty(0))
        trainer.state.network.register_buffer("counter", torch.tensor(2**40))
        assert find_nonfinite(trainer.runtime, trainer.state.network) is None
        trainer.state.network.register_buffer("last", torch.tensor([0, 1, value]).to(dtype))
        evidence = find_nonfinite(trainer.runtime, trainer.state.network)
    assert evidence == "running statistics that are not finite"


def test_a_weight_that_is_not_finite_is_named_as_a_weight(tmp_path: Path) -> None:
    with built(tmp_path) as trainer:
        trainer.begin()
        trainer.state.step = 1
        spoil(trainer)
        with pytest.raises(Failure, match="diverged") as caught:
            trainer.save()
    assert caught.value.found == "weights that are not finite"


def test_a_loss_that_is_not_finite_is_seen_at_the_next_log_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    after(2, spoil, monkeypatch)
    with built(tmp_path) as trainer, pytest.raises(Failure, match="at or before step 4"):
        trainer.fit()
    assert store.newest_checkpoint(tmp_path / "checkpoints") is None


@pytest.mark.parametrize(("skipped", "diverged"), [(19, False), (20, True)])
def test_with_fp16_only_twenty_skipped_steps_in_a_row_are_divergence(
    tmp_path: Path, skipped: int, diverged: bool
) -> None:
    with built(tmp_path) as trainer:
        trainer.runtime.accelerator.scaler = torch.amp.GradScaler("cpu")
        trainer.begin()
        trainer.loop.skipped_steps = skipped
        infinite = StepLoss(loss=torch.tensor(float("inf")), samples=1, values={"accuracy": torch.tensor(0)})
        trainer.loop.running_mean.add(infinite)
        if diverged:
            with pytest.raises(Failure, match="diverged"):
                trainer.check_finite_loss()
        else:
            assert trainer.check_finite_loss() is not None


def broken(folder: Path, ranks: int, fault: str, *settings: str) -> CompletedProcess[str]:
    """A run of ten steps on several ranks, with a fault."""
    (folder / "ten.yaml").write_text(TEN_STEPS)
    world = ("--device", "cpu", "--procs-per-node", str(ranks), "data.val_fraction=0")
    return python("-m", "train", "--config", "ten.yaml", *world, *settings, cwd=folder, environ={"FAULT": fault})


def said(folder: Path) -> dict[str, dict[str, object]]:
    """What errors/ holds."""
    return {path.stem: json.loads(path.read_text()) for path in (folder / "runs/run/errors").glob("*.json")}


@pytest.mark.slow
def test_a_bit_that_flips_on_one_of_three_ranks_ends_with_78_and_blames_that_rank_alone(tmp_path: Path) -> None:
    ended = broken(tmp_path, 3, "param:1:5:flip", "checkpoint.every_steps=3", "train.check_replicas_every_steps=7")
    errors = said(tmp_path)
    assert (ended.returncode, errors["exit"]["code"], errors["exit"]["step"]) == (78, 78, 6), ended.stderr
    assert [errors[f"rank-000{rank}"]["code"] for rank in range(3)] == [69, 78, 69]
    assert str(errors["rank-0001"]["found"]).startswith("rank 1 (")
    kept = store.newest_checkpoint(tmp_path / "runs/run/checkpoints")
    assert kept is not None
    assert kept.step == 3  # not 6, the save at which it was seen


@pytest.mark.slow
def test_without_a_save_it_is_seen_after_so_many_steps_and_two_ranks_are_both_named(tmp_path: Path) -> None:
    ended = broken(tmp_path, 2, "param:1:2:flip", "train.check_replicas_every_steps=4")
    errors = said(tmp_path)
    assert (ended.returncode, errors["exit"]["step"]) == (78, 4), ended.stderr
    assert [errors[f"rank-000{rank}"]["code"] for rank in range(2)] == [78, 78]
    assert "no majority can tell" in str(errors["rank-0000"]["found"])


@pytest.mark.parametrize(("every", "steps"), [("3", [3, 4, 6, 8]), ("500", [4, 8]), ("null", [])])
def test_replicas_are_compared_every_so_many_steps_and_before_each_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: str, steps: list[int]
) -> None:
    compared: list[int] = []
    monkeypatch.setattr(replica_check, "check_replicas", lambda runtime, net, optimizer, step: compared.append(step))
    with built(tmp_path, f"train.check_replicas_every_steps={every}") as trainer:
        trainer.fit()
    assert compared == steps


def test_a_loss_that_is_no_number_ends_all_ranks_with_90_and_its_batches_are_named(tmp_path: Path) -> None:
    ended = broken(tmp_path, 2, "loss:1:7:nan", "log.every_steps=5", "checkpoint.every_steps=3")
    errors = said(tmp_path)
    found = errors["diverged"]
    assert (ended.returncode, [errors[name]["code"] for name in ("exit", "rank-0000", "rank-0001")]) == (90, [90] * 3)
    assert (found["first_bad_step"], [batch["step"] for batch in found["batches"]]) == (8, [6, 7, 8, 9])  # type: ignore[attr-defined]
    assert [batch["ranks"] for batch in found["batches"]] == [[], [], [1], [0, 1]]  # type: ignore[attr-defined]
    assert "note: FAULT=loss:1:7:nan" in ended.stdout
