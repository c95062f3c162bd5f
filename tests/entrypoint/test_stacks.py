"""What a silent process does, from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from processes import wait_until

from entrypoint import stacks
from entrypoint.heartbeat import DUMP_SIGNAL, HEARTBEAT_VARIABLE, HeartbeatChannel

# Holds the interpreter's lock in C: no Python code of this process runs any more.
DEAF = """
import ctypes, os
from entrypoint.heartbeat import attach_heartbeat
pulse = attach_heartbeat(os.environ)
def holds_the_lock():
    pulse.beat("step", "forward", step=1)
    ctypes.PyDLL(None).sleep(600)
holds_the_lock()
"""
PLAIN = "import time; print('up', flush=True); time.sleep(600)"
DUMP = f"""Thread 0x01 (most recent call first):
  File "/home/me/other.py", line 5 in background

Current thread 0x02 (most recent call first):
  File "{os.__file__}", line 1 in read
  File "/home/me/data.py", line 41 in __getitem__
"""


@contextmanager
def started(script: str, line: HeartbeatChannel) -> Iterator[subprocess.Popen[bytes]]:
    environ = {**os.environ, HEARTBEAT_VARIABLE: line.variable}
    fds = (line.page, line.stacks)
    with subprocess.Popen([sys.executable, "-c", script], env=environ, pass_fds=fds, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def line() -> HeartbeatChannel:
    return HeartbeatChannel()


@pytest.fixture(scope="module")
def deaf(line: HeartbeatChannel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    script = tmp_path_factory.mktemp("deaf") / "deaf.py"
    script.write_text(DEAF)
    with started(f"import runpy; runpy.run_path({str(script)!r})", line) as process:
        wait_until(lambda: (beat := line.read()) is not None and beat.step == 1, "it is deaf")
        yield process.pid


def test_a_stopped_process_is_looked_at_without_waking_it(deaf: int, line: HeartbeatChannel) -> None:
    os.kill(deaf, signal.SIGSTOP)
    wait_until(lambda: stacks.process_state(deaf) == "T", "it is stopped")
    collected = stacks.collect_stacks(deaf, line.stacks)
    assert (collected.state, collected.where) == ("T", None)
    assert "State:\tT (stopped)" in collected.text
    assert "Cpus_allowed" not in collected.text
    assert stacks.process_state(deaf) == "T"
    os.kill(deaf, signal.SIGCONT)


def test_a_process_that_holds_the_interpreters_lock_shows_its_stack(deaf: int, line: HeartbeatChannel) -> None:
    collected = stacks.collect_stacks(deaf, line.stacks)
    assert "in holds_the_lock" in collected.text
    assert collected.where is not None
    assert collected.where.endswith("deaf.py:7")


def test_a_process_without_our_handler_is_not_signalled(line: HeartbeatChannel) -> None:
    with started(PLAIN, line) as process:
        assert process.stdout is not None
        process.stdout.readline()
        collected = stacks.collect_stacks(process.pid, line.stacks)
        assert f"no Python stacks of process {process.pid}: it does not answer" in collected.text
        assert process.poll() is None


IN_PIECES = """
import os, signal, time
def dump(*_):
    os.write({fd}, b'Thread 0x01 (most recent call first):\\n  File "/t/other.py", line 5 in background\\n')
    time.sleep({pause})
    os.write({fd}, b'\\nThread 0x02 (most recent call first):\\n  File "/t/main.py", line 7 in <module>\\n')
signal.signal({signal}, dump)
print('up', flush=True)
while True:
    time.sleep(600)
"""


def test_a_process_that_is_held_up_while_it_writes_is_waited_for(line: HeartbeatChannel) -> None:
    script = IN_PIECES.format(fd=line.stacks, pause=4 * stacks.DUMP_QUIET_S, signal=int(DUMP_SIGNAL))
    with started(script, line) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert stacks.collect_stacks(process.pid, line.stacks).where == "/t/main.py:7"


def test_the_users_line_is_named_before_the_librarys(tmp_path: Path) -> None:
    assert stacks.innermost_frame(DUMP) == ("/home/me/data.py", "41")


@pytest.mark.parametrize(
    ("file", "waits"), [("/x/torch/distributed/distributed_c10d.py", True), ("/x/train/run/step.py", False)]
)
def test_a_rank_in_an_exchange_waits(file: str, waits: bool) -> None:
    assert stacks.is_in_collective(DUMP.replace(os.__file__, file)) is waits


WAITING = DUMP.replace(os.__file__, f"{Path(os.__file__).parent}/site-packages/torch/utils/data/dataloader.py")
IDLE, BUSY = WAITING, DUMP.replace("data.py", "reader.py")


def test_a_rank_that_waits_for_a_data_worker_stands_where_that_does() -> None:
    assert stacks._data_worker_frame(WAITING, [IDLE, BUSY]) == ("/home/me/reader.py", "41")


@pytest.mark.parametrize("rank", [DUMP, "", WAITING], ids=["computes", "is stopped", "has idle workers"])
def test_other_ranks_stand_where_they_are(rank: str) -> None:
    assert stacks._data_worker_frame(rank, [IDLE]) is None


def test_a_process_that_is_gone_has_no_state() -> None:
    assert stacks.process_state(2**22 + 1) == "?"
