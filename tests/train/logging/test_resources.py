"""What ranks consume, from what each measures to the record of rank 0 and the last lines of a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import built, steps_of
from made_up_usage import GIB, gpu, process, rank, row
from processes import python
from runs import TEN_STEPS

from entrypoint import ResourceMonitor, monitor
from train.distributed.runtime import Runtime
from train.evaluation.validator import Validator
from train.logging import metrics_logger, resources
from train.logging.metrics_logger import MetricsLogger
from train.logging.resources import (
    NO_USAGE_RECORDER,
    UsageRecorder,
    compute_devices,
    format_memory,
    start_usage_recorder,
    usage_rows,
    usage_totals,
)
from train.report.plots import GPU_METRICS
from train.trainer import Trainer

DEVICE = torch.device("cuda", 0)


@pytest.mark.parametrize("gpus", [0, 1, 3])
def test_the_sum_of_what_ranks_send_tells_what_each_has_sent(gpus: int) -> None:
    sent = [
        rank(number, *[gpu(index=float(at)) for at in range(gpus)], cpu_seconds=1.0 * number) for number in range(3)
    ]
    columns: Sequence[list[float]] = [
        resources.place_among_ranks(row(usage), rank=usage.number, ranks=3) for usage in sent
    ]
    everyone = [sum(numbers) for numbers in zip(*columns, strict=True)]
    assert len(everyone) == 3 * resources.values_per_rank(gpus)
    assert str(resources.split_by_rank(everyone, hosts=["node00", "node01", "node02"], gpus=gpus)) == str(tuple(sent))


def test_what_one_rank_does_not_know_spoils_no_other() -> None:
    sent = [rank(0, gpu(), memory_bytes=math.nan), rank(1, gpu())]
    columns = [resources.place_among_ranks(row(usage), rank=usage.number, ranks=2) for usage in sent]
    first, second = resources.split_by_rank(
        [sum(pair) for pair in zip(*columns, strict=True)], hosts=["a", "b"], gpus=1
    )
    assert math.isnan(first.process["memory_bytes"])
    assert second.process["memory_bytes"] == GIB


def test_a_ranks_line_holds_its_cores_and_its_memory() -> None:
    ((name, labels, values),) = resources.rank_events([rank(1)])
    assert (name, labels) == ("1", {"rank": 1, "host": "node01"})
    assert values == {"cpu_cores": 1.5, "memory_bytes": GIB}


def test_torchs_own_memory_is_told_where_there_is_a_gpu() -> None:
    ((_, _, values),) = resources.rank_events([rank(0, gpu(), torch_allocated_bytes=5.0, torch_reserved_bytes=7.0)])
    assert (values["torch_allocated_bytes"], values["torch_reserved_bytes"]) == (5, 7)


def test_means_are_over_the_time_since_the_line_before() -> None:
    before = rank(0, gpu(), seconds=10.0, cpu_seconds=15.0)
    now = rank(0, gpu(busy=900.0, busy_s=14.0, energy_j=3400.0, energy_s=14.0), seconds=14.0, cpu_seconds=23.0)
    ((_, _, of_gpu),) = resources.gpu_events([now], [before])
    ((_, _, of_rank),) = resources.rank_events([now], [before])
    assert (of_gpu["utilisation_percent"], of_gpu["power_w"], of_rank["cpu_cores"]) == (100.0, 100.0, 2.0)


@pytest.mark.parametrize("seconds", [10.0, math.nan])
def test_what_was_not_measured_since_has_no_line(seconds: float) -> None:
    before, now = rank(0, gpu()), rank(0, gpu(), seconds=seconds)
    assert resources.rank_events([now], [before]) == resources.gpu_events([now], [before]) == []


@pytest.mark.parametrize(("instance", "name"), [(math.nan, "node00/3"), (1.0, "node00/3:1")])
def test_a_gpu_is_named_by_its_host_and_its_number(instance: float, name: str) -> None:
    ((called, labels, _),) = resources.gpu_events([rank(0, gpu(index=3.0, instance=instance))])
    assert (called, labels) == (name, {"gpu": name})


def test_a_gpu_that_nvml_does_not_show_has_no_line() -> None:
    assert resources.gpu_events([rank(0, gpu(index=math.nan))]) == []


def test_what_an_instance_does_not_tell_is_unknown_and_the_rest_is_told() -> None:
    ((_, _, values),) = resources.gpu_events([rank(0, gpu(busy_s=0.0, energy_s=0.0, temperature_c=math.nan))])
    assert math.isnan(values["utilisation_percent"])
    assert math.isnan(values["power_w"])
    assert (values["temperature_c"], values["memory_bytes"]) == (None, 3 * GIB)


def test_why_a_clock_was_low_since_the_line_before_is_told_in_words() -> None:
    before, now = rank(0, gpu(hot_s=3.0)), rank(0, gpu(hot_s=4.0, cap_s=2.0), seconds=14.0)
    ((_, _, values),) = resources.gpu_events([now], [before])
    assert values["throttled"] == ["too hot", "at its power limit"]
    ((_, _, calm),) = resources.gpu_events([rank(0, gpu())])
    assert "throttled" not in calm


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
    for seconds, is_told in ((99.0, False), (100.0, True)):  # by the looks, not by how often many ranks are told of
        measured.says(seconds)
        used.receive([*used.values_to_sum()[: resources.values_per_rank(1)]] * 64)
        assert ("Wh per 1,000 images" in used.summary_rows(1000)["energy"]) is is_told


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
        devices = compute_devices(replace(trainer.runtime, device=DEVICE, parallel=parallel))
    assert [device.index for device in devices] == list(range(number))


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


def test_on_a_cpu_cores_and_the_largest_rank_are_told() -> None:
    usage = usage_rows([rank(0), rank(1, memory_peak_bytes=3.0 * GIB)], images=1000)
    assert usage == {
        "CPU use": "1.5 cores per rank on average",
        "memory": "up to 3.0 GiB per rank (rank 1 on node01)",
    }


def test_use_memory_and_energy_of_gpus_are_told() -> None:
    usage = usage_rows(
        [rank(0, gpu()), rank(1, gpu(index=2.0, busy=1000.0, memory_peak_bytes=61.5 * GIB))], images=10_000
    )
    assert usage["GPU use"] == "75 % of the time on average, lowest 50 % (node00/0)"
    assert usage["GPU memory"] == "up to 61.5 GiB of 80.0 GiB (node01/2)"
    assert usage["energy"] == "1.667 Wh of the GPUs, 0.167 Wh per 1,000 images"


def test_what_torch_has_taken_is_told_beside_what_the_gpu_has_given() -> None:
    first = rank(0, gpu(), torch_allocated_bytes=1.5 * GIB, torch_reserved_bytes=2.0 * GIB)
    assert usage_rows([first], images=1)["GPU memory"].endswith("(node00/0); torch's tensors up to 1.5 GiB")


def test_a_gpu_that_has_no_power_to_tell_leaves_the_energy_out() -> None:
    assert "energy" not in usage_rows([rank(0, gpu()), rank(1, gpu(energy_s=0.0))], images=1000)


def test_without_any_image_energy_is_told_alone() -> None:
    assert usage_rows([rank(0, gpu())], images=0)["energy"] == "0.8333 Wh of the GPUs"


@pytest.mark.parametrize(
    ("wh", "text"),
    [
        (0.83333, "0.8333 Wh"),
        (999.96, "1,000 Wh"),
        (1410.2, "1,410 Wh"),
        (9999.6, "10 kWh"),
        (134_400.0, "134.4 kWh"),
        (98_765_000.0, "98,760 kWh"),
    ],
)
def test_energy_is_written_without_an_exponent(wh: float, text: str) -> None:
    assert usage_rows([rank(0, gpu(energy_j=3600 * wh))], images=0)["energy"] == f"{text} of the GPUs"


@pytest.mark.parametrize(("wh", "text"), [(0.11849, "0.118"), (999.7, "1,000"), (12_345.0, "12,300")])
def test_energy_by_image_is_written_without_an_exponent(wh: float, text: str) -> None:
    usage = usage_rows([rank(0, gpu(energy_j=3600 * wh))], images=1000)["energy"]
    assert usage.endswith(f", {text} Wh per 1,000 images")


def test_energy_by_image_is_left_out_where_a_look_that_is_missing_would_count_for_much() -> None:
    short, long = [rank(0, gpu(), seconds=99.0)], [rank(0, gpu(), seconds=100.0)]
    assert "wh_per_1000_images" not in usage_totals(short, 1000, 5.0)
    assert usage_totals(long, 1000, 5.0)["wh_per_1000_images"] == 0.8333
    usage = usage_rows(short, 1000, 5.0)["energy"]
    assert usage == "0.8333 Wh of the GPUs (per image: only from 100 s of training on)"


@pytest.mark.parametrize("key", resources.THROTTLE_FIXES)
def test_a_clock_that_was_low_for_long_is_named_with_its_gpu_and_what_to_do(key: str) -> None:
    usage = usage_rows([rank(0, gpu(**{key: 0.4})), rank(1, gpu(**{key: 1.2}))], images=1)["throttled"]
    assert usage.startswith("node01/0: ")
    assert "12 % of the time. fix: " in usage


def test_a_clock_that_was_low_for_a_moment_is_not_worth_a_word() -> None:
    first = [rank(0, gpu(hot_s=0.4))]
    assert "throttled" not in usage_rows(first, images=1)
    assert usage_totals(first, images=1)["throttled"] == {"too hot": 0.04}


def test_each_reason_has_a_line_of_its_own() -> None:
    usage = usage_rows([rank(0, gpu(hot_s=2.0, cap_s=3.0))], images=1)["throttled"]
    assert [line.strip().split(" ")[0] for line in usage.splitlines()] == ["node00/0:", "node00/0:"]


def test_the_record_holds_the_same_as_numbers() -> None:
    usage = usage_totals([rank(0, gpu())], images=1000)
    assert (usage["gpu_utilisation_percent"], usage["wh"], usage["wh_per_1000_images"]) == (50.0, 0.8333, 0.8333)
    assert (usage["cpu_cores"], usage["memory_peak_bytes"], usage["seconds"]) == (1.5, 2 * GIB, 10.0)


def test_the_report_draws_what_is_recorded() -> None:
    ((_, _, usage),) = resources.gpu_events([rank(0, gpu())])
    assert {*GPU_METRICS} == {*usage}


def test_where_nothing_was_measured_nothing_is_told() -> None:
    unknown = dict.fromkeys(("seconds", "cpu_seconds", "memory_bytes", "memory_peak_bytes"), math.nan)
    assert usage_rows([rank(0, **unknown)], images=1000) == usage_totals([rank(0, **unknown)], images=1000) == {}
    assert usage_rows([], images=0) == {}


def test_a_gpu_that_nvml_does_not_show_leaves_no_line() -> None:
    nothing = dict.fromkeys(gpu(), math.nan)
    assert {*usage_rows([rank(0, nothing)], images=1)} == {"CPU use", "memory"}


@pytest.mark.parametrize(("number", "text"), [(1.5 * GIB, "1.5 GiB"), (340 * 2**20, "340 MiB"), (0, "0 MiB")])
def test_sizes_read_naturally(number: float, text: str) -> None:
    assert format_memory(number) == text
