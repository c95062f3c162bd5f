"""Many ranks to one exit code, seen from outside through `entrypoint run`."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import worlds
from processes import alive, python, start_python, wait_until

from entrypoint.children import Child
from entrypoint.hang import HangTimeouts, HangWatch, SupervisionPolicy
from entrypoint.heartbeat import SIGNAL_REPEAT_WINDOW_S
from entrypoint.run_errors import RunErrors
from entrypoint.supervise import SignalInbox, Supervision, _blame_order
from entrypoint.tee import Console

RUN = ("-m", "entrypoint", "run", "--device", "cpu")
# Says that it is ready, then leaves with 7 on TERM, and counts what else comes.
PATIENT = """
import os, pathlib, signal, time
def leave(*_): raise SystemExit(7)
def count(*_):
    with open("usr1-" + os.environ["RANK"], "a") as file: file.write("x")
signal.signal(signal.SIGTERM, leave)
signal.signal(signal.SIGUSR1, count)
pathlib.Path("ready-" + os.environ["RANK"]).touch()
while True: time.sleep(0.05)
"""
WAIT = "until [ -e said ]; do sleep 0.05; done"
STUBBORN = PATIENT.replace("raise SystemExit(7)", "pass")
# `python -m entrypoint` that waits for a tenth of a second.
IMPATIENT = """
import sys
from entrypoint import __main__, supervise
supervise.FAILURE_GRACE_S = 0.1
sys.exit(__main__.main())
"""


def run(tmp_path: Path, script: str, ranks: int = 2) -> subprocess.CompletedProcess[str]:
    return python(*RUN, "--procs-per-node", str(ranks), "--", "sh", "-c", script, cwd=tmp_path)


def start(tmp_path: Path, script: str, run: Sequence[str] = RUN) -> subprocess.Popen[str]:
    (tmp_path / "script.py").write_text(script)
    process = start_python(*run, "--procs-per-node", "2", "--", sys.executable, "script.py", cwd=tmp_path)
    wait_until(lambda: len(list(tmp_path.glob("ready-*"))) == 2, "both ranks are ready")
    return process


def test_all_ranks_done_is_success(tmp_path: Path) -> None:
    assert run(tmp_path, "true").returncode == 0


def test_rank_0_is_on_the_console_and_every_rank_in_its_log(tmp_path: Path) -> None:
    done = run(tmp_path, "echo rank $RANK")
    assert done.stdout == "rank 0\n"
    assert [(tmp_path / f"logs/rank-000{rank}.log").read_text() for rank in (0, 1)] == ["rank 0\n", "rank 1\n"]


@pytest.mark.parametrize(("end", "code"), [("kill -ABRT $$", 71), ("exit 127", 127)])
def test_a_rank_that_aborts_for_a_limit_is_71_and_a_program_s_own_code_stays(
    tmp_path: Path, end: str, code: int
) -> None:
    done = run(tmp_path, f"[ $RANK = 0 ] && exec sleep 60; echo 'accept: Too many open files' >&2; {end}")
    assert done.returncode == code
    assert ("the system opens no further file" in done.stderr) == (code == 71)


def test_the_first_rank_to_fail_gives_the_code_its_name_and_its_last_words(tmp_path: Path) -> None:
    done = run(tmp_path, "[ $RANK = 0 ] && exec sleep 60; echo the cause >&2; exit 66")
    assert done.returncode == 66
    assert re.search(r"rank 1 of 2 \(.+, pid \d+\) was the first to fail: exit code 66", done.stderr)
    assert "| the cause" in done.stderr


def test_what_all_ranks_refuse_together_is_said_once(tmp_path: Path) -> None:
    rank_0 = "[ $RANK = 0 ] && touch said && exec sleep 60"
    done = run(tmp_path, f"say() {{ echo 'ERROR[93] why' >&2; }}; [ $RANK = 0 ] && say; {rank_0}; {WAIT}; say; exit 93")
    assert (done.returncode, done.stderr.count("ERROR[93]"), "first to fail" in done.stderr) == (93, 1, False)


def test_the_error_of_an_only_rank_is_said_once(tmp_path: Path) -> None:
    assert run(tmp_path, "echo 'ERROR[65] why' >&2; exit 65", ranks=1).stderr == "ERROR[65] why\n"


def test_a_rank_killed_by_a_signal_is_69_with_the_signal_in_the_text(tmp_path: Path) -> None:
    done = run(tmp_path, "[ $RANK = 0 ] && exec sleep 60; kill -KILL $$")
    assert done.returncode == 69
    assert "ERROR[69] rank 1 of 2" in done.stderr
    assert "killed by SIGKILL" in done.stderr


def test_a_rank_that_torch_ends_for_an_error_of_its_gpu_is_78(tmp_path: Path) -> None:
    thrown = "terminate called after throwing an instance of c10::AcceleratorError"
    done = run(
        tmp_path,
        f"[ $RANK = 0 ] && exec sleep 60; echo {thrown} >&2; echo 'CUDA error: unspecified launch failure' >&2; "
        "kill -ABRT $$",
    )
    assert (done.returncode, "ERROR[78] rank 1 of 2" in done.stderr) == (78, True), done.stderr


@pytest.mark.parametrize(("kills", "code"), [(5, 69), (6, 71)], ids=["by someone", "by the kernel, meanwhile"])
def test_a_rank_killed_for_want_of_memory_is_71(kills: int, code: int) -> None:
    process = SimpleNamespace(pid=1, returncode=-signal.SIGKILL, poll=lambda: -signal.SIGKILL)
    child = Child(world=worlds.ALONE, process=process, tee=None)  # type: ignore[arg-type]
    watch = Supervision([child], "host", False, Console(is_terminal=False), lambda: kills, 5, alive=[child])
    watch.reap()
    assert watch.exit_code() == code


def test_a_rank_that_fails_ends_the_others(tmp_path: Path) -> None:
    run(
        tmp_path,
        "echo $$ > pid-$RANK; [ $RANK = 0 ] && exec sleep 600; until [ -s pid-0 ]; do sleep 0.05; done; exit 3",
    )
    assert not alive(int((tmp_path / "pid-0").read_text()))


@pytest.mark.parametrize(("codes", "blamed"), [((69, 65), 65), ((69, -9, 65), -9), ((75, 66), 66), ((66, 65), 66)])
def test_of_ranks_that_end_together_the_one_with_the_cause_is_blamed(codes: tuple[int, ...], blamed: int) -> None:
    ended = [
        (SimpleNamespace(world=replace(worlds.ALONE, rank=rank), ended_early=False), code)
        for rank, code in enumerate(codes)
    ]
    assert min(ended, key=_blame_order)[1] == blamed  # type: ignore[arg-type, type-var]


def test_a_request_to_stop_reaches_every_rank_and_their_code_is_kept(tmp_path: Path) -> None:
    process = start(tmp_path, PATIENT)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 7


def test_a_signal_that_is_delivered_twice_is_passed_on_once(tmp_path: Path) -> None:
    process = start(tmp_path, PATIENT)
    process.send_signal(signal.SIGUSR1)
    wait_until(lambda: [path.read_text() for path in tmp_path.glob("usr1-*")] == ["x", "x"], "both ranks counted")
    process.send_signal(signal.SIGUSR1)
    process.terminate()
    process.communicate(timeout=60)
    assert [path.read_text() for path in tmp_path.glob("usr1-*")] == ["x", "x"]


def test_a_foreign_command_that_dies_of_the_forwarded_signal_keeps_the_shells_code(tmp_path: Path) -> None:
    process = start(tmp_path, PATIENT.replace("signal.SIGTERM, leave", "signal.SIGTERM, signal.SIG_DFL"))
    process.terminate()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "ERROR" not in output


def test_a_rank_that_does_not_leave_is_killed_after_the_grace_time(tmp_path: Path) -> None:
    process = start(tmp_path, STUBBORN, ("-c", IMPATIENT, *RUN[2:]))
    pids = [int(pid) for pid in _children(process.pid)]
    assert len(pids) == 2
    _kill(pids[0])
    process.communicate(timeout=60)
    assert process.returncode == 69
    assert not any(alive(pid) for pid in pids)


@pytest.mark.parametrize("name", ["SIGHUP", "SIGINT"], ids=["nohup", "in the background of a script"])
def test_what_a_terminal_sends_stays_ignored_where_the_caller_ignores_it(tmp_path: Path, name: str) -> None:
    process = start_deaf(tmp_path, name)
    process.send_signal(signal.Signals[name])
    process.send_signal(signal.SIGUSR1)
    wait_until(lambda: len(list(tmp_path.glob("usr1-*"))) == 2, "both ranks live on")
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 7


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_what_a_scheduler_sends_is_taken_also_where_the_caller_ignores_it(tmp_path: Path, name: str) -> None:
    process = start_deaf(tmp_path, name)
    process.send_signal(signal.Signals[name])
    if name == "SIGUSR1":
        wait_until(lambda: len(list(tmp_path.glob("usr1-*"))) == 2, "both ranks counted")
        process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 7


def start_deaf(tmp_path: Path, name: str) -> subprocess.Popen[str]:
    """Two patient ranks under a caller that ignores one signal."""
    (tmp_path / "script.py").write_text(PATIENT)
    command = [*RUN, "--procs-per-node", "2", "--", sys.executable, "script.py"]
    ignore = f"import os, signal, sys; signal.signal(signal.{name}, signal.SIG_IGN);"
    process = start_python("-c", f"{ignore} os.execv(sys.executable, {[sys.executable, *command]!r})", cwd=tmp_path)
    wait_until(lambda: len(list(tmp_path.glob("ready-*"))) == 2, "both ranks are ready")
    return process


def test_what_a_rank_leaves_behind_is_ended_with_it(tmp_path: Path) -> None:
    run(tmp_path, "sleep 600 & echo $! > left-$RANK", ranks=1)
    pid = int((tmp_path / "left-0").read_text())
    wait_until(lambda: not alive(pid), "the process left behind is gone")


def test_ranks_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    process = start(tmp_path, STUBBORN)
    pids = [int(pid) for pid in _children(process.pid)]
    process.kill()
    process.communicate(timeout=30)
    wait_until(lambda: not any(alive(pid) for pid in pids), "no orphan", timeout_s=5)


def test_a_console_that_went_away_does_not_end_the_run(tmp_path: Path) -> None:
    command = (
        f"{sys.executable} -m entrypoint run --device cpu -- sh -c 'for i in 1 2 3 4 5; do echo $i; done; touch done'"
    )
    python("-c", f"import os; os.system({command!r} + ' | head -1')", cwd=tmp_path)
    assert (tmp_path / "done").exists()
    assert (tmp_path / "logs/rank-0000.log").read_text() == "1\n2\n3\n4\n5\n"


def test_a_second_wish_after_the_double_delivery_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("entrypoint.supervise.time.monotonic", lambda: clock[0])
    with SignalInbox() as inbox:
        for moment in (100.0, 100.01, 100.0 + SIGNAL_REPEAT_WINDOW_S):
            clock[0] = moment
            inbox._record(signal.SIGINT, None)
        assert inbox.drain() == [signal.SIGINT, signal.SIGINT]


def test_who_does_not_stop_in_its_time_is_not_said_to_want_memory(capfd: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        child = Child(world=worlds.ALONE, process=process, tee=None)  # type: ignore[arg-type]
        watch = Supervision([child], "host", False, Console(), alive=[child], stop_signal=signal.SIGTERM, kill_at=0.0)
        watch.kill_overdue()
        process.wait(10)
        watch.reap()
    output = capfd.readouterr().err
    assert "still running 600 s after the request to stop" in output
    assert "memory" not in output


def test_a_rank_without_a_handler_yet_is_said_to_be_stopped(capfd: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        child = Child(world=worlds.ALONE, process=process, tee=None)  # type: ignore[arg-type]
        watch = Supervision([child], "host", False, Console(), alive=[child])
        watch.forward(signal.SIGTERM)
        process.wait(10)
        watch.reap()
        watch.report()
    assert (watch.exit_code(), capfd.readouterr().err) == (75, "stopped by SIGTERM\n")


def test_a_save_that_may_take_longer_is_waited_for(tmp_path: Path) -> None:
    limits = HangTimeouts(start=60, step=None, evaluation=60, save=7200, data=60)
    child = Child(world=worlds.ALONE, process=None, tee=None)  # type: ignore[arg-type]
    care = SupervisionPolicy(limits=limits, errors=RunErrors(tmp_path))
    watch = Supervision(
        [child], "host", False, Console(is_terminal=False), hang=HangWatch(care, [child], "host", False)
    )
    assert watch.save_timeout_s == 7200


def test_on_a_terminal_a_wish_to_stop_is_acknowledged_once(tmp_path: Path) -> None:
    limits = HangTimeouts(start=60, step=None, evaluation=60, save=60, data=60)
    child = Child(world=worlds.ALONE, process=None, tee=None)  # type: ignore[arg-type]
    hang = HangWatch(SupervisionPolicy(limits=limits, errors=RunErrors(tmp_path)), [child], "host", False)
    with (tmp_path / "terminal").open("wb") as terminal:
        watch = Supervision([], "host", False, Console(err=terminal.fileno(), is_terminal=True), hang=hang)
        for _ in range(2):
            watch.forward(signal.SIGINT)
    assert (tmp_path / "terminal").read_text().count("stopping: ") == 1


def test_what_a_wish_to_stop_leads_to_is_said_as_its_command_words_it(tmp_path: Path) -> None:
    limits = HangTimeouts(start=60, step=None, evaluation=60, save=60, data=60)
    child = Child(world=worlds.ALONE, process=None, tee=None)  # type: ignore[arg-type]
    care = SupervisionPolicy(limits=limits, errors=RunErrors(tmp_path), promise=("nothing is kept", "for nothing"))
    with (tmp_path / "terminal").open("wb") as terminal:
        console = Console(err=terminal.fileno(), is_terminal=True)
        watch = Supervision([], "host", False, console, hang=HangWatch(care, [child], "host", False))
        watch.forward(signal.SIGINT)
        watch.first_failed = (child, 130)
        watch.report()
    output = (tmp_path / "terminal").read_text()
    assert output == "stopping: nothing is kept; Ctrl-C once more ends it at once\nstopped by SIGINT, for nothing\n"


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def _kill(pid: int) -> None:
    subprocess.run(["kill", "-KILL", str(pid)], check=True, timeout=10)
