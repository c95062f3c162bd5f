"""One process at a time holds a lock or a run; a dead one holds nobody up, and a living one is waited for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from unittest.mock import Mock

import pytest
from processes import TIMEOUT_S, python, start_python, wait_until
from runs import ENDLESS, Run
from shut import NOBODY, ONLY_ROOT, being, of_everybody

from train import __main__ as front
from train import file_lock
from train.file_lock import LockHolder, WaitOutcome
from train.run import lock

HOLD = """
import pathlib, sys, time
from train import __main__ as front
from train import file_lock
file_lock.acquire_lock(pathlib.Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""
COMMAND = ("-m", "train", "--config", "config.yaml", "log.every_steps=1")
QUICK = {"OMP_NUM_THREADS": "1"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_lock, "POLL_S", 0.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / ".lease"


def nobody(_: LockHolder | None) -> None:
    raise AssertionError("waited for somebody")


def left_by(path: Path, holder: LockHolder, number: int = 1) -> Path:
    """The file of a holder that is not this process."""
    file = path.with_name(f"{path.name}.{number}")
    file.write_text(json.dumps(asdict(holder)))
    return file


@pytest.fixture
def ended() -> LockHolder:
    """A process of this machine that is no more."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(TIMEOUT_S)
    return replace(file_lock.this_process_as_holder(), pid=process.pid, began="1")


@pytest.fixture
def elsewhere() -> LockHolder:
    return replace(file_lock.this_process_as_holder(), host="node07", machine="another boot")


def test_only_the_first_holds_it(path: Path) -> None:
    assert file_lock.acquire_lock(path) is not None
    assert file_lock.acquire_lock(path) is None


def test_given_back_it_can_be_taken_again_and_leaves_no_file(path: Path) -> None:
    for _ in range(2):
        held = file_lock.acquire_lock(path)
        assert held is not None
        with held.held():
            assert file_lock.acquire_lock(path) is None
        assert list(path.parent.iterdir()) == []


def test_an_error_inside_gives_it_back(path: Path) -> None:
    held = file_lock.acquire_lock(path)
    assert held is not None
    with pytest.raises(KeyboardInterrupt), held.held():
        raise KeyboardInterrupt
    assert list(path.parent.iterdir()) == []


def test_without_a_thread_that_touches_it_it_is_given_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_lock, "start_daemon_thread", Mock(side_effect=RuntimeError("can't start new thread")))
    held = file_lock.acquire_lock(path)
    assert held is not None
    with pytest.raises(RuntimeError, match="can't start"), held.held():
        pass
    assert list(path.parent.iterdir()) == []


def test_a_dead_process_of_this_machine_holds_nobody_up(path: Path, ended: LockHolder) -> None:
    left_by(path, ended)
    assert file_lock.wait_for_release(path, nobody) == WaitOutcome(token=ended.token)
    held = file_lock.acquire_lock(path)
    assert held is not None
    held.release()
    assert list(path.parent.iterdir()) == []


def test_another_process_with_the_number_of_a_dead_one_holds_nobody_up(path: Path) -> None:
    left_by(path, replace(file_lock.this_process_as_holder(), began="1"))
    assert file_lock.acquire_lock(path) is not None


def test_a_process_killed_while_it_holds_the_lock_holds_nobody_up(path: Path) -> None:
    with start_python("-c", HOLD, str(path), cwd=Path.cwd()) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            assert file_lock.acquire_lock(path) is None
        finally:
            process.kill()
        # Not yet waited for: a zombie is dead too.
        wait_until(lambda: file_lock.acquire_lock(path) is not None, "the dead one's lock is free")


def test_of_two_that_see_a_dead_one_only_one_wins(path: Path, ended: LockHolder) -> None:
    left_by(path, ended)
    assert [file_lock.acquire_lock(path) is not None for _ in range(3)] == [True, False, False]


def test_a_holder_elsewhere_is_dead_once_its_file_was_not_touched_for_long(path: Path, elsewhere: LockHolder) -> None:
    file = left_by(path, elsewhere)
    waited = file_lock.wait_for_release(path, lambda _: None, clock=count(0, 10).__next__)
    assert waited == WaitOutcome(token=elsewhere.token, silent=(1, file.stat().st_mtime_ns))
    assert file_lock.acquire_lock(path) is None
    assert file_lock.acquire_lock(path, waited) is not None


def test_a_file_without_a_name_is_dead_once_it_was_not_touched_for_long(path: Path) -> None:
    path.with_name(f"{path.name}.1").touch()
    waited = file_lock.wait_for_release(path, lambda _: None, clock=count(0, 10).__next__)
    assert waited.token is None
    assert file_lock.acquire_lock(path, waited) is not None


def test_a_holder_that_touches_its_file_is_waited_for(path: Path, elsewhere: LockHolder) -> None:
    file, looks = left_by(path, elsewhere), iter(range(1000))

    def touch(holder: LockHolder | None) -> None:
        assert holder == elsewhere
        os.utime(file, ns=(0, look)) if (look := next(looks)) < 50 else file.unlink()

    assert file_lock.wait_for_release(path, touch, clock=count(0, 10).__next__) == WaitOutcome(token=elsewhere.token)
    assert next(looks) == 51


@ONLY_ROOT
def test_a_holder_whose_file_only_its_user_may_read_is_waited_for(elsewhere: LockHolder) -> None:
    looks = iter(range(1000))

    def touch(holder: LockHolder | None) -> None:
        with being(0):
            os.utime(file, ns=(0, look)) if (look := next(looks)) < 50 else file.unlink()

    with of_everybody() as folder, being(NOBODY):
        with being(0):
            file = left_by(folder / ".lease", elsewhere)
            file.chmod(0o600)
        assert file_lock.wait_for_release(folder / ".lease", touch, clock=count(0, 10).__next__) == WaitOutcome(
            token=None
        )
    assert next(looks) == 51


@ONLY_ROOT
def test_a_silent_holder_whose_file_only_its_user_may_read_is_dead_too(elsewhere: LockHolder) -> None:
    with of_everybody() as folder:
        path = folder / ".lease"
        left_by(path, elsewhere).chmod(0o600)
        with being(NOBODY):
            waited = file_lock.wait_for_release(path, lambda _: None, clock=count(0, 10).__next__)
            assert file_lock.acquire_lock(path) is None
            assert file_lock.acquire_lock(path, waited) is not None


def test_a_holder_that_came_to_life_again_is_not_dead(path: Path, elsewhere: LockHolder) -> None:
    file = left_by(path, elsewhere)
    waited = file_lock.wait_for_release(path, lambda _: None, clock=count(0, 10).__next__)
    os.utime(file, ns=(0, 1))
    assert file_lock.acquire_lock(path, waited) is None


def test_nobody_is_waited_for_without_a_holder(path: Path) -> None:
    assert file_lock.wait_for_release(path, nobody) == WaitOutcome(token=None)


def test_one_that_seemed_dead_leaves_its_successors_file(path: Path) -> None:
    slept = file_lock.acquire_lock(path)
    assert slept is not None
    successor = left_by(path, file_lock.this_process_as_holder(), number=2)
    slept.release()
    assert successor.exists()


def test_the_file_is_touched_while_the_lock_is_held(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_lock, "HEARTBEAT_S", 0.001)
    held = file_lock.acquire_lock(path)
    assert held is not None
    file = path.with_name(f"{path.name}.1")
    os.utime(file, ns=(0, 0))
    with held.held():
        wait_until(lambda: file.stat().st_mtime_ns > 0, "touched")


def test_two_that_begin_while_one_gives_back_do_not_both_hold_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at the dead one's file and the own file, that one is gone and another has begun at 1."""

    def meanwhile(holder: LockHolder | None) -> bool:
        left_by(path, replace(file_lock.this_process_as_holder(), token="another"))
        return True

    left_by(path, file_lock.this_process_as_holder())
    monkeypatch.setattr(file_lock, "has_ended", meanwhile)
    assert file_lock.acquire_lock(path) is None
    assert file_lock.is_still_held(path, 1)


def test_one_that_found_nobody_does_not_hold_it_beside_a_later_number(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_by(path, file_lock.this_process_as_holder(), number=2)
    numbers, newest = iter([0]), file_lock._newest_number
    monkeypatch.setattr(file_lock, "_newest_number", lambda path: next(numbers, newest(path)))
    assert file_lock.acquire_lock(path) is None
    assert [file.name for file in path.parent.iterdir()] == [f"{path.name}.2"]


def test_other_files_in_the_folder_are_no_locks(path: Path) -> None:
    for name in (".lease.failed", ".lease", ".lease.x1", "lease.1"):
        path.with_name(name).touch()
    assert file_lock.acquire_lock(path) is not None
    assert path.with_name(".lease.1").exists()


@pytest.mark.parametrize("left", [b"", b"{", b"[]", b"{}", b'"x"', b"\xff", b'{"pid": 1}'])
def test_a_file_that_names_nobody_is_not_taken_at_once(path: Path, left: bytes) -> None:
    path.with_name(f"{path.name}.1").write_bytes(left)
    assert file_lock.acquire_lock(path) is None


def test_a_folder_that_is_not_there_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        file_lock.acquire_lock(tmp_path / "none" / ".lease")


def test_a_holder_is_named_by_process_and_host(elsewhere: LockHolder) -> None:
    assert str(elsewhere) == f"process {os.getpid()} on node07"


def test_processes_on_one_machine_take_turns(path: Path) -> None:
    turn = (
        "import sys, pathlib; from train import file_lock; path = pathlib.Path(sys.argv[1]); file_lock.POLL_S = 0.001\n"
        "while (held := file_lock.acquire_lock(path)) is None: file_lock.wait_for_release(path, lambda _: None)\n"
        "with held.held():\n"
        "    inside = path.with_name('inside'); inside.mkdir(); inside.rmdir()\n"
    )
    processes = [start_python("-c", turn, str(path), cwd=Path.cwd()) for _ in range(6)]
    ends = [process.communicate(timeout=TIMEOUT_S)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 6, ends
    assert list(path.parent.iterdir()) == []


def test_the_holder_is_told_once_when_another_took_over(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_lock, "HEARTBEAT_S", 0.001)
    held = file_lock.acquire_lock(path)
    messages: list[int] = []
    assert held is not None
    with held.held(lambda: messages.append(1)):
        assert file_lock.is_still_held(path, 1)
        left_by(path, file_lock.this_process_as_holder(), number=2)
        wait_until(lambda: bool(messages), "told")
    assert (messages, file_lock.is_still_held(path, 1)) == ([1], False)


def test_a_lock_whose_folder_is_gone_is_held_by_nobody(path: Path) -> None:
    assert not file_lock.is_still_held(path.parent / "none" / ".lease", 1)


def test_a_touch_is_told_but_not_the_first_look(path: Path, elsewhere: LockHolder) -> None:
    file, looks = left_by(path, elsewhere), iter(range(4))
    beats: list[LockHolder | None] = []

    def look(_: LockHolder | None) -> None:
        file.unlink() if (at := next(looks)) == 3 else os.utime(file, ns=(0, at // 2))

    file_lock.wait_for_release(path, look, beat=beats.append)
    assert beats == [elsewhere, elsewhere]


def test_only_a_living_process_of_this_machine_lives_here(elsewhere: LockHolder, ended: LockHolder) -> None:
    assert [
        file_lock.is_alive_here(holder) for holder in (file_lock.this_process_as_holder(), elsewhere, ended, None)
    ] == [True, *[False] * 3]


def test_a_holder_can_be_declared_overdue(path: Path, elsewhere: LockHolder) -> None:
    left_by(path, elsewhere)
    assert file_lock.acquire_lock(path, file_lock.assume_stale(path)) is not None


def test_a_disk_that_answers_no_more_keeps_nobody(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck, free = threading.Event(), threading.Event()
    monkeypatch.setattr(file_lock, "HEARTBEAT_S", 0.0)
    monkeypatch.setattr(file_lock, "RELEASE_TIMEOUT_S", 0.01)
    monkeypatch.setattr(file_lock.os, "utime", lambda _: (stuck.set(), free.wait(TIMEOUT_S)))
    held = file_lock.acquire_lock(path)
    assert held is not None
    with held.held():
        assert stuck.wait(TIMEOUT_S)
    assert file_lock.is_still_held(path, 1)
    free.set()
    wait_until(lambda: not file_lock.is_still_held(path, 1), "given back once it answers")


@pytest.mark.parametrize("change", [{"pid": 0}, {"pid": 10**30}, {"pid": "1"}, {"since": None}, {"restart": True}])
def test_a_holder_of_another_kind_than_ours_has_no_name(path: Path, change: dict[str, object]) -> None:
    path.with_name(".lease.1").write_text(json.dumps(asdict(file_lock.this_process_as_holder()) | change))
    assert file_lock.read_current_lock(path) == (1, None)


def test_a_pipe_for_a_lock_is_waited_for_no_longer_than_a_silent_holder(path: Path) -> None:
    os.mkfifo(path.with_name(".lease.1"))
    assert file_lock.read_current_lock(path) == (1, None)
    assert file_lock.acquire_lock(path, file_lock.assume_stale(path)) is not None


@pytest.mark.parametrize("ending", ["0", "01", "-1", "\u0663", "x"])
def test_what_is_no_number_of_ours_is_no_lock(path: Path, ending: str) -> None:
    path.with_name(f".lease.{ending}").write_text("{}")
    assert file_lock.read_current_lock(path) == (0, None)


def test_a_huge_number_is_given_back_at_once(path: Path) -> None:
    path.with_name(f".lease.{10**17}").write_text("{}")
    held = file_lock.acquire_lock(path, file_lock.assume_stale(path))
    assert held is not None
    held.release()
    assert list(path.parent.iterdir()) == []


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
        paths = (path for name in ("errors", "checkpoints") for path in self.run.folder.glob(f"{name}/**/*"))
        return {str(path): path.stat().st_mtime_ns for path in paths}


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
def test_who_only_looks_needs_no_lock(
    first: Begun, folder: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(folder)
    assert front.run_command([*words, "--config", "config.yaml"], {}) == 0


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
        printed, _ = again.process.communicate(timeout=TIMEOUT_S)
    assert again.process.returncode == 73, printed
    assert "which has ended without giving the run's folder back" in printed
    assert "lost the run's folder" in printed
    assert "process 1 on node07" in printed
    assert again.files() == before


def _take_over(run_folder: Path, number: int, holder: file_lock.LockHolder) -> None:
    """As a start on another machine does that saw no sign of life."""
    recorded: Mapping[str, object] = {"host": "node07", "pid": 1, "began": "1", "machine": "another boot", "token": "x"}
    (run_folder / f"{lock.LOCK_NAME}.{number}").write_text(json.dumps(recorded | {"since": holder.since}))
