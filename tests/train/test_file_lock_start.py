"""Two starts of one run, the second is sent away, a killed one holds nobody up, a lost one commits nothing."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from processes import TIMEOUT_S, python, start_python, wait_until
from runs import ENDLESS, Run

from train import file_lock
from train.run import lock

COMMAND = ("-m", "train", "--config", "config.yaml", "log.every_steps=1")
QUICK = {"OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A start in its folder, at work."""

    run: Run
    process: subprocess.Popen[str]

    def trains(self, before: int) -> bool:
        """Whether it has done steps, after so many starts before it."""
        return len(self.run.record.get("starts", [])) > before and max(self.run.logged(), default=0) > 1

    def files(self) -> dict[str, int]:
        """What stands in errors/ and checkpoints/, and when it was last changed."""
        found = (path for name in ("errors", "checkpoints") for path in self.run.folder.glob(f"{name}/**/*"))
        return {str(path): path.stat().st_mtime_ns for path in found}


def begin(folder: Path, **environ: str) -> Begun:
    run = Run(folder=folder / "runs" / "run")
    before = len(run.record.get("starts", []))
    (folder / "config.yaml").write_text(ENDLESS)
    begun = Begun(run=run, process=start_python(*COMMAND, environ=QUICK | environ, cwd=folder))
    wait_until(lambda: begun.trains(before) or begun.process.poll() is not None, "steps", TIMEOUT_S)
    return begun


def second(folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return python(*COMMAND, environ=QUICK | environ, cwd=folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def first(folder: Path) -> Iterator[Begun]:
    begun = begin(folder)
    with begun.process:
        yield begun
        begun.process.kill()


def test_a_second_start_is_sent_away_by_name_and_the_first_goes_on(first: Begun, folder: Path) -> None:
    before = first.files()
    done = second(folder)
    assert done.returncode == 73, done.stderr
    assert f"process {first.process.pid} on " in done.stderr
    step = max(first.run.logged())
    wait_until(lambda: max(first.run.logged()) > step, "another step")
    assert first.files() == before


def test_a_second_job_is_sent_away_too_and_leaves_nothing_for_the_first_ones_script(first: Begun, folder: Path) -> None:
    before = first.files()
    assert second(folder, SLURM_JOB_ID="8", SLURM_RESTART_COUNT="3", CUDA_VISIBLE_DEVICES="0").returncode in (73, 78)
    assert first.files() == before


@pytest.mark.parametrize("words", [("check",), ("where",)])
def test_who_only_looks_needs_no_lock(first: Begun, folder: Path, words: tuple[str, ...]) -> None:
    assert python("-m", "train", *words, "--config", "config.yaml", cwd=folder).returncode == 0


def test_after_kill_9_the_next_start_goes_on_at_once_and_one_that_lost_its_folder_saves_nothing(
    first: Begun, folder: Path
) -> None:
    first.process.send_signal(signal.SIGKILL)
    first.process.wait(TIMEOUT_S)
    again = begin(folder)
    with again.process:
        number, holder = file_lock.read_current_lock(again.run.folder / lock.LOCK_NAME)
        assert holder is not None
        assert holder.pid == again.process.pid
        before = again.files()
        _take_over(again.run.folder, number + 1, holder)
        said, _ = again.process.communicate(timeout=TIMEOUT_S)
    assert again.process.returncode == 73, said
    assert "which has ended without giving the run's folder back" in said
    assert "lost the run's folder" in said
    assert "process 1 on node07" in said
    assert again.files() == before


def _take_over(run_folder: Path, number: int, holder: file_lock.LockHolder) -> None:
    """As a start on another machine does that saw no sign of life."""
    told: Mapping[str, object] = {"host": "node07", "pid": 1, "began": "1", "machine": "another boot", "token": "x"}
    (run_folder / f"{lock.LOCK_NAME}.{number}").write_text(json.dumps(told | {"since": holder.since}))
