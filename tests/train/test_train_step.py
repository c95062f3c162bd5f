"""One optimizer step: where a fault can strike in it, and what it does not ask of the kernel, nor of the device.

What it computes: test_trainer, test_same_numbers.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from calls_seen import between
from jobs import built
from processes import unmeasured
from torch.utils._python_dispatch import TorchDispatchMode

from entrypoint import Heartbeat
from entrypoint.heartbeat import Phase, Point
from train import fault_injection
from train.trainer import Trainer


@pytest.mark.parametrize("site", ["step", "data", "fwd", "bwd"])
def test_a_fault_strikes_in_its_step(site: str, tmp_path: Path) -> None:
    with built(tmp_path) as trainer:
        trainer.faults.waiting = fault_injection.parse_faults(f"{site}:0:2:oom", 0).waiting
        with pytest.raises(MemoryError):
            trainer.fit()
    assert trainer.state.step == 2


class Heard(Heartbeat):
    """Remembers where it was, and at which step."""

    def __init__(self) -> None:
        super().__init__()
        self.beats: list[tuple[str, str, int | None]] = []

    def beat(self, phase: Phase, point: Point = "", *, step: int | None = None) -> None:
        self.beats.append((phase, point, step))

    def at(self, point: Point) -> None:
        self.beats.append(("step", point, None))


def test_a_rank_says_at_each_point_of_a_step_where_it_is(tmp_path: Path) -> None:
    heard = Heard()
    with built(tmp_path, "train.max_steps=1", "eval.every_epochs=9", "log.every_steps=1") as trainer:
        trainer.heartbeat = heard
        trainer.fit()
    points = [point for phase, point, _ in heard.beats if phase == "step" and point]
    assert points[:6] == ["agreement", *["reads data", "forward", "backward"] * 2][:6]
    assert ("step", "device", 1) in heard.beats  # the loss is fetched
    assert {phase for phase, _, _ in heard.beats} == {"step", "evaluation", "save"}


def test_gradients_are_exchanged_once_in_a_step_however_many_micro_batches_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone: list[object] = []
    monkeypatch.setattr(Accelerator, "no_sync", lambda self, model: nullcontext(alone.append(model)))
    parts = ("train.global_batch_size=16", "train.micro_batch_size=4", "train.max_steps=2", "eval.every_epochs=9")
    with built(tmp_path, *parts) as trainer:
        trainer.fit()
    assert len(alone) == 2 * 3


# What lets the CPU wait until a GPU has computed: by the dispatcher's name, or by the tensor's method.
WAITING = ("_local_scalar_dense", "is_nonzero", "nonzero", "equal", "_unique2", "masked_select")
READING = ("tolist", "numpy", "cpu")


class Waits(TorchDispatchMode):
    """Remembers after how many steps a number was fetched from the device."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self.trainer, self.steps = trainer, set[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in WAITING:
            self.note()
        return func(*args, **(kwargs or {}))

    def note(self) -> None:
        self.steps.add(self.trainer.state.step)


@contextmanager
def fetches(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> Iterator[set[int]]:
    """The steps after which something is fetched inside."""
    waits = Waits(trainer)
    for name in READING:
        real = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, lambda tensor, real=real: (waits.note(), real(tensor))[1])
    with waits:
        yield waits.steps


STEPS = {
    "sgd": ("train.clip_grad_norm=1.0", "train.ema_decay=0.9", "optim.label_smoothing=0.1"),
    "adamw": ("optim.name=adamw", "train.precision=bf16", "optim.class_weights=balanced"),
    "bitwise": ("train.reproducible=bitwise",),
}


@pytest.mark.parametrize("settings", STEPS.values(), ids=STEPS)
def test_nothing_is_fetched_from_the_device_between_log_points(
    settings: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with built(tmp_path, "data.val_fraction=0", "log.every_steps=5", *settings) as trainer:
        with fetches(trainer, monkeypatch) as steps:
            trainer.fit()
        last = trainer.steps.total
    assert steps <= {0, 5, last}  # the first is the start
    assert {5, last} <= steps


@pytest.mark.skipif(shutil.which("strace") is None, reason="machine: the command strace is not there")
def test_the_thread_of_the_steps_asks_for_no_path_between_log_points(tmp_path: Path) -> None:
    run = ("-m", "train", "--device", "cpu", "--procs-per-node", "1", "run.output_dir=.", "run.name=run")
    short = ("data.samples=640", "data.image_size=8", "data.val_fraction=0", "train.global_batch_size=16")
    settings = (*short, "train.max_steps=40", "log.every_steps=10", "log.tensorboard=false")
    found = between([sys.executable, *run, *settings], "metrics.jsonl", cwd=tmp_path, environ=unmeasured(), seconds=240)
    assert found[:3] == [[], [], []]  # between four log points; then comes the save


def test_accelerate_still_looks_for_lomo_in_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where this fails, Accelerate has mended it: `Parallel.update` may always step its wrapper, and this test goes."""
    asked: list[str] = []
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: (asked.append(name), real(name, *more))[1])
    with built(tmp_path) as trainer:
        prepared = trainer.runtime.accelerator.prepare(trainer.parallel.optimizer)
        asked.clear()
        trainer.parallel.update(None)
        assert asked == []
        prepared.step()
    assert asked == ["lomo_optim"] * 2
