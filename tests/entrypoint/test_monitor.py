"""One thread beside the ranks: what it measures, when, and that nothing waits for it. The GPUs are made up."""

from __future__ import annotations

import json
import math
import mmap
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pynvml
import pytest
from fake_nvml import FakeGpu, FakeNvml
from machines import machine
from processes import TIMEOUT_S, start_python, wait_until

from entrypoint import monitor
from entrypoint.gauges import GPU_FIELDS, PROCESS_FIELDS, ResourcePage, ResourceReader
from entrypoint.hang import HangTimeouts, SupervisionPolicy
from entrypoint.launch import run_plan
from entrypoint.launchers import detect_allocation
from entrypoint.monitor import MonitoredRank, ResourceMonitor
from entrypoint.options import LaunchOptions
from entrypoint.plan import plan_allocation
from entrypoint.run_errors import RunErrors

BUSY = FakeGpu(uuid="GPU-made-up-0", busy=40, used=2**30)
# A rank that asks for one GPU, and ends once it has read of so many seconds, or is told that the driver hangs.
RANK = """
import json, os, sys, time
from entrypoint import attach_heartbeat, gauges
pulse, page, wanted = attach_heartbeat(os.environ), gauges.attach_resources(os.environ), float(sys.argv[1])
page.ask(["made-up-0"])
until = time.monotonic() + 60
while not page.read(1)[0] >= wanted and not os.path.exists("hangs") and time.monotonic() < until:
    pulse.beat("step", step=1)
    time.sleep(0.01)
print(json.dumps(page.read(1)))
pulse.beat("end")
"""


# A parent whose driver hangs, without Python's lock, before it has measured anything.
ENDING = """
import mmap, os, threading
from entrypoint.gauges import ResourcePage, ResourceReader
from entrypoint.monitor import MonitoredRank, ResourceMonitor
page, reached = ResourcePage(), threading.Event()
def hang():
    reached.set()
    threading.Event().wait()
ResourceReader(mmap.mmap(page.descriptor, 4096)).ask(["made-up-0"])
monitor = ResourceMonitor([MonitoredRank(os.getpid(), page)], 0.05, nvml=hang)
monitor.start()
if reached.wait(60):
    print("hangs")
monitor.stop()
"""


class Rank:
    """This process as a rank, measured by a clock of the test's own."""

    def __init__(self, nvml: Any, every_s: float = 5.0) -> None:
        self.page, self.now = ResourcePage(), 0.0
        self.gauges, self.measured = (
            ResourceReader(mmap.mmap(self.page.descriptor, 4096)),
            MonitoredRank(os.getpid(), self.page),
        )
        self.monitor = ResourceMonitor([self.measured], every_s, nvml=lambda: nvml, clock=lambda: self.now)

    def looked(self, *moments: float) -> dict[str, float]:
        """What the rank reads after looks at these moments."""
        for self.now in moments:
            self.monitor.measure(self.measured)
        names = [*PROCESS_FIELDS, *(f"gpu_{name}" for name in GPU_FIELDS)]
        return dict(zip(names, self.gauges.read(1), strict=True))


def test_nothing_is_measured_before_a_rank_asks() -> None:
    nvml = FakeNvml(BUSY)
    assert math.isnan(Rank(nvml).looked(0.0, 5.0)["seconds"])
    assert nvml.open == 0


def test_a_rank_is_measured_from_the_moment_it_asks() -> None:
    rank = Rank(FakeNvml(BUSY))
    rank.looked(0.0)
    rank.gauges.ask(["made-up-0"])
    told = rank.looked(10.0, 15.0, 20.0)
    assert (told["seconds"], told["gpu_busy"], told["gpu_memory_bytes"]) == (10.0, 400.0, 2**30)


def test_looks_keep_their_distance() -> None:
    rank = Rank(FakeNvml(BUSY))
    rank.gauges.ask(["made-up-0"])
    assert rank.looked(0.0, 4.9)["seconds"] == 0.0
    assert rank.looked(5.0)["seconds"] == 5.0


def test_another_jobs_gpu_takes_no_figure_from_ours() -> None:
    rank = Rank(FakeNvml(FakeGpu(error=pynvml.NVML_ERROR_NO_PERMISSION), BUSY))
    rank.gauges.ask(["made-up-0"])
    assert rank.looked(0.0, 5.0)["gpu_busy"] == 200.0


class NoDriver(FakeNvml):
    def nvmlInit(self) -> None:
        raise OSError("made up: no library")


@pytest.mark.parametrize("nvml", [NoDriver(), FakeNvml()], ids=["no-driver", "no-such-gpu"])
def test_where_nvml_shows_no_gpu_the_process_is_still_measured(nvml: FakeNvml) -> None:
    rank = Rank(nvml)
    rank.gauges.ask(["made-up-0"])
    told = rank.looked(0.0, 5.0)
    assert told["memory_bytes"] > 0
    assert all(math.isnan(told[f"gpu_{name}"]) for name in GPU_FIELDS)


def test_a_rank_without_a_gpu_never_loads_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(None)
    monkeypatch.setattr(rank.monitor, "_load_nvml", lambda: pytest.fail("NVML was loaded"))
    rank.gauges.ask([])
    assert rank.looked(0.0, 5.0)["seconds"] == 5.0


def test_a_page_that_is_gone_ends_no_thread() -> None:
    gone, rank = MonitoredRank(os.getpid(), ResourcePage()), Rank(FakeNvml(BUSY))
    gone.page.close()
    rank.gauges.ask([])
    both = ResourceMonitor([gone, rank.measured], 0.0)
    both.start()
    wait_until(lambda: rank.gauges.read(0)[0] > 0, "the other rank's figures")
    both.stop()


def test_a_thread_that_was_stopped_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("entrypoint.monitor.STOP_TIMEOUT_S", 60.0)
    rank = Rank(FakeNvml(BUSY), every_s=60.0)
    rank.monitor.start()
    assert rank.monitor._thread.is_alive()
    rank.monitor.stop()
    assert not rank.monitor._thread.is_alive()


def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nvml: Any, wanted: float) -> list[float]:
    """What a real rank, started by the real parent, has read."""
    monkeypatch.setattr(monitor, "import_pynvml", nvml)
    monkeypatch.chdir(tmp_path)
    limits = HangTimeouts(start=60, step=60, evaluation=60, save=60, data=60)
    care = SupervisionPolicy(limits=limits, errors=RunErrors(tmp_path), gauges_every_s=0.05)
    options, here = LaunchOptions(device="cpu"), machine()
    found, command = (
        plan_allocation(detect_allocation({}, options, here), options, here, {}),
        [sys.executable, "-c", RANK, str(wanted)],
    )
    assert run_plan(found, command, dict(os.environ), log_dir=tmp_path, foreign=False, care=care) == 0
    return list(json.loads((tmp_path / "rank-0000.log").read_text()))


def test_a_started_rank_reads_what_its_parent_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = launched(tmp_path, monkeypatch, lambda: FakeNvml(BUSY), wanted=0.2)
    process, gpu = (
        dict(zip(PROCESS_FIELDS, told, strict=False)),
        dict(zip(GPU_FIELDS, told[len(PROCESS_FIELDS) :], strict=True)),
    )
    assert process["memory_peak_bytes"] > 2**20
    assert gpu["busy"] / gpu["busy_s"] == pytest.approx(40)


def test_a_driver_that_hangs_holds_up_no_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()

    class Hanging(FakeNvml):
        def nvmlInit(self) -> None:
            (tmp_path / "hangs").touch()
            never.wait()

    told = launched(tmp_path, monkeypatch, Hanging, wanted=1e9)
    assert (tmp_path / "hangs").exists()
    assert all(map(math.isnan, told))
    never.set()


def test_a_process_ends_beside_a_driver_that_hangs(tmp_path: Path) -> None:
    with start_python("-c", ENDING, cwd=tmp_path) as process:
        assert process.communicate(timeout=TIMEOUT_S)[0] == "hangs\n"
    assert process.returncode == 0
