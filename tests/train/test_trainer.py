"""What the loop does at which step and in one step, what it records, and what becomes of a loss that is not finite."""

from __future__ import annotations

import importlib.util
import io
import json
import math
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import late_reader
import pytest
import torch
from accelerate import Accelerator
from calls_seen import between
from images import write_classes
from jobs import TINY, after, built, steps_of, trained
from processes import python, unmeasured
from runs import TEN_STEPS, Run
from torch.utils._python_dispatch import TorchDispatchMode

from entrypoint import ExitCode, Failure, Heartbeat
from entrypoint.heartbeat import Phase, Point
from train import fault_injection
from train.checkpoint import format, store
from train.checkpoint.checkpointer import find_nonfinite
from train.config import load, resume_rules
from train.config.load import keep_last_overrides
from train.config.schema import RunConfig
from train.data.sampler import MicroBatch
from train.distributed import replica_check
from train.evaluation import results, validator
from train.logging.metrics_logger import METRICS_FILE, read_events
from train.run.record import BEST_CONFUSION_FILE, CONFUSION_FILE
from train.run.stop import StopSignals
from train.state import LogWindow
from train.tasks.base import StepLoss
from train.trainer import Trainer

LOWER = ("optim.lr=0.001", "optim.warmup_epochs=9", "train.clip_grad_norm=1.0")

# Four steps an epoch; a reading after each step.
LONG = ("train.epochs=5", "log.every_steps=1", "checkpoint.every_steps=2", "train.spike=rollback")


def events(folder: Path) -> list[dict[str, Any]]:
    return list(read_events(folder / METRICS_FILE))


def test_a_run_logs_measures_and_commits_at_its_steps(tmp_path: Path) -> None:
    trainer = trained(tmp_path)
    seen = events(tmp_path)
    assert trainer.state.step == 8
    assert steps_of(seen, "train") == [2, 4, 6, 8]
    assert steps_of(seen, "eval") == [4, 8]
    assert Run(folder=tmp_path).committed() == 8


def test_max_steps_ends_in_the_middle_of_an_epoch_and_measures_there(tmp_path: Path) -> None:
    trainer = trained(tmp_path, "train.max_steps=3")
    assert (trainer.state.step, trainer.state.evaluated, Run(folder=tmp_path).committed()) == (3, 3, 3)


@pytest.mark.parametrize(
    ("setting", "saved"), [("checkpoint.every_steps=3", {3, 6}), ("checkpoint.every_minutes=1e-9", set(range(1, 8)))]
)
def test_checkpoints_come_at_the_steps_and_times_asked_for(tmp_path: Path, setting: str, saved: set[int]) -> None:
    trained(tmp_path, setting)
    assert saved <= set(steps_of(events(tmp_path), "checkpoint"))


def test_without_validation_images_nothing_is_measured(tmp_path: Path) -> None:
    trainer = trained(tmp_path, "data.val_fraction=0")
    assert (trainer.state.result, Run(folder=tmp_path).committed()) == (None, 10)


def test_an_evaluation_that_does_not_fit_the_gpu_names_its_own_batch_and_not_the_trainings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")  # no GPU said it here

    monkeypatch.setattr(validator, "broadcast_buffers", full)
    with pytest.raises(Failure, match="in the evaluation") as caught:
        trained(tmp_path, "eval.batch_size=8")
    assert (caught.value.code, caught.value.fix.split()[1]) == (71, "eval.batch_size=2")


def test_the_learning_rate_follows_the_optimizer_steps(tmp_path: Path) -> None:
    trainer = trained(tmp_path, "log.every_steps=1")
    rates = [event["lr"] for event in events(tmp_path) if event["event"] == "train"]
    assert rates == [trainer.schedule(step) for step in range(8)]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("clip", ["null", "0.01"])
def test_every_precision_and_clipping_trains_to_finite_weights(tmp_path: Path, precision: str, clip: str) -> None:
    trainer = trained(tmp_path, f"train.precision={precision}", f"train.clip_grad_norm={clip}", "train.max_steps=2")
    assert all(parameter.isfinite().all() for parameter in trainer.state.network.parameters())


@pytest.mark.parametrize("kind", ["ddp", "dp", "none"])
def test_every_kind_of_parallel_measures_in_the_precision_it_trains_in(tmp_path: Path, kind: str) -> None:
    def loss(folder: str, *settings: str) -> object:
        trainer = trained(tmp_path / folder, *settings, "train.precision=bf16", "train.max_steps=2")
        return trainer.state.result

    assert loss(kind, f"train.parallel={kind}") == loss("other")


def test_clipping_shortens_the_step(tmp_path: Path) -> None:
    def moved(folder: str, *settings: str) -> float:
        with built(tmp_path / folder, *settings, "train.max_steps=1", "optim.weight_decay=0") as trainer:
            before = torch.cat([p.detach().flatten().clone() for p in trainer.state.network.parameters()])
            trainer.fit()
            return float(
                (torch.cat([p.detach().flatten() for p in trainer.state.network.parameters()]) - before).norm()
            )

    assert moved("clipped", "train.clip_grad_norm=0.001") < moved("free") / 10


def test_a_signal_ends_the_run_after_the_step_it_came_in_and_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals = StopSignals()
    after(3, lambda trainer: signals.handle(signal.SIGUSR1), monkeypatch)
    with built(tmp_path, signals=signals) as trainer:
        trainer.fit()
    assert trainer.state.step == Run(folder=tmp_path).committed() == 3


def test_a_signal_before_the_first_step_saves_nothing(tmp_path: Path) -> None:
    signals = StopSignals()
    signals.handle(signal.SIGTERM)
    with built(tmp_path, signals=signals) as trainer:
        trainer.fit()
        assert trainer.checkpointer.newest is None
    assert (trainer.state.step, Run(folder=tmp_path).committed()) == (0, None)


def test_a_stopped_run_goes_on_and_sees_each_sample_once_per_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals, seen = StopSignals(), []
    after(3, lambda trainer: signals.handle(signal.SIGTERM), monkeypatch)
    for start_signals in (signals, StopSignals()):
        with built(tmp_path, signals=start_signals) as trainer:
            monkeypatch.setattr(type(trainer.loader), "train", listened(type(trainer.loader).train, seen))
            trainer.fit()
            monkeypatch.undo()
    assert [len(seen), sorted(seen[:64]), sorted(seen[64:])] == [128, list(range(64)), list(range(64))]


TIMES = {"time", "images_per_s", "seconds", "stalled_seconds"}


def lines(folder: Path) -> list[dict[str, Any]]:
    """What the record says of training and evaluation, apart from times."""
    measured = [event for event in events(folder) if event["event"] in ("train", "eval")]
    return [{key: value for key, value in event.items() if key not in TIMES} for event in measured]


def test_a_run_that_is_stopped_between_log_points_writes_the_same_lines_as_one_that_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for steps in (1, 4, 5, 8):  # at 4 and 8 an evaluation is due
        signals = StopSignals()
        with monkeypatch.context() as patch, built(tmp_path / "often", "log.every_steps=3", signals=signals) as trainer:
            after(steps, lambda trainer, signals=signals: signals.handle(signal.SIGTERM), patch)  # type: ignore[misc]
            trainer.fit()
    trained(tmp_path / "often", "log.every_steps=3")
    trained(tmp_path / "once", "log.every_steps=3")
    assert lines(tmp_path / "often") == lines(tmp_path / "once")
    assert steps_of(lines(tmp_path / "once"), "train") == [3, 6]


def test_the_speed_of_a_log_point_counts_the_time_before_a_restart_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals = StopSignals()
    after(3, lambda trainer: signals.handle(signal.SIGTERM), monkeypatch)
    with built(tmp_path, "log.every_steps=4", signals=signals) as trainer:
        trainer.fit()
        logged_at = trainer.loop.logged_at
    with built(tmp_path, "log.every_steps=4") as trainer:
        trainer.clock = lambda: 0.0
        trainer.begin()
        assert trainer.loop.logged_at == logged_at < trainer.state.seconds


def test_fewer_epochs_than_a_run_has_had_do_no_step(tmp_path: Path) -> None:
    trained(tmp_path)
    trainer = trained(tmp_path, "train.epochs=1")
    assert trainer.state.step == 8
    assert trainer.checkpointer.newest == tmp_path / "checkpoints" / "step-00000008"


def listened(real: Any, seen: list[int]) -> Callable[..., Iterator[tuple[MicroBatch, Any]]]:
    """A loader's `train` that writes down which samples were used."""

    def train(self: Any, pieces: Iterator[MicroBatch]) -> Iterator[tuple[MicroBatch, Any]]:
        for piece, batch in real(self, pieces):
            seen.extend(piece.samples.tolist())
            yield piece, batch

    return train


def test_a_finished_run_started_again_does_no_step(tmp_path: Path) -> None:
    trained(tmp_path)
    before = events(tmp_path)
    trainer = trained(tmp_path)
    assert events(tmp_path) == before
    assert trainer.checkpointer.newest == tmp_path / "checkpoints" / "step-00000008"


def test_more_epochs_continue_a_finished_run(tmp_path: Path) -> None:
    trained(tmp_path)
    trainer = trained(tmp_path, "train.epochs=3")
    assert (trainer.state.step, steps_of(events(tmp_path), "train")[-1]) == (12, 12)


@pytest.mark.parametrize(("loader", "first"), [("memory", 2), ("workers", 0)])
def test_the_record_counts_the_images_that_were_skipped(tmp_path: Path, loader: str, first: int) -> None:
    write_classes(tmp_path / "images", one=40, two=40)
    for path in sorted((tmp_path / "images").rglob("*.*"))[::50]:
        path.write_bytes(path.read_bytes()[:40])
    own = ("data.name=folder", f"data.root={tmp_path}/images", "data.samples=10000", "data.val_fraction=0")
    trained(tmp_path / "run", *own, f"data.loader={loader}", "data.workers=0", "data.max_bad_images=2")
    counts = [event["bad_images"] for event in events(tmp_path / "run") if event["event"] == "train"]
    assert first <= counts[0] <= counts[-1] == 2  # type: ignore[operator]


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
    calls = between([sys.executable, *run, *settings], "metrics.jsonl", cwd=tmp_path, environ=unmeasured(), seconds=240)
    assert calls[:3] == [[], [], []]  # between four log points; then comes the save


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


def last(folder: Path) -> dict[str, object]:
    return [event for event in read_events(folder / METRICS_FILE) if event["event"] == "eval"][-1]


def test_the_matrix_of_the_last_evaluation_counts_every_validation_image(tmp_path: Path) -> None:
    trainer = trained(tmp_path)
    recorded = json.loads((tmp_path / CONFUSION_FILE).read_text())
    assert (recorded["step"], recorded["classes"]) == (8, list(trainer.dataset.classes))
    assert sum(map(sum, recorded["matrix"])) == trainer.dataset.num_validation == 16


def test_the_matrix_of_the_best_evaluation_stays_when_a_later_one_is_not_as_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "is_better", lambda metric, new, old: old is None)  # the first one stays the best
    trainer = trained(tmp_path)
    steps = [json.loads((tmp_path / name).read_text())["step"] for name in (BEST_CONFUSION_FILE, CONFUSION_FILE)]
    assert steps == [trainer.state.best_step, trainer.state.step] == [4, 8]


def test_the_record_has_every_score(tmp_path: Path) -> None:
    trainer = trained(tmp_path)
    event, result = last(tmp_path), trainer.state.result
    assert result is not None
    assert {name: event[name] for name in ("accuracy", "loss", "samples", "top5_accuracy", "macro_f1")} == {
        name: result.to_json()[name] for name in ("accuracy", "loss", "samples", "top5_accuracy", "macro_f1")
    }
    assert event["recall"] == list(result.recall or ())


def test_a_matrix_that_cannot_be_written_does_not_end_the_run(
    tmp_path: Path,
) -> None:
    (tmp_path / CONFUSION_FILE).mkdir()
    lines = printed(tmp_path)
    assert "\n".join(lines).count("confusion.json is incomplete, training goes on") == 1


def test_each_epoch_has_one_line_with_its_train_loss(tmp_path: Path) -> None:
    lines = printed(tmp_path, "log.every_steps=6", "train.epochs=3")
    assert [line.partition(":")[0] for line in lines] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    assert all(line.count("val accuracy") == line.count("train loss") == line.count("images/s") == 1 for line in lines)


def test_an_epoch_without_an_evaluation_has_its_line_too(tmp_path: Path) -> None:
    lines = printed(tmp_path, "eval.every_epochs=2", "train.epochs=3")
    assert [line.partition(":")[0] for line in lines] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    assert ["accuracy" in line for line in lines] == [False, True, True]


def test_a_training_that_ends_inside_an_epoch_says_so(tmp_path: Path) -> None:
    lines = printed(tmp_path, "train.max_steps=6", "data.val_fraction=0.2")
    assert [line.partition(":")[0] for line in lines] == ["epoch 1/2", "step 6/6, in epoch 2/2"]
    assert " s, " not in lines[1]


def test_without_validation_images_each_epoch_has_its_line(tmp_path: Path) -> None:
    lines = printed(tmp_path, "data.val_fraction=0")
    assert [line.partition(":")[0] for line in lines] == ["epoch 1/2", "epoch 2/2"]


def test_a_resumed_epoch_has_no_time_and_the_next_one_has(tmp_path: Path) -> None:
    trained(tmp_path, "train.max_steps=2", "train.epochs=3")
    lines = printed(tmp_path, "train.epochs=3")
    assert [" s, " in line for line in lines] == [False, True, True]


def printed(folder: Path, *settings: str) -> list[str]:
    """The lines of a training."""
    out = io.StringIO()
    with built(folder, *settings, out=out) as trainer:
        trainer.fit()
    return out.getvalue().splitlines()


def test_a_log_window_of_a_version_that_averaged_other_values_is_not_continued(tmp_path: Path) -> None:
    with built(tmp_path) as trainer:
        trainer.state.window = LogWindow(sums=[[1.0, 2.0, 3.0, 4.0]], since=5.0)
        trainer.begin()
        assert trainer.state.window is None
        assert trainer.loop.running_mean.sums() == [0.0, 0.0, 0.0]


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


def recorded_errors(folder: Path) -> dict[str, dict[str, object]]:
    """What errors/ holds."""
    return {path.stem: json.loads(path.read_text()) for path in (folder / "runs/run/errors").glob("*.json")}


@pytest.mark.slow
def test_a_bit_that_flips_on_one_of_three_ranks_ends_with_78_and_blames_that_rank_alone(tmp_path: Path) -> None:
    ended = broken(tmp_path, 3, "param:1:5:flip", "checkpoint.every_steps=3", "train.check_replicas_every_steps=7")
    errors = recorded_errors(tmp_path)
    assert (ended.returncode, errors["exit"]["code"], errors["exit"]["step"]) == (78, 78, 6), ended.stderr
    assert [errors[f"rank-000{rank}"]["code"] for rank in range(3)] == [69, 78, 69]
    assert str(errors["rank-0001"]["found"]).startswith("rank 1 (")
    kept = store.newest_checkpoint(tmp_path / "runs/run/checkpoints")
    assert kept is not None
    assert kept.step == 3  # not 6, the save at which it was seen


@pytest.mark.slow
def test_without_a_save_it_is_seen_after_so_many_steps_and_two_ranks_are_both_named(tmp_path: Path) -> None:
    ended = broken(tmp_path, 2, "param:1:2:flip", "train.check_replicas_every_steps=4")
    errors = recorded_errors(tmp_path)
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
    errors = recorded_errors(tmp_path)
    divergence = errors["diverged"]
    assert (ended.returncode, [errors[name]["code"] for name in ("exit", "rank-0000", "rank-0001")]) == (90, [90] * 3)
    assert (divergence["first_bad_step"], [batch["step"] for batch in divergence["batches"]]) == (8, [6, 7, 8, 9])  # type: ignore[attr-defined]
    assert [batch["ranks"] for batch in divergence["batches"]] == [[], [], [1], [0, 1]]  # type: ignore[attr-defined]
    assert "note: FAULT=loss:1:7:nan" in ended.stdout


def train(folder: Path, *settings: str, fault: str = "") -> tuple[str, int]:
    """What was said, and the step at which the state stands."""
    printed = io.StringIO()
    with built(folder, *LONG, *settings, out=printed) as trainer:
        trainer.faults.waiting = fault_injection.parse_faults(fault, 0).waiting
        try:
            trainer.fit()
        finally:
            (folder / "said").write_text(printed.getvalue())
        return printed.getvalue(), trainer.state.step


def hashes(folder: Path) -> dict[str, str]:
    """Of the last checkpoint's tensors."""
    checkpoint = store.newest_checkpoint(folder / "checkpoints")
    assert checkpoint is not None
    return {name: entry.sha256 for name, entry in checkpoint.contents.files.items() if name.endswith(".safetensors")}


def test_the_run_goes_back_and_ends_with_the_bits_of_one_without_a_jump(tmp_path: Path) -> None:
    train(tmp_path / "plain")
    printed, at = train(tmp_path / "jumped", fault="loss:0:10:x1e3")
    assert ("the loss jumped to" in printed, "back by 1 step " in printed, at) == (True, True, 20)
    assert hashes(tmp_path / "jumped") == hashes(tmp_path / "plain")
    assert steps_of(events(tmp_path / "jumped"), "train") == list(range(1, 21))
    assert steps_of(events(tmp_path / "jumped"), "rollback") == [10]


def test_a_second_jump_ends_with_90_also_after_a_restart(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="diverged") as twice:
        train(tmp_path, fault="loss:0:10:x1e3,loss:0:16:x1e3")
    assert (twice.value.code, "for the second time" in str(twice.value)) == (ExitCode.DIVERGED, True)
    with pytest.raises(Failure, match="diverged"):
        train(tmp_path, "train.epochs=9", fault="loss:0:30:x1e3")


def test_without_a_checkpoint_there_is_nothing_to_go_back_to(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="no checkpoint to go back to") as caught:
        train(tmp_path, "checkpoint.every_steps=null", "data.val_fraction=0", fault="loss:0:10:x1e3")
    assert caught.value.code == ExitCode.DIVERGED


def test_a_jump_between_log_points_is_in_no_checkpoint(tmp_path: Path) -> None:
    train(tmp_path, "log.every_steps=2", "checkpoint.every_steps=1", fault="loss:0:12:x1e3")
    assert steps_of(events(tmp_path), "rollback") == [12]


@pytest.mark.parametrize(("policy", "warned"), [("warn", 1), ("none", 0)])
def test_other_policies_go_on(tmp_path: Path, policy: str, warned: int) -> None:
    printed, at = train(tmp_path, f"train.spike={policy}", fault="loss:0:10:x1e3")
    assert (printed.count("warning: the loss jumped"), at) == (warned, 20)
    assert steps_of(events(tmp_path), "spike") == [11] * warned


def test_the_checkpoint_remembers(tmp_path: Path) -> None:
    train(tmp_path, fault="loss:0:10:x1e3")
    checkpoint = store.newest_checkpoint(tmp_path / "checkpoints")
    assert checkpoint is not None
    assert json.loads((checkpoint.path / "state.json").read_text())["state"]["rollbacks"] == 1


def test_no_rank_is_left_reading_a_checkpoint_that_is_replaced(tmp_path: Path) -> None:
    settings = keep_last_overrides(["run.output_dir=.", *TINY, *LONG, "train.epochs=3"])
    script = [sys.executable, late_reader.__file__, *settings]
    environ = {"FAULT": "loss:0:10:x1e3", "PYTHONPATH": ""}
    words = ("-m", "entrypoint", "run", "--procs-per-node", "2", "--device", "cpu", "--", *script)
    ended = python(*words, environ=environ, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "warning: the loss jumped" in ended.stdout
