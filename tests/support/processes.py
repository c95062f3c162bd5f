"""Starting the real commands in tests: always with a time-out, and with an environment of their own."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from entrypoint import plan

TIMEOUT_S = 240.0
UNUSED = (
    10_000,
    plan.DEFAULT_PORT_RANGE[0] - 1,
)  # ports that no training takes, nor are given to one that asks for any


def python(
    *arguments: str, environ: Mapping[str, str] | None = None, **options: object
) -> subprocess.CompletedProcess[str]:
    """Run this Python to its end; never raises for an exit code."""
    command = [sys.executable, *arguments]
    settings = {"capture_output": True, "text": True, "timeout": TIMEOUT_S, "env": {**os.environ, **(environ or {})}}
    return subprocess.run(command, **(settings | options))  # type: ignore[call-overload,no-any-return]


def bare_python(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The same in an environment of its own: nothing of this process'."""
    environ = {"PATH": os.environ["PATH"], "HOME": ".", **variables}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60, env=environ)


def free_port() -> int:
    """A port of this machine's own address that nobody uses now, nor in the seconds until it is bound."""
    for port in random.sample(range(*UNUSED), 100):
        with socket.socket() as found, suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def own_launch_id(name: str) -> str:
    """A launch id that no other copy of these tests has, which somebody may run on this machine."""
    return f"{name} of process {os.getpid()}"


@cache
def candidates(name: str) -> tuple[int, ...]:
    """Free ports, as a training's, but of those that none of the trainings takes that other tests run meanwhile."""
    for number in range(100):
        ports = plan.candidate_ports(f"{own_launch_id(name)}, {number}", UNUSED)
        if all(map(_is_free, ports)):
            return ports
    raise AssertionError("no ports are free")


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind(("", port))
        except OSError:
            return False
    return True


def unmeasured() -> dict[str, str]:
    """This process' environment without coverage, for those that are signalled, or whose files are looked at, and for
    trainings that run the lines that others run too: each measured start is slower.

    A signal whose handler runs while coverage holds its own lock would find that lock held for ever.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_PROCESS")}


@contextmanager
def scratch() -> Iterator[str]:
    """A TMPDIR for programs that leave files in it: gone at the end.

    Not one of pytest's folders: the path of a socket in it would be longer than the kernel's 108 bytes.
    """
    with tempfile.TemporaryDirectory(prefix="t-", ignore_cleanup_errors=True) as folder:
        yield folder


class Started(subprocess.Popen[str]):
    """A process that a failed test does not wait for: it is killed where the `with` ends."""

    def __exit__(self, *error: object) -> None:
        if self.poll() is None:
            self.kill()
        super().__exit__(*error)  # type: ignore[arg-type]


def start_python(*arguments: str, environ: Mapping[str, str] | None = None, cwd: Path) -> Started:
    """Start this Python; the caller waits for it."""
    return Started(
        [sys.executable, *arguments],
        env={**unmeasured(), **(environ or {})},
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_until(holds: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    """Poll until something holds; fails by name when it never does."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(0.05)


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
