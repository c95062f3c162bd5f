"""The commands that fetch data, as real processes: N ranks and two jobs ask once, a killed one holds nobody up."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import servers
from processes import TIMEOUT_S, python, wait_until
from publishing import DRIVER, everything, left, stand_in, write_table
from servers import serving
from torchvision import datasets

from train.config.load import keep_last_overrides

REPOSITORY = Path(__file__).parents[1]
ENVIRON = {"no_proxy": "*", "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
MNIST, MNIST_FILES = stand_in("mnist")
CIFAR, CIFAR_FILES = stand_in("cifar10")
(TAR,) = CIFAR
TRAINING = """
run: {name: run, output_dir: runs}
launch: {device: cpu, procs_per_node: 2}
data: {name: mnist, root: data, download: true, image_size: 28, loader: memory, augment: none}
model: {name: small_cnn}
train: {epochs: 1, max_steps: 2, global_batch_size: 16, precision: fp32}
log: {tensorboard: false}
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_table(tmp_path / "table.json", {"mnist": MNIST, "cifar10": CIFAR})


def fetch(table: Path, url: str, name: str = "cifar10") -> list[str]:
    """The command line of `train data fetch`, with the stand-in table."""
    settings = [f"data.name={name}", f"data.root={table.parent / 'data'}", f"data.mirror={url}"]
    return ["-c", DRIVER, str(table), "data", "fetch", *settings]


@contextmanager
def started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A job of its own: a process in a session of its own, which does not outlive the test."""
    process = subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, **ENVIRON},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=TIMEOUT_S)


def test_six_processes_of_two_jobs_ask_for_each_file_once(table: Path) -> None:
    with serving(MNIST_FILES, servers.slowly) as server, ExitStack() as stack:
        jobs = [stack.enter_context(started(fetch(table, server.url, "mnist"))) for _ in range(6)]
        ends = [job.communicate(timeout=TIMEOUT_S)[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0] * 6, ends
    assert sorted(server.asked) == sorted(f"/pub/{archive.name}" for archive in MNIST)
    assert left(table.parent / "data") == everything(MNIST)


def test_all_that_wait_for_a_failure_fail_alike_and_the_server_is_asked_once(table: Path) -> None:
    with serving(CIFAR_FILES, servers.refuses_when_told) as server, ExitStack() as stack:
        jobs = [stack.enter_context(started(fetch(table, server.url))) for _ in range(3)]
        wait_until(lambda: len(server.asked) == 1, "one asks the server")
        first = next(job for job in jobs if says(job) == "fetching")
        assert {says(job) for job in jobs if job is not first} == {f"waiting for process {first.pid} on"}
        server.go_on.set()
        ends = [job.communicate(timeout=TIMEOUT_S)[0] for job in jobs]
    assert [job.returncode for job in jobs] == [66] * 3, ends
    assert server.asked == [f"/pub/{TAR.name}"]
    assert left(table.parent / "data") == {".fetch-cifar10.failed"}


def says(job: subprocess.Popen[str]) -> str:
    """The beginning of its first line: what it does, and for whom."""
    assert job.stdout is not None
    message = re.match(r"fetching|waiting for process \d+ on", line := job.stdout.readline())
    return message[0] if message else line


def test_a_killed_one_holds_nobody_up_and_nothing_of_it_is_left(table: Path) -> None:
    root = table.parent / "data"
    with serving(CIFAR_FILES, servers.when_told) as server:
        with started(fetch(table, server.url)) as first:
            wait_until(lambda: any(path.stat().st_size for path in root.glob(".tmp-*")), "half a file is there")
            first.kill()
            first.wait(TIMEOUT_S)
        assert {path.partition("-python")[0] for path in left(root)} == {".fetch-cifar10.1", ".tmp-fetch-cifar-10"}
        server.go_on.set()
        second = python(*fetch(table, server.url), environ=ENVIRON)
    assert second.returncode == 0, second.stderr
    assert server.asked == [f"/pub/{TAR.name}"] * 2
    assert left(root) == everything(CIFAR)


def test_a_signal_ends_the_download_with_75_and_leaves_nothing(table: Path) -> None:
    with serving(CIFAR_FILES, servers.when_told) as server, started(fetch(table, server.url)) as job:
        wait_until(lambda: len(server.asked) == 1, "the download began")
        job.send_signal(signal.SIGTERM)
        output = job.communicate(timeout=TIMEOUT_S)[0]
    assert job.returncode == 75, output
    assert left(table.parent / "data") == set()


def test_without_a_network_it_ends_with_66_and_one_block(table: Path) -> None:
    end = python(*fetch(table, "http://127.0.0.1:9"), environ=ENVIRON)
    assert (end.returncode, end.stderr.count("ERROR")) == (66, 1)
    assert f"put {TAR.name} (md5 {TAR.md5}" in end.stderr


def test_torchvision_reads_what_was_fetched(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({**MNIST_FILES, **CIFAR_FILES}, servers.whole) as server:
        for name in ("mnist", "cifar10"):
            assert python(*fetch(table, server.url, name), environ=ENVIRON).returncode == 0
    root = table.parent / "data"
    hashes = {Path(file.path).name: str(file.md5) for file in TAR.files}
    sides = {side: [[name, hashes[name]] for name, _ in getattr(datasets.CIFAR10, side)] for side in SIDES}
    for side, listed in sides.items():
        monkeypatch.setattr(datasets.CIFAR10, side, listed)
    monkeypatch.setitem(datasets.CIFAR10.meta, "md5", hashes["batches.meta"])
    assert [len(datasets.CIFAR10(root, train=train)) for train in (True, False)] == [1000, 50]
    assert [len(datasets.MNIST(root, train=train)) for train in (True, False)] == [200, 50]


SIDES = ("train_list", "test_list")


@pytest.mark.slow
def test_a_training_of_two_ranks_fetches_its_data_once_and_reads_it(table: Path, tmp_path: Path) -> None:
    (tmp_path / "cfg.yaml").write_text(TRAINING)
    with serving(MNIST_FILES, servers.whole) as server:
        command = ["-c", DRIVER, str(table), "--config", "cfg.yaml", f"data.mirror={server.url}"]
        end = python(*command, environ=ENVIRON, cwd=tmp_path)
    assert end.returncode == 0, end.stderr + end.stdout
    assert len(server.asked) == 4
    assert (tmp_path / "runs/run/metrics.jsonl").exists()


@pytest.mark.parametrize("setting", ["data.name=synthetic", "data.name=folder", "data.mirror=http://me:secret@h"])
def test_a_download_that_cannot_be_is_refused_by_check_too(setting: str, tmp_path: Path) -> None:
    words = ["check", *keep_last_overrides(["data.name=mnist", "data.download=true", setting]), "--device", "cpu"]
    end = python("-m", "train", *words, environ=ENVIRON, cwd=tmp_path)
    assert end.returncode == 64, end.stderr
    assert "secret" not in end.stderr
