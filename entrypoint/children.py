"""A Child is one rank's process, which dies with its parent and ends with all it started."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from entrypoint.errors import ExitCode, Failure, resource_limit_failure
from entrypoint.gauges import RESOURCES_VARIABLE as GAUGES
from entrypoint.gauges import ResourcePage
from entrypoint.heartbeat import HEARTBEAT_VARIABLE, HeartbeatChannel
from entrypoint.tee import Tee
from entrypoint.world import World

_PR_SET_PDEATHSIG = 1  # source: prctl(2)
_LIBC = ctypes.CDLL(None)


@dataclass(slots=True)
class Child:
    """A started rank and where its output goes. line: its sign of life; None for a command that is not ours.

    page: what it consumes; None where nobody measures that.
    """

    world: World
    process: subprocess.Popen[bytes]
    tee: Tee
    line: HeartbeatChannel | None = None
    page: ResourcePage | None = None

    @property
    def ended_early(self) -> bool:
        """Whether a rank of ours left as if it were done, or stopped and saved, before it said that it was."""
        if self.line is None or self.process.returncode not in (ExitCode.OK, ExitCode.STOPPED):
            return False
        beat = self.line.read()
        return beat is None or beat.phase != "end"

    @property
    def step(self) -> int | None:
        """The last step that it finished, as far as it said."""
        beat = self.line.read() if self.line else None
        return beat.step if beat else None

    def send(self, signum: int) -> None:
        """Signal the rank itself (its data loader workers follow it)."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signum)

    def kill_group(self) -> None:
        """End the rank and everything in its process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def forget(self) -> None:
        """Close what was opened to listen to it."""
        if self.line:
            self.line.close()
        if self.page:
            self.page.close()


def start_rank(
    command: Sequence[str],
    environ: Mapping[str, str],
    world: World,
    tee: Tee,
    line: HeartbeatChannel | None = None,
    page: ResourcePage | None = None,
) -> Child:
    """Start one rank in a session of its own, so that a terminal's Ctrl-C reaches it through the parent only.

    Raises:
        Failure: NO_INPUT, where the command cannot be started; RESOURCE, where nothing more can.
    """
    parent = os.getpid()
    listening = {HEARTBEAT_VARIABLE: line.variable} if line else {}
    measured = {GAUGES: str(page.descriptor)} if page else {}
    handed = (*((line.page, line.stacks) if line else ()), *((page.descriptor,) if page else ()))
    try:
        process = subprocess.Popen(
            list(command),
            env={**environ, **listening, **measured},
            pass_fds=handed,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(signal.SIGKILL, parent),
        )
    except (OSError, ValueError) as error:
        tee.close()
        raise resource_limit_failure(error) or Failure(
            f"the command cannot be started: {error}",
            found=" ".join(command),
            fix="give a program that is in PATH, or python and a script: entrypoint run -- python script.py",
            code=ExitCode.NO_INPUT,
        ) from error
    return Child(world=world, process=process, tee=tee, line=line, page=page)


def die_with_parent(signum: int, parent: int) -> None:
    """Ask the kernel for `signum` when the parent ends, however it ends; the check covers a parent already gone."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(int(ExitCode.PEER))
