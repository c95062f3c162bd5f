"""One rank's process."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from machines import machine
from processes import alive, start_python, wait_until

from entrypoint.children import Child, start_rank
from entrypoint.errors import ExitCode, Failure
from entrypoint.heartbeat import HeartbeatChannel
from entrypoint.launchers import local
from entrypoint.options import LaunchOptions
from entrypoint.plan import plan_allocation
from entrypoint.tee import Tee, open_log

WORLD = plan_allocation(local.single_node_allocation(machine()), LaunchOptions(), machine(), {}).world

# A parent that starts a child with our code, writes down its pid, and waits to be killed.
PARENT = """
import os, sys, time
from pathlib import Path
from entrypoint.children import start_rank
from entrypoint.tee import Tee, open_log
from entrypoint.world import World
one = dict(rank=0, local_rank=0, world_size=1, local_world_size=1, node_rank=0, num_nodes=1, master_port=1)
world = World(**one, master_addr="a")
child = start_rank(["sleep", "600"], os.environ, world, Tee(log=open_log(Path("."), 0), console=None))
Path("pid.new").write_text(str(child.process.pid)); Path("pid.new").rename("pid")
time.sleep(600)
"""


def started(tmp_path: Path, *command: str) -> Child:
    return start_rank(command, os.environ, WORLD, Tee(log=open_log(tmp_path, 0), console=None))


def ended(child: Child) -> int:
    code = child.process.wait(timeout=30)
    for stream in (child.process.stdout, child.process.stderr):
        stream.close()  # type: ignore[union-attr]
    child.tee.close()
    return code


def test_a_child_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    parent = start_python("-c", PARENT, cwd=tmp_path)
    wait_until((tmp_path / "pid").exists, "the child's pid")
    pid = int((tmp_path / "pid").read_text())
    parent.kill()
    parent.communicate(timeout=30)
    wait_until(lambda: not alive(pid), "the child is gone", timeout_s=5)


# What a rank does whose user presses Ctrl-C while it imports its modules.
INTERRUPTED = """
import os, signal, time
os.kill(os.getpid(), signal.SIGINT)
from entrypoint import attach_heartbeat
signal.signal(signal.SIGINT, lambda *_: os._exit(75))
attach_heartbeat(os.environ)
time.sleep(600)
"""


def test_ctrl_c_during_a_ranks_imports_waits_for_its_handler(tmp_path: Path) -> None:
    channel = HeartbeatChannel()
    tee = Tee(log=open_log(tmp_path, 0), console=None)
    child = start_rank([sys.executable, "-c", INTERRUPTED], os.environ, WORLD, tee, channel)
    assert ended(child) == ExitCode.STOPPED
    channel.close()


def test_a_child_has_a_session_of_its_own(tmp_path: Path) -> None:
    child = started(tmp_path, "sleep", "600")
    assert os.getsid(child.process.pid) == child.process.pid
    child.kill_group()
    assert ended(child) == -signal.SIGKILL


def test_killing_the_group_takes_what_the_child_started(tmp_path: Path) -> None:
    child = started(tmp_path, "sh", "-c", "sleep 600 & echo $!; wait")
    grandchild = int(child.process.stdout.readline())  # type: ignore[union-attr]
    child.kill_group()
    ended(child)
    wait_until(lambda: not alive(grandchild), "the grandchild is gone")


def test_signalling_a_child_that_has_ended_does_nothing(tmp_path: Path) -> None:
    child = started(tmp_path, "true")
    assert ended(child) == 0
    child.send(signal.SIGTERM)
    child.kill_group()


def test_a_command_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="no-such-program") as caught:
        started(tmp_path, "no-such-program")
    assert caught.value.code == 66


def test_a_command_for_which_there_is_no_process_left_is_not_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **options: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(Failure, match="no further process") as failed:
        started(tmp_path, "true")
    assert failed.value.code == ExitCode.RESOURCE
