"""The run's folder is used by one start at a time.

Every task looks at the lock; the task that starts rank 0 holds it. A node that turns out to be
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

from entrypoint import ExitCode, Failure
from train import file_lock, files
from train.file_lock import LockHolder, WaitOutcome
from train.run import exit_file

LOCK_NAME: Final = ".lease"
HOLDER_NAME_TIMEOUT_S: Final = 3.0  # for a lease to have its holder's name, as NFS shows it

LogFunction = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class RunLock:
    """The lease of a run's folder, by its number. lost: whether another start was seen to have taken it over."""

    folder: Path
    number: int
    lost: bool = field(default=False)

    def is_lost(self) -> bool:
        """Whether it is another start's, or nobody's, by now; looks."""
        self.lost = self.lost or not file_lock.is_still_held(self.folder / LOCK_NAME, self.number)
        return self.lost

    def token(self) -> str | None:
        """One name for everything that the parent process does under this lease; None where it cannot be read."""
        holder = file_lock.read_holder(self.folder / LOCK_NAME, self.number)
        return holder.token if holder else None

    def refuse_lost(self) -> None:
        """To be called before a commit: a machine that slept may have been given up, and its run gone on elsewhere.

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


def this_start_as_holder(environ: Mapping[str, str], *, launch: str, now: float) -> LockHolder:
    """This process, as others are to read it. `launch` is the same on all tasks of this start and on no other."""
    return file_lock.this_process_as_holder(
        launch=launch,
        job=environ.get("SLURM_JOB_ID", ""),
        restart=restart_count(environ),
        since=datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds"),
    )


def restart_count(environ: Mapping[str, str]) -> int:
    """How often the scheduler has put this job back into its queue."""
    count = environ.get("SLURM_RESTART_COUNT", "")
    return int(count) if count.isdecimal() else 0


def wait_until_unlocked(folder: Path, me: LockHolder, tell: LogFunction, *, first: bool) -> WaitOutcome | None:
    """Return once no other living start holds `folder`; only reads. What was waited for is for `lock_run_folder`.

    Args:
        first: whether this task starts rank 0, and holds the folder then; the others know it by `me.launch`.

    Raises:
        Failure: OUTPUT, naming the other start; LAUNCH_CONFLICT for a second rank 0 of the same start.
    """
    path, waited = folder / LOCK_NAME, None
    while True:
        with files.translate_os_errors(folder, "read"):
            number, holder = _wait_for_holder_name(path)
        if number == 0 or (holder and not first and holder.launch == me.launch):
            return waited
        waited = _wait_out_holder(path, holder, me, tell)
        now, successor = file_lock.read_current_lock(path)
        if now == 0 or (now == number and (successor is None or successor.token == waited.token)):
            return waited


def refuse_living_holder(folder: Path) -> str | None:
    """Look once, without waiting. Returns who else holds `folder`, where only a wait would show whether it lives.

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


def lock_run_folder(folder: Path, me: LockHolder, waited: WaitOutcome | None, tell: LogFunction) -> file_lock.FileLock:
    """Take the lease of `folder`, which is made if it is not there. For the task that starts rank 0.

    Raises:
        Failure: OUTPUT, naming another start that was faster; as in `files.ERRNO_MEANINGS`.
    """
    while True:
        with files.translate_os_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            held = file_lock.acquire_lock(folder / LOCK_NAME, waited, me)
        if held is not None:
            return held
        waited = wait_until_unlocked(folder, me, tell, first=True)


@contextmanager
def keep_run_lock(held: file_lock.FileLock, lost: Callable[[], None]) -> Iterator[RunLock]:
    """Keep the lease until the block ends. `lost` is called, from another thread, if another start took over.

    Raises:
        Failure: OUTPUT at the end of the block, if the lease was lost.
    """
    claim = RunLock(folder=held.path.parent, number=held.number)

    def note() -> None:
        claim.lost = True
        lost()

    with held.held(note):
        yield claim
        claim.refuse_lost()


def is_locked_by_another_job(folder: Path, environ: Mapping[str, str]) -> bool:
    """Whether the folder seems to be another job's just now: to be asked where nobody can wait."""
    number, holder = file_lock.read_current_lock(folder / LOCK_NAME)
    mine = holder is not None and holder.job == environ.get("SLURM_JOB_ID", "")
    return number > 0 and not mine and not file_lock.has_ended(holder)


def _wait_for_holder_name(path: Path) -> tuple[int, LockHolder | None]:
    """The present lease. A name is written a moment after the file is made: without it, tasks would take the lease of
    their own start for a stranger's."""
    found, until = file_lock.read_current_lock(path), time.monotonic() + HOLDER_NAME_TIMEOUT_S
    while found[0] and found[1] is None and time.monotonic() < until:
        time.sleep(file_lock.POLL_S)
        found = file_lock.read_current_lock(path)
    return found


def _wait_out_holder(path: Path, holder: LockHolder | None, me: LockHolder, tell: LogFunction) -> WaitOutcome:
    """Until the holder is gone, silent, or an earlier start of this very job."""
    if holder and me.job and holder.job == me.job and holder.restart < me.restart:
        tell(f"taken over from {_describe_holder(holder)}: an earlier start of this job")
        return file_lock.assume_stale(path)
    if not file_lock.is_alive_here(holder) and not file_lock.has_ended(holder):
        tell(
            f"{_describe_holder(holder)} holds the run's folder: waiting for a sign of life, "
            f"{file_lock.STALE_S:.0f} s at most"
        )
    waited = file_lock.wait_for_release(
        path, lambda now: _refuse_living_process(path, now, me), beat=lambda now: _raise_locked(path, now, me)
    )
    if waited.silent:
        tell(f"taken over from {_describe_holder(holder)}: no sign of life for {file_lock.STALE_S:.0f} s")
    elif file_lock.has_ended(holder):
        tell(f"taken over from {_describe_holder(holder)}, which has ended without giving the run's folder back")
    return waited


def _refuse_living_process(path: Path, holder: LockHolder | None, me: LockHolder) -> None:
    if file_lock.is_alive_here(holder):
        _raise_locked(path, holder, me)


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
    end = f"scancel {job}" if job else f"kill {holder.pid} on {holder.host}" if holder else "end it"
    raise Failure(
        f"another start of this run is at work in {path.parent}",
        found=_describe_holder(holder),
        expected="one start of a run at a time",
        fix=f"wait for it, or end it ({end}); for a run of its own set run.name",
        code=ExitCode.OUTPUT,
    )


def _describe_successor(holder: LockHolder | None) -> str:
    return f"held by {_describe_holder(holder)}" if holder else "its lease is gone"


def _describe_holder(holder: LockHolder | None) -> str:
    """`process 12 on node01 (Slurm job 7, start 2), since 2026-...`."""
    if holder is None:
        return "a process that has not said its name"
    job = f" (Slurm job {holder.job}, start {holder.restart + 1})" if holder.job else ""
    return f"{holder}{job}, since {holder.since}"


@contextmanager
def record_node_failure(run_folder: Path, environ: Mapping[str, str]) -> Iterator[None]:
    """Leave `errors/node-HOST.json` where the block finds this node unusable, in a Slurm job only; raise all the same.

    With several nodes, srun ends the others and returns their 143; the job script has to know which node to leave out.
    Nothing is left in a folder that another job is at work in: it is that job's script that reads it.
    """
    try:
        yield
    except Failure as failure:
        if (
            failure.code == ExitCode.NODE
            and _in_slurm_job(environ)
            and not is_locked_by_another_job(run_folder, environ)
        ):
            exit_file.write_node_failure(run_folder, failure, host=_slurm_node_name(environ))
        raise


def forget_node_failure(run_folder: Path, environ: Mapping[str, str]) -> None:
    """Remove what the last start said of this node, which can be used again."""
    if _in_slurm_job(environ):
        exit_file.clear_node_failure(run_folder, host=_slurm_node_name(environ))


def _in_slurm_job(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("SLURM_JOB_ID"))


def _slurm_node_name(environ: Mapping[str, str]) -> str:
    """The name by which Slurm leaves it out."""
    return environ.get("SLURMD_NODENAME") or socket.gethostname()
