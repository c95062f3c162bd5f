"""A lock lets only one start at a time use the run's folder.

Every task reads the lock; the task that starts rank 0 holds it. A node that turns out to be
unusable leaves `errors/node-HOST.json` for the job script, because srun shows another exit code.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from entrypoint import ExitCode, Failure, RunError, RunErrors, job_info_from_environ
from train import file_lock, files
from train.file_lock import LockHolder, WaitOutcome

LOCK_NAME: Final = ".lease"  # the files' name may not change: starts of other versions look for it
HOLDER_NAME_TIMEOUT_S: Final = 3.0  # until a new lock file shows its holder's name on NFS
# A node that fails with one of these leaves its name.
NODE_FAILURE_CODES: Final = (ExitCode.NODE, ExitCode.IMAGE_MISMATCH)

LogFunction = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class RunLock:
    """The held lock of a run's folder, by its number. lost: whether another start has taken it over."""

    folder: Path
    number: int
    lost: bool = field(default=False)

    def is_lost(self) -> bool:
        """Read the files: whether another start holds the lock by now, or nobody."""
        self.lost = self.lost or not file_lock.is_still_held(self.folder / LOCK_NAME, self.number)
        return self.lost

    def token(self) -> str | None:
        """The holder's random token, which all restarts of this parent process share. None if it cannot be read.

        It is not the launch_id: tasks that do not hold the lock know only that, and a command typed again by hand
        may have the same one, but never the same token.
        """
        holder = file_lock.read_holder(self.folder / LOCK_NAME, self.number)
        return holder.token if holder else None

    def refuse_lost(self) -> None:
        """Refuse to commit without the lock: while this machine slept, another start may have continued the run.

        Raises:
            Failure: OUTPUT.
        """
        if self.is_lost():
            raise Failure(
                f"this start has lost the run's folder {self.folder}: it seemed dead, or the folder was removed",
                found=_describe_successor(file_lock.read_current_lock(self.folder / LOCK_NAME)[1]),
                fix="nothing, if that run goes on; else start the same command again",
                code=ExitCode.OUTPUT,
            )


def this_start_as_holder(environ: Mapping[str, str], *, launch_id: str, started_at: float) -> LockHolder:
    """This process as a lock's holder. launch_id: the Plan's, which all tasks of this start share.

    started_at: seconds since 1970.
    """
    job = job_info_from_environ(environ)
    return file_lock.this_process_as_holder(
        launch_id=launch_id,
        job=job.id if job else "",
        restart=job.restart if job else 0,
        since=datetime.fromtimestamp(started_at, UTC).isoformat(timespec="seconds"),
    )


def wait_until_unlocked(folder: Path, me: LockHolder, log: LogFunction, *, first: bool) -> WaitOutcome | None:
    """Return once no other living start holds `folder`; only reads. `lock_run_folder` takes the result.

    Args:
        first: whether this task starts rank 0 and will hold the lock. The other tasks of this start
            recognise its lock by `me.launch`.

    Raises:
        Failure: OUTPUT, naming the other start; LAUNCH_CONFLICT for a second rank 0 of the same start.
    """
    path, waited = folder / LOCK_NAME, None
    while True:
        with files.translate_os_errors(folder, "read"):
            number, holder = _wait_for_holder_name(path)
        if number == 0 or (holder and not first and holder.launch == me.launch):
            return waited
        waited = _wait_out_holder(path, holder, me, log)
        new_number, successor = file_lock.read_current_lock(path)
        same_holder = successor is None or successor.token == waited.token
        if new_number == 0 or (new_number == number and same_holder):
            return waited


def refuse_living_holder(folder: Path) -> str | None:
    """Read once, without waiting. Return who holds `folder`, if only a wait would show whether it lives.

    Raises:
        Failure: OUTPUT, as `wait_until_unlocked`, where a living process of this machine holds it.
    """
    with files.translate_os_errors(folder, "read"):
        number, holder = file_lock.read_current_lock(folder / LOCK_NAME)
    if number == 0 or file_lock.has_ended(holder):
        return None
    if file_lock.is_alive_here(holder):
        _raise_locked(folder / LOCK_NAME, holder, None)
    return _describe_holder(holder)


MAX_REMOVALS: Final = 10


def lock_run_folder(folder: Path, me: LockHolder, waited: WaitOutcome | None, log: LogFunction) -> file_lock.FileLock:
    """Acquire the lock of `folder`, and create the folder if need be. For the task that starts rank 0.

    Raises:
        Failure: OUTPUT, naming another start that was faster; as in `files.ERRNO_MEANINGS`.
    """
    removals = 0  # of folders, by starts that were refused, between the two calls
    while True:
        with files.translate_os_errors(folder):
            try:
                folder.mkdir(parents=True, exist_ok=True)
                lock = file_lock.acquire_lock(folder / LOCK_NAME, waited, me)
            except FileNotFoundError:
                removals += 1
                if folder.exists() or removals > MAX_REMOVALS:
                    raise
                continue
        if lock is not None:
            return lock
        waited = wait_until_unlocked(folder, me, log, first=True)


@contextmanager
def keep_run_lock(held: file_lock.FileLock, lost: Callable[[], None]) -> Iterator[RunLock]:
    """Keep the lock until the block ends. `lost` is called, from another thread, if another start took over.

    Raises:
        Failure: OUTPUT at the end of the block, if the lock was lost.
    """
    run_lock = RunLock(folder=held.path.parent, number=held.number)

    def mark_lost() -> None:
        run_lock.lost = True
        lost()

    with held.held(mark_lost):
        yield run_lock
        run_lock.refuse_lost()


def is_locked_by_another_job(folder: Path, environ: Mapping[str, str]) -> bool:
    """Whether another job seems to hold the folder; for callers that cannot wait."""
    number, holder = file_lock.read_current_lock(folder / LOCK_NAME)
    job = job_info_from_environ(environ)
    same_job = holder is not None and holder.job == (job.id if job else "")
    return number > 0 and not same_job and not file_lock.has_ended(holder)


def _wait_for_holder_name(path: Path) -> tuple[int, LockHolder | None]:
    """Return the current lock's number and holder.

    The name is written a moment after the file is created: without it, tasks would take the lock of
    their own start for another start's.
    """
    number, holder = file_lock.read_current_lock(path)
    until = time.monotonic() + HOLDER_NAME_TIMEOUT_S
    while number and holder is None and time.monotonic() < until:
        time.sleep(file_lock.POLL_S)
        number, holder = file_lock.read_current_lock(path)
    return number, holder


def _wait_out_holder(path: Path, holder: LockHolder | None, me: LockHolder, log: LogFunction) -> WaitOutcome:
    """Wait until the holder is gone or silent; not at all if it is an earlier start of this job."""
    if holder and me.job and holder.job == me.job and holder.restart < me.restart:
        log(f"taken over from {_describe_holder(holder)}: an earlier start of this job")
        return file_lock.assume_stale(path)
    if not file_lock.is_alive_here(holder) and not file_lock.has_ended(holder):
        log(
            f"{_describe_holder(holder)} holds the run's folder: waiting for a sign of life, "
            f"{file_lock.STALE_S:.0f} s at most"
        )
    waited = file_lock.wait_for_release(
        path,
        lambda current: _raise_locked(path, current, me) if file_lock.is_alive_here(current) else None,
        beat=lambda current: _raise_locked(path, current, me),
    )
    if waited.silent:
        log(f"taken over from {_describe_holder(holder)}: no sign of life for {file_lock.STALE_S:.0f} s")
    elif file_lock.has_ended(holder):
        log(f"taken over from {_describe_holder(holder)}, which has ended without giving the run's folder back")
    return waited


def _raise_locked(path: Path, holder: LockHolder | None, me: LockHolder | None) -> None:
    if holder and me and holder.launch == me.launch:
        raise Failure(
            "two processes say that they are rank 0 of this run",
            found=f"{_describe_holder(holder)}, and {me}",
            expected="each rank once",
            fix="give each machine its own --node-rank; or wait for the first, if the same command was started twice",
            code=ExitCode.LAUNCH_CONFLICT,
        )
    job = holder.job if holder else ""
    kill = f"kill {holder.pid} on {holder.host}" if holder else "end it"
    end_command = kill if not job else f"scancel {job}" if job.isdecimal() else f"cancel job {job}"
    raise Failure(
        f"another start of this run is at work in {path.parent}",
        found=_describe_holder(holder),
        expected="one start of a run at a time",
        fix=f"wait for it, or end it ({end_command}); for a run of its own set run.name",
        code=ExitCode.OUTPUT,
    )


def _describe_successor(holder: LockHolder | None) -> str:
    return f"held by {_describe_holder(holder)}" if holder else "its lock is gone"


def _describe_holder(holder: LockHolder | None) -> str:
    """`process 12 on node01 (Slurm job 7, start 2), since 2026-...`."""
    if holder is None:
        return "a process that has not said its name"
    scheduler = "Slurm " if holder.job.isdecimal() else ""
    job = f" ({scheduler}job {holder.job}, start {holder.restart + 1})" if holder.job else ""
    return f"{holder}{job}, since {holder.since}"


@contextmanager
def record_node_failure(run_folder: Path, environ: Mapping[str, str]) -> Iterator[None]:
    """Write `errors/node-HOST.json` if the block cannot use this node, in a scheduler's job only; re-raise.

    With several nodes, srun ends the other tasks and returns their 143; the job script needs the
    exit code, and the name of the node to leave out. If another job uses the folder, nothing is
    written: that job's script would read it.
    """
    try:
        yield
    except Failure as failure:
        host = _node_of_job(environ)
        if host and failure.code in NODE_FAILURE_CODES and not is_locked_by_another_job(run_folder, environ):
            RunErrors.in_run(run_folder).write(RunError(failure=failure, host=host))
        raise


def forget_node_failure(run_folder: Path, environ: Mapping[str, str]) -> None:
    """Remove the last start's failure of this node, which can be used again."""
    if host := _node_of_job(environ):
        RunErrors.in_run(run_folder).clear_node(host)


def _node_of_job(environ: Mapping[str, str]) -> str | None:
    """The name by which the scheduler leaves this node out; None outside a job."""
    job = job_info_from_environ(environ)
    return (job.node or socket.gethostname()) if job else None
