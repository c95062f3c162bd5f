"""What ranks consume, from what each measures to the record of rank 0; once in a real training."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import built, steps_of
from made_up_usage import GIB, gpu, process
from processes import python
from runs import TEN_STEPS

from entrypoint import ResourceMonitor, monitor
from train.distributed.runtime import Runtime
from train.evaluation.validator import Validator
from train.logging import metrics_logger, resources
from train.logging.metrics_logger import MetricsLogger
from train.logging.resources import NO_USAGE_RECORDER, UsageRecorder, compute_devices, start_usage_recorder
from train.trainer import Trainer

DEVICE = torch.device("cuda", 0)


class Measured(ResourceMonitor):
    """Made up. What a rank with one GPU consumes; torch's own memory is made up too."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for number, name in enumerate(("max_memory_allocated", "max_memory_reserved")):
            monkeypatch.setattr(torch.cuda, name, lambda device, number=number: (1 + number) * GIB)
        super().__init__({})

    def says(self, seconds: float) -> None:
        """So long after the beginning."""
        own, its = process(seconds=seconds), gpu(busy=50 * seconds, busy_s=seconds, index=3.0)
        self._figures = (
            *(own[name] for name in monitor.PROCESS_FIELDS),
            *(its[name] for name in monitor.GPU_FIELDS),
        )


def read(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    return [
        event for event in metrics_logger.read_events(folder / metrics_logger.METRICS_FILE) if event["event"] in kinds
    ]


@contextmanager
def recorded(folder: Path) -> Iterator[MetricsLogger]:
    with MetricsLogger(folder, main=True, tensorboard=False, warn=pytest.fail).opened(step=0) as record:
        yield record


def test_rank_0_writes_a_line_for_each_gpu_and_rank_once_it_is_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, now = Measured(monkeypatch), [0.0]
    used = UsageRecorder(measured, hosts=["node01"], devices=[DEVICE], every_s=5.0, clock=lambda: now[0])
    with recorded(tmp_path) as record:
        for now[0] in (4.0, 5.0, 9.0, 10.0):
            measured.says(now[0])
            used.receive(used.values_to_sum())
            used.log(record, step=round(now[0]))
    lines = read(tmp_path, "gpu", "rank")
    assert [(line["event"], line["step"]) for line in lines] == [("gpu", 5), ("rank", 5), ("gpu", 10), ("rank", 10)]
    assert (lines[0]["gpu"], lines[0]["utilisation_percent"]) == ("node01/3", 50.0)
    assert (lines[1]["torch_allocated_bytes"], lines[1]["torch_reserved_bytes"]) == (GIB, 2 * GIB)


def test_of_many_ranks_lines_come_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured, now = Measured(monkeypatch), [0.0]
    used = UsageRecorder(measured, hosts=["node"] * 64, devices=[DEVICE], every_s=5.0, clock=lambda: now[0])
    measured.says(1.0)
    used.receive(used.values_to_sum())
    with recorded(tmp_path) as record:
        for now[0] in (19.0, 20.0):
            used.log(record, step=round(now[0]))
    assert {line["step"] for line in read(tmp_path, "gpu", "rank")} == {20}


@pytest.mark.parametrize(("trained_s", "steps"), [(0.0, {5, 10, 15, 20, 25, 30}), (9_900.0, {10, 20, 30})])
def test_of_a_long_run_lines_come_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained_s: float, steps: set[int]
) -> None:
    """A line covers a thousandth of the time so far, that of earlier starts too: the file grows by a logarithm."""
    measured, now = Measured(monkeypatch), [0.0]
    used = UsageRecorder(
        measured, hosts=["node"], devices=[DEVICE], every_s=5.0, trained_s=trained_s, clock=lambda: now[0]
    )
    with recorded(tmp_path) as record:
        for now[0] in (5.0, 10.0, 15.0, 20.0, 25.0, 30.0):
            measured.says(now[0])
            used.receive(used.values_to_sum())
            used.log(record, step=round(now[0]))
    assert {line["step"] for line in read(tmp_path, "gpu")} == steps


def test_the_end_tells_what_it_came_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = Measured(monkeypatch)
    used = UsageRecorder(measured, hosts=["node01"], devices=[DEVICE], every_s=0.5)
    measured.says(10.0)
    used.receive(used.values_to_sum())
    with recorded(tmp_path) as record:
        used.finish(record, 8, images=1000)
    assert [line["event"] for line in read(tmp_path, "gpu", "rank", "usage")] == ["gpu", "rank", "usage"]
    (line,) = read(tmp_path, "usage")
    assert (line["images"], line["wh_per_1000_images"], line["gpu_utilisation_percent"]) == (1000, 0.8333, 50.0)
    assert set(used.summary_rows(1000)) == {"GPU use", "GPU memory", "energy", "CPU use", "memory"}


def test_a_run_of_few_looks_has_no_energy_by_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = Measured(monkeypatch)
    used = UsageRecorder(measured, hosts=["node"] * 64, devices=[DEVICE], every_s=5.0)
    for seconds, told in ((99.0, False), (100.0, True)):  # by the looks, not by how often many ranks are told of
        measured.says(seconds)
        used.receive([*used.values_to_sum()[: resources.values_per_rank(1)]] * 64)
        assert ("Wh per 1,000 images" in used.summary_rows(1000)["energy"]) is told


def test_a_start_that_trains_on_nothing_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = Measured(monkeypatch)
    used = UsageRecorder(measured, hosts=["node01"], devices=[DEVICE])
    measured.says(10.0)
    used.receive(used.values_to_sum(), trained=False)
    assert used.summary_rows(0) == {}


@pytest.mark.parametrize("every", [2, 3], ids=["a-log-point-at-the-end", "none"])
def test_the_last_evaluation_is_in_what_a_run_consumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    noted: list[tuple[float, ...]] = []
    measured: list[float] = []
    real = Validator.measure
    monkeypatch.setattr(Validator, "measure", lambda *args, **more: (measured.append(1), real(*args, **more))[1])
    with built(tmp_path, f"log.every_steps={every}") as trainer:
        used = UsageRecorder(hosts=["node01"])
        monkeypatch.setattr(used, "values_to_sum", lambda: [sum(measured)])
        monkeypatch.setattr(used, "receive", lambda everyone, *, trained: noted.append(everyone))
        trainer.usage = used
        trainer.fit()
    assert measured
    assert noted[-1] == (len(measured),)


def test_another_rank_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = Measured(monkeypatch)
    used = UsageRecorder(measured, rank=1, hosts=["a", "b"], devices=[DEVICE])
    measured.says(10.0)
    used.receive(used.values_to_sum())
    with recorded(tmp_path) as record:
        used.log(record, 1)
        used.finish(record, 1, images=1)
    assert read(tmp_path, "gpu", "rank", "usage") == []


def test_a_rank_fills_its_own_place_only(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = Measured(monkeypatch)
    measured.says(10.0)
    sent = UsageRecorder(measured, rank=1, hosts=["a", "b", "c"], devices=[DEVICE]).values_to_sum()
    size = resources.values_per_rank(1)
    assert len(sent) == 3 * size
    assert sent[:size] == sent[2 * size :] == [0.0] * size
    assert sent[size] == 10.0


def test_on_a_cpu_torch_is_not_asked_for_memory() -> None:
    sent = UsageRecorder(hosts=["a"]).values_to_sum()
    assert len(sent) == resources.values_per_rank(0)
    assert all(map(math.isnan, sent))


def counted(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], int]:
    """How many numbers each sum of a short training has, and how many other exchanges there are.

    When these come depends on when the writer of a checkpoint has ended.
    """
    sizes: list[int] = []
    monkeypatch.setattr(Runtime, "all_reduce_sum", lambda self, sums: (sizes.append(sums.numel()), sums)[1])
    for name in ("all_gather", "run_on_rank_zero", "barrier"):
        real = getattr(Runtime, name)
        monkeypatch.setattr(Runtime, name, lambda *args, real=real: (sizes.append(0), real(*args))[1])
    trainer.fit()
    return [size for size in sizes if size], sizes.count(0)


def test_what_is_consumed_needs_no_exchange_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with built(tmp_path / "without") as trainer:
        without, others = counted(trainer, monkeypatch)
    monkeypatch.undo()
    with built(tmp_path / "with") as trainer:
        trainer.usage = start_usage_recorder(trainer.runtime, ResourceMonitor({}), 5.0)
        beside = counted(trainer, monkeypatch)
    assert without.count(3) >= 4  # log points
    assert ([size + resources.values_per_rank(0) if size == 3 else size for size in without], others) == beside


def test_switched_off_nothing_goes_along(tmp_path: Path) -> None:
    with built(tmp_path) as trainer:
        assert start_usage_recorder(trainer.runtime, ResourceMonitor({}), None) is NO_USAGE_RECORDER
        assert start_usage_recorder(trainer.runtime, None, 5.0) is NO_USAGE_RECORDER
    assert (NO_USAGE_RECORDER.values_to_sum(), NO_USAGE_RECORDER.summary_rows(1)) == ([], {})


@pytest.mark.parametrize(("parallel", "number"), [("ddp", 1), ("none", 1), ("dp", 3)])
def test_a_rank_tells_of_the_gpus_that_it_computes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallel: str, number: int
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    with built(tmp_path) as trainer:
        assert compute_devices(trainer.runtime) == ()
        found = compute_devices(replace(trainer.runtime, device=DEVICE, parallel=parallel))
    assert [device.index for device in found] == list(range(number))


@pytest.mark.slow
def test_a_training_on_two_ranks_records_what_each_consumes_and_tells_the_peak(tmp_path: Path) -> None:
    (tmp_path / "ten.yaml").write_text(TEN_STEPS)
    often = ("log.gpu_every_seconds=0.05", "--device", "cpu", "--procs-per-node", "2", "log.tensorboard=true")
    done = python(
        "-m",
        "train",
        "--config",
        "ten.yaml",
        *often,
        "train.max_steps=40",
        "train.epochs=9",
        "log.every_steps=10",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    ranks, (end,) = read(tmp_path / "runs/run", "rank"), read(tmp_path / "runs/run", "usage")
    assert {line["rank"] for line in ranks} == {0, 1}
    assert all(line["cpu_cores"] >= 0 and line["memory_bytes"] > 100 * 2**20 for line in ranks)
    assert max(line["cpu_cores"] for line in ranks) > 0
    assert end["memory_peak_bytes"] >= max(line["memory_bytes"] for line in ranks)
    assert f"memory         up to {end['memory_peak_bytes'] / 2**20:,.0f} MiB per rank (rank " in done.stdout
    assert "CPU use " in done.stdout
    assert steps_of(ranks, "rank")[-1] == 40


def test_a_training_that_is_not_measured_says_nothing_of_it(tmp_path: Path) -> None:
    (tmp_path / "ten.yaml").write_text(TEN_STEPS)
    off = ("log.gpu_every_seconds=null", "--device", "cpu")
    done = python("-m", "train", "--config", "ten.yaml", *off, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert read(tmp_path / "runs/run", "rank", "usage") == []
    assert "CPU use" not in done.stdout
