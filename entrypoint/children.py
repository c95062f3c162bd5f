"""A Child is one rank's process; it dies with its parent, and is killed with its process group."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from entrypoint.console import shell_command
from entrypoint.errors import ExitCode, Failure, resource_limit_failure
from entrypoint.heartbeat import HEARTBEAT_VARIABLE, HeartbeatChannel
from entrypoint.tee import Tee
from entrypoint.world import World

_PR_SET_PDEATHSIG = 1  # source: prctl(2)
_LIBC = ctypes.CDLL(None)


@dataclass(slots=True)
class Child:
    """A started rank and the Tee that its output goes to.

    heartbeat: the channel that it writes heartbeats to; None for a foreign command.
    """

    world: World
    process: subprocess.Popen[bytes]
    tee: Tee
    heartbeat: HeartbeatChannel | None = None

    @property
    def ended_early(self) -> bool:
        """Whether our worker exited with OK or STOPPED before its heartbeat phase was `end`."""
        if self.heartbeat is None or self.process.returncode not in (ExitCode.OK, ExitCode.STOPPED):
            return False
        beat = self.heartbeat.read()
        return beat is None or beat.phase != "end"

    @property
    def step(self) -> int | None:
        """The last step that it finished, according to its heartbeat."""
        beat = self.heartbeat.read() if self.heartbeat else None
        return beat.step if beat else None

    def send(self, signum: int) -> None:
        """Send a signal to the rank's process (its data loader workers end with it)."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signum)

    def kill_group(self) -> None:
        """Kill the rank and everything in its process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close the shared memory of its heartbeat."""
        if self.heartbeat:
            self.heartbeat.close()


def start_rank(
    command: Sequence[str],
    environ: Mapping[str, str],
    world: World,
    tee: Tee,
    heartbeat: HeartbeatChannel | None = None,
    cores: Collection[int] | None = None,
) -> Child:
    """Start one rank in a new session: a terminal's Ctrl-C reaches it only through the parent.

    cores: those that it may run on; None: this process's.

    Raises:
        Failure: NO_INPUT if the command cannot be started, RESOURCE if a process limit is reached.
    """
    parent = os.getpid()

    def prepare() -> None:
        die_with_parent(signal.SIGKILL, parent)
        if heartbeat:  # held back until `attach_heartbeat`: in an import, Python's own handler prints a traceback
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        if cores:
            with contextlib.suppress(OSError):  # the scheduler has taken them back: slower, not wrong
                os.sched_setaffinity(0, cores)

    heartbeat_variables = {HEARTBEAT_VARIABLE: heartbeat.variable} if heartbeat else {}
    try:
        process = subprocess.Popen(
            list(command),
            env={**environ, **heartbeat_variables},
            pass_fds=(heartbeat.page, heartbeat.stacks) if heartbeat else (),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=prepare,
        )
    except (OSError, ValueError) as error:
        tee.close()
        raise resource_limit_failure(error) or Failure(
            f"the command cannot be started: {error}",
            found=" ".join(command),
            fix="give a program that is in PATH, or python and a script: "
            + shell_command("entrypoint run -- python script.py"),
            code=ExitCode.NO_INPUT,
        ) from error
    return Child(world=world, process=process, tee=tee, heartbeat=heartbeat)


def die_with_parent(signum: int, parent: int) -> None:
    """Let the kernel send `signum` to this process when its parent ends.

    Exit now if the parent has ended already.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(int(ExitCode.PEER))
