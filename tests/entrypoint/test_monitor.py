"""One thread of a rank: what it measures, when, and that nothing waits for it. The GPUs are made up."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import pynvml
import pytest
from fake_nvml import FakeGpu, FakeNvml
from processes import TIMEOUT_S, start_python, wait_until

from entrypoint.monitor import GPU_FIELDS, PROCESS_FIELDS, ResourceMonitor

BUSY = FakeGpu(uuid="GPU-made-up-0", busy=40, used=2**30)

# A rank whose driver hangs, without Python's lock, before it has measured anything.
ENDING = """
import threading
from entrypoint.monitor import ResourceMonitor
reached = threading.Event()
class Hanging:
    def nvmlInit(self):
        reached.set()
        threading.Event().wait()
monitor = ResourceMonitor({}, load_nvml=Hanging)
monitor.start(["made-up-0"], 0.05)
if reached.wait(60):
    print("hangs")
monitor.stop()
"""


class Rank:
    """This process as a rank with one GPU, measured by a clock of the test's own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, nvml: Any, gpus: tuple[str, ...] = ("made-up-0",)) -> None:
        self.now = 0.0
        self.monitor = ResourceMonitor({}, load_nvml=lambda: nvml, clock=lambda: self.now)
        monkeypatch.setattr("entrypoint.monitor.start_daemon_thread", lambda action: None)
        self.monitor.start(gpus, 5.0)

    def looked(self, *moments: float) -> dict[str, float]:
        """What the rank reads after looks at these moments."""
        for self.now in moments:
            self.monitor.measure()
        names = [*PROCESS_FIELDS, *(f"gpu_{name}" for name in GPU_FIELDS)]
        return dict(zip(names, self.monitor.read(), strict=False))


def test_before_the_first_measurement_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = Rank(monkeypatch, FakeNvml(BUSY)).looked()
    assert len(usage) == len(PROCESS_FIELDS) + len(GPU_FIELDS)
    assert all(map(math.isnan, usage.values()))


def test_a_rank_is_measured_from_the_first_measurement_on(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = Rank(monkeypatch, FakeNvml(BUSY)).looked(10.0, 15.0, 20.0)
    assert (usage["seconds"], usage["gpu_busy"], usage["gpu_memory_bytes"]) == (10.0, 400.0, 2**30)


def test_another_jobs_gpu_takes_no_figure_from_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(monkeypatch, FakeNvml(FakeGpu(error=pynvml.NVML_ERROR_NO_PERMISSION), BUSY))
    assert rank.looked(0.0, 5.0)["gpu_busy"] == 200.0


class NoDriver(FakeNvml):
    def nvmlInit(self) -> None:
        raise OSError("made up: no library")


@pytest.mark.parametrize("nvml", [NoDriver(), FakeNvml()], ids=["no-driver", "no-such-gpu"])
def test_where_nvml_shows_no_gpu_the_process_is_still_measured(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml) -> None:
    usage = Rank(monkeypatch, nvml).looked(0.0, 5.0)
    assert usage["memory_bytes"] > 0
    assert all(math.isnan(usage[f"gpu_{name}"]) for name in GPU_FIELDS)


def test_without_the_package_the_process_is_still_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> Any:
        raise ImportError("made up: no package")

    monkeypatch.setattr("entrypoint.monitor.start_daemon_thread", lambda action: None)
    monitor = ResourceMonitor({}, load_nvml=load, clock=lambda: 0.0)
    monitor.start(["made-up-0"], 5.0)
    monitor.measure()
    assert monitor.read()[2] > 0


def test_a_rank_without_a_gpu_never_loads_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("entrypoint.monitor.start_daemon_thread", lambda action: None)
    monitor = ResourceMonitor({}, load_nvml=lambda: pytest.fail("NVML was loaded"))
    monitor.start([], 5.0)
    monitor.measure()
    assert len(monitor.read()) == len(PROCESS_FIELDS)


def test_the_thread_measures_until_it_is_stopped() -> None:
    monitor = ResourceMonitor({}, load_nvml=lambda: FakeNvml(BUSY))
    monitor.start(["made-up-0"], 0.0)
    wait_until(lambda: monitor.read()[0] > 0, "the second measurement")
    monitor.stop()
    assert monitor.read()[3] > 2**20


def test_a_driver_that_hangs_holds_up_no_rank() -> None:
    never, reached = threading.Event(), threading.Event()

    class Hanging(FakeNvml):
        def nvmlInit(self) -> None:
            reached.set()
            never.wait()

    monitor = ResourceMonitor({}, load_nvml=Hanging)
    monitor.start(["made-up-0"], 0.05)
    assert reached.wait(TIMEOUT_S)
    assert all(map(math.isnan, monitor.read()))
    monitor.stop()
    never.set()


def test_a_process_ends_beside_a_driver_that_hangs(tmp_path: Path) -> None:
    with start_python("-c", ENDING, cwd=tmp_path) as process:
        assert process.communicate(timeout=TIMEOUT_S)[0] == "hangs\n"
    assert process.returncode == 0
