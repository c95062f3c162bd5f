"""What /proc tells of real processes, and of made-up ones."""

from __future__ import annotations

import math
import os
from pathlib import Path

from processes import start_python, wait_until

from entrypoint.monitor import CLOCK_TICKS_PER_S, PAGE_SIZE_BYTES, ProcessMeter

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
