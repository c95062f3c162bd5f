"""A run's folder is one start's, one that lost it commits nothing, and a node that cannot be used leaves word in it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path

import pytest
from processes import TIMEOUT_S

from entrypoint import ExitCode, Failure
from train import file_lock
from train.file_lock import LockHolder
from train.run import lock

JOB = {"SLURM_JOB_ID": "7"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_lock, "POLL_S", 0.0)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds go by between two looks."""
    real, clock = file_lock.wait_for_release, count(0, 10)
    monkeypatch.setattr(file_lock, "wait_for_release", lambda path, look, beat: real(path, look, clock.__next__, beat))


def starter(launch_id: str = "mine", **environ: str) -> LockHolder:
    return lock.this_start_as_holder(environ, launch_id=launch_id, started_at=0.0)


def elsewhere(**facts: object) -> LockHolder:
    """Another start, on another machine."""
    return replace(starter("theirs"), host="node07", machine="another boot", **facts)  # type: ignore[arg-type]


def ended() -> LockHolder:
    """Another start, of this machine, that is no more."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(TIMEOUT_S)
    return replace(starter("theirs"), pid=process.pid, began="1")


def left_by(folder: Path, holder: LockHolder, number: int = 1) -> Path:
    file = folder / f"{lock.LOCK_NAME}.{number}"
    file.write_text(json.dumps(asdict(holder)))
    return file


def refusal(folder: Path, me: LockHolder | None = None, *, first: bool = True) -> Failure:
    with pytest.raises(Failure) as caught:
        lock.wait_until_unlocked(folder, me or starter(), print, first=first)
    assert caught.value.code == ExitCode.OUTPUT
    return caught.value


def taken_over(folder: Path, me: LockHolder, printed: list[str]) -> int:
    """The number of the lock that `me` gets."""
    waited = lock.wait_until_unlocked(folder, me, printed.append, first=True)
    return lock.lock_run_folder(folder, me, waited, printed.append).number


def test_a_folder_that_is_not_there_is_free_and_is_not_made(tmp_path: Path) -> None:
    assert lock.wait_until_unlocked(tmp_path / "run", starter(), print, first=True) is None
    assert not list(tmp_path.iterdir())


def test_a_living_start_of_this_machine_is_named_at_once_with_its_job(tmp_path: Path) -> None:
    left_by(tmp_path, starter("theirs", SLURM_JOB_ID="12", SLURM_RESTART_COUNT="2"))
    failure = refusal(tmp_path)
    for fact in (f"process {os.getpid()} on ", "Slurm job 12, start 3", "since 1970-01-01T00:00:00+00:00"):
        assert fact in (failure.found or "")
    assert "scancel 12" in failure.fix


def test_the_job_of_another_scheduler_is_not_called_slurm_s(tmp_path: Path) -> None:
    left_by(tmp_path, starter("theirs", PBS_JOBID="12.pbs"))
    failure = refusal(tmp_path)
    assert "(job 12.pbs, start 1)" in (failure.found or "")
    assert "or end it (cancel job 12.pbs)" in failure.fix


def test_a_refused_start_leaves_the_folder_as_it_is(tmp_path: Path) -> None:
    left_by(tmp_path, starter("theirs"))
    before = [(path.name, path.stat().st_mtime_ns) for path in tmp_path.iterdir()]
    refusal(tmp_path)
    assert [(path.name, path.stat().st_mtime_ns) for path in tmp_path.iterdir()] == before


def test_the_tasks_of_one_start_know_each_other(tmp_path: Path) -> None:
    left_by(tmp_path, elsewhere(launch="mine"))
    assert lock.wait_until_unlocked(tmp_path, starter(), print, first=False) is None


def test_a_folder_that_a_refused_start_removes_meanwhile_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire, removals = file_lock.acquire_lock, [tmp_path / "run"]

    def acquire_late(path: Path, *given: object) -> file_lock.FileLock | None:
        if removals:
            removals.pop().rmdir()
        return acquire(path, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(file_lock, "acquire_lock", acquire_late)
    with lock.keep_run_lock(lock.lock_run_folder(tmp_path / "run", starter(), None, print), lambda: None):
        assert (tmp_path / "run").is_dir()


@pytest.mark.parametrize("before", ["", json.dumps(asdict(elsewhere()))], ids=["not named yet", "held before"])
def test_the_tasks_of_one_start_know_each_other_when_the_lock_is_taken_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    (tmp_path / f"{lock.LOCK_NAME}.1").write_text(before)
    monkeypatch.setattr(time, "sleep", lambda _: left_by(tmp_path, elsewhere(launch="mine")))
    lock.wait_until_unlocked(tmp_path, starter(), print, first=False)


def test_a_second_rank_0_of_one_start_is_told_which_number_to_take(tmp_path: Path) -> None:
    left_by(tmp_path, starter("mine"))
    with pytest.raises(Failure, match="two processes say that they are rank 0") as caught:
        lock.wait_until_unlocked(tmp_path, starter("mine"), print, first=True)
    assert (caught.value.code, "--node-rank" in caught.value.fix) == (ExitCode.LAUNCH_CONFLICT, True)


@pytest.mark.usefixtures("hurried")
def test_a_start_elsewhere_is_refused_at_its_next_sign_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, beats = left_by(tmp_path, elsewhere()), count(1)
    monkeypatch.setattr(time, "sleep", lambda _: os.utime(file, ns=(0, next(beats))))
    assert "on node07" in (refusal(tmp_path).found or "")
    assert next(beats) == 2


@pytest.mark.usefixtures("hurried")
def test_a_start_elsewhere_that_is_silent_is_taken_over_and_said(tmp_path: Path) -> None:
    left_by(tmp_path, elsewhere())
    printed: list[str] = []
    assert taken_over(tmp_path, starter(), printed) == 2
    assert "waiting for a sign of life" in printed[0]
    assert "no sign of life for 60 s" in printed[1]


def test_an_earlier_start_of_the_same_job_is_taken_over_at_once_and_said(tmp_path: Path) -> None:
    left_by(tmp_path, elsewhere(job="7", restart=0))
    printed: list[str] = []
    assert taken_over(tmp_path, starter(SLURM_RESTART_COUNT="1", **JOB), printed) == 2
    (line,) = printed
    assert "an earlier start of this job" in line


def test_another_job_with_fewer_restarts_is_not_an_earlier_start(tmp_path: Path) -> None:
    left_by(tmp_path, starter("theirs", SLURM_JOB_ID="8"))
    refusal(tmp_path, starter(SLURM_RESTART_COUNT="1", **JOB))


def test_a_start_that_was_killed_is_taken_over_at_once_and_said(tmp_path: Path) -> None:
    left_by(tmp_path, ended())
    printed: list[str] = []
    assert taken_over(tmp_path, starter(), printed) == 2
    (line,) = printed
    assert "has ended without giving" in line


def test_the_folder_is_made_held_and_given_back(tmp_path: Path) -> None:
    held = lock.lock_run_folder(tmp_path / "runs" / "new", starter(), None, print)
    with lock.keep_run_lock(held, lost=print) as kept:
        refusal(kept.folder, starter("theirs"))
        kept.refuse_lost()
    assert list(kept.folder.iterdir()) == []


def gone(folder: Path) -> None:
    (folder / f"{lock.LOCK_NAME}.1").unlink()


def succeeded(folder: Path) -> None:
    left_by(folder, elsewhere(), number=2)


@pytest.mark.parametrize("happens", [gone, succeeded])
def test_who_lost_the_folder_commits_nothing_and_ends_with_73(tmp_path: Path, happens: Callable[[Path], None]) -> None:
    held = lock.lock_run_folder(tmp_path, starter(), None, print)
    lost = lock.RunLock(folder=tmp_path, number=held.number)
    with pytest.raises(Failure, match="seemed dead") as caught, lock.keep_run_lock(held, lost=print) as kept:
        happens(kept.folder)
    with pytest.raises(Failure, match="seemed dead"):
        lost.refuse_lost()
    assert caught.value.code == ExitCode.OUTPUT


def test_the_parent_is_told_of_a_loss_by_its_next_beat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_lock, "HEARTBEAT_S", 0.001)
    signalled = threading.Event()

    def lose() -> None:
        with lock.keep_run_lock(lock.lock_run_folder(tmp_path, starter(), None, print), lost=signalled.set):
            succeeded(tmp_path)
            assert signalled.wait(TIMEOUT_S)

    with pytest.raises(Failure, match="on node07"):
        lose()


def test_all_restarts_in_place_of_one_parent_have_one_token(tmp_path: Path) -> None:
    held = lock.lock_run_folder(tmp_path, starter(), None, print)
    assert lock.RunLock(folder=tmp_path, number=held.number).token() == held.holder.token
    assert lock.RunLock(folder=tmp_path, number=9).token() is None


@pytest.mark.parametrize(("job", "another"), [("7", False), ("8", True)])
def test_a_folder_is_anothers_where_its_lock_has_another_job(tmp_path: Path, job: str, another: bool) -> None:
    left_by(tmp_path, starter("theirs", SLURM_JOB_ID=job))
    assert lock.is_locked_by_another_job(tmp_path, JOB) is another


def test_a_dead_or_missing_lock_is_nobodys(tmp_path: Path) -> None:
    assert not lock.is_locked_by_another_job(tmp_path, JOB)
    left_by(tmp_path, ended())
    assert not lock.is_locked_by_another_job(tmp_path, JOB)


HOLD = """
import pathlib, sys, time
from train import file_lock
from train.run import lock
file_lock.HEARTBEAT_S = 0.2
me = lock.this_start_as_holder({"SLURM_JOB_ID": "12"}, launch_id="theirs", started_at=0.0)
with lock.keep_run_lock(lock.lock_run_folder(pathlib.Path(sys.argv[1]), me, None, print), lost=print):
    print("held", flush=True)
    sys.stdin.read()
"""
CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
NO_CONTAINER = subprocess.run([*CONTAINER, "true"], capture_output=True).returncode != 0


@pytest.mark.skipif(NO_CONTAINER, reason="machine: no process namespaces can be made")
def test_a_start_in_another_container_is_refused_by_its_beat_and_gives_the_folder_back(tmp_path: Path) -> None:
    command = [*CONTAINER, sys.executable, "-c", HOLD, str(tmp_path)]
    printed: list[str] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(Failure, match="at work") as caught:
            lock.wait_until_unlocked(tmp_path, starter(), printed.append, first=True)
        process.communicate(timeout=TIMEOUT_S)
    assert "Slurm job 12" in (caught.value.found or "")
    assert "waiting for a sign of life" in printed[0]
    assert taken_over(tmp_path, starter(), printed) == 1


def test_one_look_refuses_what_a_living_process_of_this_machine_holds(tmp_path: Path) -> None:
    left_by(tmp_path, starter("theirs"))
    with pytest.raises(Failure, match="another start of this run is at work") as caught:
        lock.refuse_living_holder(tmp_path)
    assert caught.value.code == ExitCode.OUTPUT


def test_one_look_names_a_holder_that_only_a_wait_would_show_alive(tmp_path: Path) -> None:
    left_by(tmp_path, elsewhere())
    assert "on node07" in (lock.refuse_living_holder(tmp_path) or "")


def test_one_look_says_nothing_where_nobody_lives(tmp_path: Path) -> None:
    assert lock.refuse_living_holder(tmp_path / "none") is None
    left_by(tmp_path, ended())
    assert lock.refuse_living_holder(tmp_path) is None


NODE_FILE = f"node-{socket.gethostname()}.json"


def files_after_failure(folder: Path, code: ExitCode, environ: dict[str, str]) -> list[str]:
    """The files in errors/ after a failure in planning."""
    with pytest.raises(Failure), lock.record_node_failure(folder, environ):
        raise Failure("no GPU can be used here", fix="use another", code=code)
    return [path.name for path in folder.glob("errors/*")]


def test_an_unusable_node_of_a_job_is_named_with_its_code(tmp_path: Path) -> None:
    assert files_after_failure(tmp_path, ExitCode.NODE, JOB) == [NODE_FILE]
    written = json.loads((tmp_path / "errors" / NODE_FILE).read_text())
    assert (written["code"], written["host"]) == (78, socket.gethostname())


def test_the_code_stands_before_the_host_as_job_scripts_read_it(tmp_path: Path) -> None:
    files_after_failure(tmp_path, ExitCode.NODE, JOB)
    text = (tmp_path / "errors" / NODE_FILE).read_text()
    assert text.index('"code": 78') < text.index('"host"')


def test_a_node_that_does_not_fit_the_image_leaves_the_code_that_srun_hides(tmp_path: Path) -> None:
    assert files_after_failure(tmp_path, ExitCode.IMAGE_MISMATCH, JOB) == [NODE_FILE]


@pytest.mark.parametrize("code", [ExitCode.USAGE, ExitCode.LAUNCH_CONFLICT])
def test_what_is_wrong_on_every_node_is_not_said_of_one(tmp_path: Path, code: ExitCode) -> None:
    assert files_after_failure(tmp_path, code, JOB) == []


def test_it_is_named_as_slurm_names_it(tmp_path: Path) -> None:
    assert files_after_failure(tmp_path, ExitCode.NODE, {**JOB, "SLURMD_NODENAME": "gpu007"}) == ["node-gpu007.json"]


def test_outside_a_job_nothing_is_written(tmp_path: Path) -> None:
    assert files_after_failure(tmp_path, ExitCode.NODE, {}) == []


def test_a_node_that_works_again_forgets_what_it_said(tmp_path: Path) -> None:
    files_after_failure(tmp_path, ExitCode.NODE, JOB)
    lock.forget_node_failure(tmp_path, JOB)
    assert not list(tmp_path.glob("errors/*"))


@pytest.mark.parametrize(("job", "names"), [("7", [NODE_FILE]), ("8", [])])
def test_nothing_is_left_in_a_folder_that_another_job_is_at_work_in(tmp_path: Path, job: str, names: list[str]) -> None:
    lock.lock_run_folder(
        tmp_path, lock.this_start_as_holder({"SLURM_JOB_ID": job}, launch_id="theirs", started_at=0.0), None, print
    )
    assert files_after_failure(tmp_path, ExitCode.NODE, JOB) == names
