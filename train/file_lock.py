"""A lock file lets only one process hold a name, also across the nodes of a cluster.

flock is not enough: on NFS and Lustre it may be refused, or hold on one node only, without an
error. Creating a file with O_EXCL is exclusive everywhere.

A lock is the file `NAME.1`. When its holder is dead, the first process that creates `NAME.2` holds
the lock, and so on. If two processes see the dead holder, only one of them creates the file. The
holder touches its file every HEARTBEAT_S. It counts as dead if its file was not touched for
STALE_S, or if its process on the same machine is gone. No clocks are compared. A holder that only
seemed dead, because its machine slept, notices that at its next heartbeat: its file is gone, or is
not the newest.

filelock's SoftFileLease (4.2) cannot replace this module. Its record has no field for the job and
restart, so it cannot name the job that holds a run. A restart could take over at once only with
`force_break`, and two restarts that do so both hold the lease. A zombie counts as alive there.
psutil finds a process's start time from the wall clock, so setting the clock changes it.
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

from entrypoint import ExitCode, Failure, start_daemon_thread
from train import files

HEARTBEAT_S, STALE_S, POLL_S = 10.0, 60.0, 0.5
RELEASE_TIMEOUT_S = 10.0  # for removing the lock's files: a disk that does not answer must not keep the process


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """The process that holds a lock.

    The fields' names are the keys of the lock's file.

    machine: the id of one boot of one kernel, and of one container's process namespace. token: random,
    of this holder alone. launch: the launch_id, which all tasks of one start share, and which a later
    start by hand may repeat. job, restart: the scheduler's. since: for people.
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
    """How a wait ended.

    token: the holder's, if it could be read. silent: if the holder did not touch its file, the lock's
    number and the time of the last touch.
    """

    token: str | None
    silent: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLock:
    """A lock that this process holds, from `acquire_lock`."""

    path: Path
    number: int
    holder: LockHolder

    @contextmanager
    def held(self, lost: Callable[[], None] | None = None) -> Iterator[None]:
        """Touch the file until the block ends, then release the lock, if the disk answers.

        lost: called once, from another thread, if another holder took over meanwhile.
        """
        over, released = threading.Event(), threading.Event()
        beating = False

        def beat() -> None:
            try:
                while not over.wait(HEARTBEAT_S):
                    if not is_still_held(self.path, self.number):
                        if lost:
                            lost()
                        return
                    with suppress(OSError):
                        os.utime(_lock_file(self.path, self.number))
            finally:
                self.release()
                released.set()

        try:
            start_daemon_thread(beat)
            beating = True
            yield
        finally:
            over.set()
            if beating:
                released.wait(RELEASE_TIMEOUT_S)
            else:  # the system had no thread left, or a signal came first
                self.release()

    def release(self) -> None:
        """Remove the files, the newest first: while an older one exists, no process can begin again at 1."""
        if os.path.lexists(_lock_file(self.path, self.number + 1)):
            return  # this process seemed dead: another one holds the lock now, and removes all files
        for number in sorted((n for n in _lock_numbers(self.path) if n <= self.number), reverse=True):
            with suppress(OSError):
                _lock_file(self.path, number).unlink()


def acquire_lock(path: Path, waited: WaitOutcome | None = None, me: LockHolder | None = None) -> FileLock | None:
    """Acquire the lock `path`; None if a living process holds it, or if another process was faster.

    me: the holder to record; by default this process.

    Raises:
        OSError: no file can be created.
    """
    number = _newest_number(path)
    judged = holder, touched = read_holder(path, number), _touched_ns(_lock_file(path, number))
    silent = waited is not None and waited.silent == (number, touched)
    if number and not silent and not has_ended(holder):
        return None
    file, new_holder = _lock_file(path, number + 1), me or this_process_as_holder()
    lock = FileLock(path=path, number=number + 1, holder=new_holder)
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        return None
    try:
        with os.fdopen(handle, "w") as stream:
            json.dump(asdict(new_holder), stream)
    except BaseException:
        lock.release()
        raise
    if (
        _newest_number(path) == lock.number
        and (read_holder(path, number), _touched_ns(_lock_file(path, number))) == judged
    ):
        return lock
    with suppress(OSError):  # the dead holder's file went before ours existed, and another process began at 1
        file.unlink()
    return None


@contextmanager
def only_writer(path: Path, *, fix: str) -> Iterator[None]:
    """Hold the lock `path`, a hidden name in the folder that the block writes.

    Whether a writer on another machine lives is known after HEARTBEAT_S to STALE_S.

    Raises:
        Failure: OUTPUT with `fix` if another process holds it, whose name it tells; as in `files.ERRNO_MEANINGS`.
    """

    def refuse(holder: LockHolder | None) -> None:
        name = f"{holder}, since {holder.since}" if holder else f"a living process; its lock is {path}.*"
        raise Failure(f"another process writes into {path.parent}", found=name, fix=fix, code=ExitCode.OUTPUT)

    waited, me = None, this_process_as_holder(since=time.strftime("%Y-%m-%d %H:%M:%S"))
    with files.translate_os_errors(path.parent):
        while (lock := acquire_lock(path, waited, me)) is None:
            if is_alive_here(holder := read_current_lock(path)[1]):
                refuse(holder)
            waited = wait_for_release(path, lambda _: None, beat=refuse)
    with lock.held():
        yield


def wait_for_release(
    path: Path,
    look: Callable[[LockHolder | None], None],
    clock: Callable[[], float] = time.monotonic,
    beat: Callable[[LockHolder | None], None] = lambda _: None,
) -> WaitOutcome:
    """Return once the current holder has released the lock, or is dead.

    Args:
        look: called every POLL_S with the holder, None while its name cannot be read.
        beat: called with the holder when it has touched its file.
    """
    number, token, touched, since = _newest_number(path), None, -1, clock()
    while number and number == _newest_number(path):
        holder = read_holder(path, number)
        if holder and token not in (None, holder.token):
            break  # released, and acquired by another process
        token = holder.token if holder else token
        if has_ended(holder):
            break
        if (newest := _touched_ns(_lock_file(path, number))) != touched:
            if touched != -1 and newest != -1:
                beat(holder)
            touched, since = newest, clock()
        elif clock() - since > STALE_S:
            return WaitOutcome(token=token, silent=(number, touched))
        look(holder)
        time.sleep(POLL_S)
    return WaitOutcome(token=token)


def read_current_lock(path: Path) -> tuple[int, LockHolder | None]:
    """The number of the current lock, 0 if there is none, and its holder if it can be read."""
    number = _newest_number(path)
    return number, read_holder(path, number) if number else None


def assume_stale(path: Path) -> WaitOutcome:
    """The outcome of a wait for a silent holder, without the wait: the caller knows that the holder is gone."""
    number, holder = read_current_lock(path)
    return WaitOutcome(token=holder.token if holder else None, silent=(number, _touched_ns(_lock_file(path, number))))


def is_still_held(path: Path, number: int) -> bool:
    """Whether the lock with this number exists and is the newest. True if the file server does not answer."""
    try:
        os.listdir(path.parent)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return _newest_number(path) == number


def is_alive_here(holder: LockHolder | None) -> bool:
    """Whether the holder is a living process of this machine: then no wait is needed to know that it lives."""
    return holder is not None and holder.machine == _machine_id() and not has_ended(holder)


def read_holder(path: Path, number: int) -> LockHolder | None:
    """The holder of the lock `path` with this number; None if it cannot be read (yet)."""
    try:
        holder = LockHolder(**files.read_json(_lock_file(path, number)))
    except (OSError, ValueError, TypeError):
        return None
    numbers = ("pid", "restart")
    valid = all(type(value) is (int if name in numbers else str) for name, value in asdict(holder).items())
    return holder if valid and 0 < holder.pid < 1 << 31 else None


def this_process_as_holder(*, launch_id: str = "", job: str = "", restart: int = 0, since: str = "") -> LockHolder:
    """This process as a lock's holder."""
    pid = os.getpid()
    return LockHolder(
        host=socket.gethostname().split(".")[0],
        pid=pid,
        began=_process_start_time(pid),
        machine=_machine_id(),
        token=os.urandom(8).hex(),
        launch=launch_id,
        job=job,
        restart=restart,
        since=since,
    )


def has_ended(holder: LockHolder | None) -> bool:
    """Whether the holder was a process of this machine and has ended; another process may have its id by now."""
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
    """When a process began, in ticks since boot; empty if /proc does not say; "Z" for a zombie."""
    try:  # the name in parentheses may itself hold spaces and parentheses
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "Z" if fields[0] == "Z" else fields[19]


def _machine_id() -> str:
    """The id of this boot and of this process namespace; a random id if /proc cannot be read."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"unknown {os.urandom(8).hex()}"


def _lock_file(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _newest_number(path: Path) -> int:
    """The highest number of the lock's files, 0 if there is none."""
    return max(_lock_numbers(path), default=0)


def _lock_numbers(path: Path) -> list[int]:
    # Of any length: whoever takes over a number gives the next one, which must count too.
    endings = (file.name.removeprefix(f"{path.name}.") for file in path.parent.glob(f"{path.name}.*"))
    return [int(ending) for ending in endings if re.fullmatch(r"[1-9]\d*", ending, re.ASCII)]


def _touched_ns(file: Path) -> int:
    """When the file was touched, in nanoseconds; -1 if it is missing.

    The file is opened, because only that makes NFS ask the server instead of its cache. If this user may not open it
    (another user's, created under umask 077), the cache must do: for a file that changes every HEARTBEAT_S, it
    lasts less than STALE_S.
    """
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
