"""One thread of a rank measures its process and its GPUs, which are made up here, and nothing waits for it."""

from __future__ import annotations

import math
import os
import threading
from pathlib import Path
from typing import Any

import pynvml
import pytest
from fake_nvml import FakeGpu, FakeNvml
from processes import TIMEOUT_S, start_python, wait_until

from entrypoint.monitor import (
    CLOCK_TICKS_PER_S,
    GPU_FIELDS,
    PAGE_SIZE_BYTES,
    PROCESS_FIELDS,
    ProcessMeter,
    ResourceMonitor,
)

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


MIB = 2**20
# A rank with a data worker that takes memory once it is told to, and ends with the rank.
FORKED = """
import os, time
from pathlib import Path
rank = os.getpid()
if os.fork() == 0:
    Path("forked").touch()
    taken = None
    while os.getppid() == rank:
        if taken is None and Path("go").exists():
            taken = b"x" * (100 * 2**20)
            Path("taken").touch()
        time.sleep(0.01)
    os._exit(0)
time.sleep(600)
"""


def made_up(proc: Path, pid: int, *, ticks: int = 0, rss_kib: int = 0, peak_kib: int = 0, own_pages: int = 0) -> None:
    """A process as /proc shows it; half of its time is that of ended children."""
    folder = proc / str(pid)
    folder.mkdir(exist_ok=True)
    half = ticks // 2
    (folder / "stat").write_text(f"{pid} (a name) with) S 1 1 1 0 -1 0 0 0 0 0 {half} 0 {ticks - half} 0 20 0")
    (folder / "status").write_text(f"Name:\tx\nVmHWM:\t{peak_kib} kB\nVmRSS:\t  {rss_kib} kB\n")
    (folder / "statm").write_text(f"9999 {own_pages + 7} 7 1 0 99 0\n")


def test_the_time_of_a_rank_counts_from_the_first_look(tmp_path: Path) -> None:
    made_up(tmp_path, 1, ticks=50, rss_kib=1)
    meter = ProcessMeter(1, tmp_path, below=lambda pid: [], seconds=100.0)
    made_up(tmp_path, 1, ticks=50 + 3 * CLOCK_TICKS_PER_S, rss_kib=1)
    assert meter.measure(102.0)[:2] == (2.0, 3.0)


def test_the_time_of_data_workers_counts_too(tmp_path: Path) -> None:
    for pid in (1, 2, 3):
        made_up(tmp_path, pid, rss_kib=1)
    meter = ProcessMeter(1, tmp_path, below=lambda pid: [2, 3])
    for pid in (1, 2, 3):
        made_up(tmp_path, pid, ticks=CLOCK_TICKS_PER_S, rss_kib=1)
    assert meter.measure(1.0)[1] == 3.0


def test_a_data_worker_that_ends_unseen_takes_no_time_back(tmp_path: Path) -> None:
    made_up(tmp_path, 1, rss_kib=1)
    workers = [2]
    meter = ProcessMeter(1, tmp_path, below=lambda pid: workers)
    made_up(tmp_path, 2, ticks=CLOCK_TICKS_PER_S)
    assert meter.measure(1.0)[1] == 1.0
    workers.clear()
    assert meter.measure(2.0)[1] == 1.0


def test_of_data_workers_memory_counts_by_how_much_it_has_grown(tmp_path: Path) -> None:
    made_up(tmp_path, 1, rss_kib=1024)
    made_up(tmp_path, 2, own_pages=1000)
    meter = ProcessMeter(1, tmp_path, below=lambda pid: [2])
    made_up(tmp_path, 2, own_pages=1010)
    assert meter.measure(1.0)[2] == MIB + 10 * PAGE_SIZE_BYTES


def test_the_peak_stays(tmp_path: Path) -> None:
    made_up(tmp_path, 1, rss_kib=2048)
    meter = ProcessMeter(1, tmp_path, below=lambda pid: [])
    made_up(tmp_path, 1, rss_kib=1024)
    assert meter.measure(1.0)[2:] == (MIB, 2 * MIB)


def test_a_peak_between_two_looks_is_the_kernels(tmp_path: Path) -> None:
    made_up(tmp_path, 1, rss_kib=1024, peak_kib=5120)
    assert ProcessMeter(1, tmp_path, below=lambda pid: []).measure(1.0)[3] == 5 * MIB


def test_of_a_rank_that_has_ended_the_last_figures_stay(tmp_path: Path) -> None:
    made_up(tmp_path, 1, ticks=0, rss_kib=1024)
    meter = ProcessMeter(1, tmp_path, below=lambda pid: [])
    before = meter.measure(1.0)
    (tmp_path / "1/status").write_text("Name:\tx\nState:\tZ (zombie)\n")
    assert meter.measure(2.0) == before


def test_of_a_rank_that_was_never_seen_nothing_is_known(tmp_path: Path) -> None:
    assert all(map(math.isnan, ProcessMeter(1, tmp_path, below=lambda pid: []).measure(1.0)[2:]))


def test_a_real_process_has_taken_time_and_memory() -> None:
    meter = ProcessMeter(os.getpid())
    end = os.times().user + 0.1
    while os.times().user < end:
        pass
    _, cpu, resident, peak = meter.measure(1.0)
    assert cpu >= 0.09
    assert 5 * MIB < resident <= peak


def test_what_a_real_process_below_takes_is_its_ranks(tmp_path: Path) -> None:
    with start_python("-c", FORKED, cwd=tmp_path) as rank:
        wait_until((tmp_path / "forked").exists, "the process below")
        meter = ProcessMeter(rank.pid)
        before = meter.measure(1.0)[2]
        (tmp_path / "go").touch()
        wait_until((tmp_path / "taken").exists, "its memory")
        assert meter.measure(2.0)[2] - before >= 100 * MIB
