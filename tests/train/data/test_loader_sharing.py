"""A start whose data workers would fill shared memory is refused, with what it takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from entrypoint import ExitCode, Failure
from train.data import loader

ROOM = 64 * loader.MIB


@pytest.fixture(autouse=True)
def _of_64_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    found = type("Found", (), {"f_bavail": ROOM // 4096, "f_blocks": ROOM // 4096, "f_frsize": 4096})
    monkeypatch.setattr(loader.os, "statvfs", lambda path: found)


@pytest.mark.parametrize(("workers", "each", "ranks"), [(0, 2**40, 8), (2, ROOM // 4, 1), (1, ROOM // 8, 4)])
def test_what_fits_is_no_matter(workers: int, each: int, ranks: int) -> None:
    loader.refuse_small_shared_memory(workers, each, ranks=ranks)


def test_what_does_not_is_refused_with_two_ways_out() -> None:
    with pytest.raises(Failure) as refused:
        loader.refuse_small_shared_memory(8, 48 * loader.MIB, ranks=2)
    assert refused.value.code == ExitCode.RESOURCE
    assert refused.value.found == "/dev/shm of 64 MiB, 64 MiB free"
    assert "--shm-size=3g" in refused.value.fix
    assert "data.workers=0" in refused.value.fix


@pytest.mark.parametrize(("workers", "fewer"), [(8, 4), (5, 4), (6, 4)])
def test_as_many_workers_as_fit_are_named(workers: int, fewer: int) -> None:
    with pytest.raises(Failure, match="shared memory") as refused:
        loader.refuse_small_shared_memory(workers, ROOM // 8, ranks=1)
    assert refused.value.fix.endswith(f"data.workers={fewer}")
    loader.refuse_small_shared_memory(fewer, ROOM // 8, ranks=1)


def test_a_system_without_it_is_torchs_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: Path) -> None:
        raise FileNotFoundError(path)

    monkeypatch.setattr(loader.os, "statvfs", missing)
    loader.refuse_small_shared_memory(8, 2**40, ranks=8)


LARGE = ("data.loader=workers", "data.workers=2", "data.samples=600", "data.image_size=64", "run.output_dir={}")


def test_a_run_on_a_small_one_is_refused_before_its_first_step(tmp_path: Path) -> None:
    shut_in = [
        "unshare",
        "--mount",
        "--map-root-user",
        "sh",
        "-c",
        'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"',
    ]
    words = [word.format(tmp_path) for word in LARGE]
    command = [*shut_in, "sh", sys.executable, "-m", "train", "--device", "cpu", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path, check=False)
    if "unshare failed" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"machine: no private /dev/shm: {done.stderr.strip()}")
    assert (done.returncode, "ERROR[71] shared memory is too small" in done.stderr) == (71, True), done.stderr
    assert not list(tmp_path.rglob("metrics.jsonl"))
