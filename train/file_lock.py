"""A lock file lets only one process hold a name, also across the nodes of a cluster.

flock is not enough here: on NFS and Lustre it may be refused, or hold on one node only, without an
error. Creating a file with O_EXCL is exclusive everywhere. A lock is the file `NAME.1`; when its
holder is dead, the process that creates `NAME.2` first holds it (two may see the dead one at once:
only one of them wins), and so on. The holder touches its file every HEARTBEAT_S. A holder whose
file was not touched for STALE_S is dead, and on the same machine one whose process is gone. No
clocks are compared. A holder that only seemed dead (a machine that slept) finds that out at its
next heartbeat: its file is gone, or is not the newest.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from entrypoint import start_daemon_thread
from train import files

HEARTBEAT_S, STALE_S, POLL_S = 10.0, 60.0, 0.5
RELEASE_TIMEOUT_S = 10.0  # for a disk to let go of the lease: one that answers no more must not keep the process


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """Who holds a lease. machine: one boot of one kernel, and one container's view of its processes.

    launch: the key that all tasks of one start share. job, restart: the scheduler's. since: for people.
    """

    host: str
    pid: int
    began: str
    machine: str
    token: str
    launch: str = ""
    job: str = ""
    restart: int = 0
    since: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitOutcome:
    """How a wait ended. token: the holder's, where it was known. silent: the file of one that was not touched."""

    token: str | None
    silent: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLock:
    """What `acquire_lock` gives to the process that holds it."""

    path: Path
    number: int
    holder: LockHolder

    @contextmanager
    def held(self, lost: Callable[[], None] | None = None) -> Iterator[None]:
        """Touch the file until the block ends, however it ends; then give the lease back, if the disk answers.

        lost: called once, from another thread, if another holder took over meanwhile.
        """
        over, given_back = threading.Event(), threading.Event()
        beating = False

        def beat() -> None:
            try:
                self._beat(over, lost)
            finally:
                self.give_back()
                given_back.set()

        try:
            start_daemon_thread(beat)
            beating = True
            yield
        finally:
            over.set()
            if beating:
                given_back.wait(RELEASE_TIMEOUT_S)
            else:  # the system had no thread left, or a signal came before it could be known
                self.give_back()

    def _beat(self, over: threading.Event, lost: Callable[[], None] | None) -> None:
        while not over.wait(HEARTBEAT_S):
            if not is_still_held(self.path, self.number):
                if lost:
                    lost()
                return
            with suppress(OSError):
                os.utime(_lock_file(self.path, self.number))

    def give_back(self) -> None:
        """Remove the files, the newest first: as long as an older one is there, nobody can begin again at 1."""
        if os.path.lexists(_lock_file(self.path, self.number + 1)):
            return  # this process seemed dead: another one holds the lease now, and removes them all
        for number in sorted((n for n in _lock_numbers(self.path) if n <= self.number), reverse=True):
            with suppress(OSError):
                _lock_file(self.path, number).unlink()


def acquire_lock(path: Path, waited: WaitOutcome | None = None, me: LockHolder | None = None) -> FileLock | None:
    """Hold the lease `path`, or None where a living process does, or another was faster.

    me: under which name; by default this process's.

    Raises:
        OSError: where no file can be made.
    """
    number = _newest_number(path)
    judged = holder, touched = read_holder(path, number), _touched_ns(_lock_file(path, number))
    silent = waited is not None and waited.silent == (number, touched)
    if number and not silent and not has_ended(holder):
        return None
    file, mine = _lock_file(path, number + 1), me or this_process_as_holder()
    lease = FileLock(path=path, number=number + 1, holder=mine)
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        return None
    try:
        with os.fdopen(handle, "w") as stream:
            json.dump(asdict(mine), stream)
    except BaseException:
        lease.give_back()
        raise
    if (
        _newest_number(path) == lease.number
        and (read_holder(path, number), _touched_ns(_lock_file(path, number))) == judged
    ):
        return lease
    with suppress(OSError):  # before it was there, what was judged went, and another began anew
        file.unlink()
    return None


def wait_for_release(
    path: Path,
    look: Callable[[LockHolder | None], None],
    clock: Callable[[], float] = time.monotonic,
    beat: Callable[[LockHolder | None], None] = lambda _: None,
) -> WaitOutcome:
    """Return once the present holder gave the lease back, or is dead.

    Args:
        look: called every POLL_S with the holder, None while its name cannot be read.
        beat: called with the holder when it was seen to touch its file.
    """
    number, token, touched, since = _newest_number(path), None, -1, clock()
    while number and number == _newest_number(path):
        holder = read_holder(path, number)
        if holder and token not in (None, holder.token):
            break  # given back, and taken anew by another
        token = holder.token if holder else token
        if has_ended(holder):
            break
        if (now := _touched_ns(_lock_file(path, number))) != touched:
            if touched != -1 and now != -1:
                beat(holder)
            touched, since = now, clock()
        elif clock() - since > STALE_S:
            return WaitOutcome(token=token, silent=(number, touched))
        look(holder)
        time.sleep(POLL_S)
    return WaitOutcome(token=token)


def read_current_lock(path: Path) -> tuple[int, LockHolder | None]:
    """The number of the present lease, 0 where there is none, and its holder where that can be read."""
    number = _newest_number(path)
    return number, read_holder(path, number) if number else None


def assume_stale(path: Path) -> WaitOutcome:
    """As if the present holder had been waited for in vain: its successor knows better than its last touch."""
    number, holder = read_current_lock(path)
    return WaitOutcome(token=holder.token if holder else None, silent=(number, _touched_ns(_lock_file(path, number))))


def is_still_held(path: Path, number: int) -> bool:
    """Whether the lease with this number is still there, and the newest. True where the file server does not say."""
    try:
        os.listdir(path.parent)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return _newest_number(path) == number


def is_alive_here(holder: LockHolder | None) -> bool:
    """Whether the holder is a living process of this machine: then nobody has to wait for a sign of life."""
    return holder is not None and holder.machine == _machine_id() and not has_ended(holder)


def read_holder(path: Path, number: int) -> LockHolder | None:
    """Who holds lease `path` with this number; None where that cannot be read (yet)."""
    try:
        return _parse_holder(files.read_json(_lock_file(path, number)))
    except (OSError, ValueError, TypeError):
        return None


def _parse_holder(told: Any) -> LockHolder:
    """Raises TypeError where a part is missing, or is what no process has."""
    holder, numbers = LockHolder(**told), ("pid", "restart")
    right = all(type(value) is (int if name in numbers else str) for name, value in asdict(holder).items())
    if not right or not 0 < holder.pid < 1 << 31:
        raise TypeError("not what `take` writes")
    return holder


def this_process_as_holder(*, launch: str = "", job: str = "", restart: int = 0, since: str = "") -> LockHolder:
    """This process."""
    pid = os.getpid()
    return LockHolder(
        host=socket.gethostname().split(".")[0],
        pid=pid,
        began=_process_start_time(pid),
        machine=_machine_id(),
        token=os.urandom(8).hex(),
        launch=launch,
        job=job,
        restart=restart,
        since=since,
    )


def has_ended(holder: LockHolder | None) -> bool:
    """Whether the holder was a process of this machine and is none any more; its number may be another's by now."""
    if holder is None or holder.machine != _machine_id():
        return False
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # another user's
        return False
    return _process_start_time(holder.pid) not in (holder.began, "")


def _process_start_time(pid: int) -> str:
    """When a process began, in ticks of this boot; empty where /proc does not say. A dead one nobody waits for: "Z"."""
    try:  # the name in parentheses may itself hold spaces and parentheses
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "Z" if fields[0] == "Z" else fields[19]


def _machine_id() -> str:
    """This boot of this kernel, and this container's view of its processes; unlike any other where /proc is shut."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"unknown {os.urandom(8).hex()}"


def _lock_file(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _newest_number(path: Path) -> int:
    """The highest number of the lease's files, 0 where there is none."""
    return max(_lock_numbers(path), default=0)


def _lock_numbers(path: Path) -> list[int]:
    endings = (file.name.removeprefix(f"{path.name}.") for file in path.parent.glob(f"{path.name}.*"))
    return [int(ending) for ending in endings if re.fullmatch(r"[1-9]\d{0,17}", ending, re.ASCII)]


def _touched_ns(file: Path) -> int:
    """When, in nanoseconds; -1 without a file. Opened: only that makes NFS ask the server instead of its memory. Where
    this user may not (another's file, made under umask 077), that memory must do: it lasts less than STALE_S for a file
    that changes every HEARTBEAT_S."""
    with suppress(OSError):
        try:
            handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except PermissionError:
            return os.stat(file).st_mtime_ns
        try:
            return os.fstat(handle).st_mtime_ns
        finally:
            os.close(handle)
    return -1
