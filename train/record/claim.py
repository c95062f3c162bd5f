"""The run's folder belongs to one start at a time: every task looks, the one that starts rank 0 holds it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from entrypoint import ExitCode, Failure
from train.files import lease, refusals
from train.files.lease import Holder, Waited

NAME: Final = ".lease"
NAMED_S: Final = 3.0  # for a lease to have its holder's name, as NFS shows it

Tell = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class Claim:
    """The lease of a run's folder, by its number. lost: whether another start was seen to have taken it over."""

    folder: Path
    number: int
    lost: bool = field(default=False)

    def is_lost(self) -> bool:
        """Whether it is another start's, or nobody's, by now; looks."""
        self.lost = self.lost or not lease.holds(self.folder / NAME, self.number)
        return self.lost

    def token(self) -> str | None:
        """One name for everything that the parent process does under this lease; None where it cannot be read."""
        holder = lease.read(self.folder / NAME, self.number)
        return holder.token if holder else None

    def refuse_lost(self) -> None:
        """To be called before a commit: a machine that slept may have been given up, and its run gone on elsewhere.

        Raises:
            Failure: OUTPUT.
        """
        if self.is_lost():
            raise Failure(
                f"this start has lost the run's folder {self.folder}: it seemed dead, or the folder was removed",
                found=_successor(lease.newest(self.folder / NAME)[1]),
                fix="nothing, if that run goes on; else start the same command again",
                code=ExitCode.OUTPUT,
            )


def starter(environ: Mapping[str, str], *, launch: str, now: float) -> Holder:
    """This process, as others are to read it. `launch` is the same on all tasks of this start and on no other."""
    return lease.myself(
        launch=launch,
        job=environ.get("SLURM_JOB_ID", ""),
        restart=restart(environ),
        since=datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds"),
    )


def restart(environ: Mapping[str, str]) -> int:
    """How often the scheduler has put this job back into its queue."""
    count = environ.get("SLURM_RESTART_COUNT", "")
    return int(count) if count.isdecimal() else 0


def refuse_taken(folder: Path, me: Holder, tell: Tell, *, first: bool) -> Waited | None:
    """Return once no other living start holds `folder`; only reads. What was waited for is for `hold`.

    Args:
        first: whether this task starts rank 0, and holds the folder then; the others know it by `me.launch`.

    Raises:
        Failure: OUTPUT, naming the other start; FACTS for a second rank 0 of the same start.
    """
    path, waited = folder / NAME, None
    while True:
        with refusals.told(folder, "read"):
            number, holder = _present(path)
        if number == 0 or (holder and not first and holder.launch == me.launch):
            return waited
        waited = _outlive(path, holder, me, tell)
        now, successor = lease.newest(path)
        if now == 0 or (now == number and (successor is None or successor.token == waited.token)):
            return waited


def refuse_living(folder: Path) -> str | None:
    """Look once, without waiting. Returns who else holds `folder`, where only a wait would show whether it lives.

    Raises:
        Failure: OUTPUT, as `refuse_taken`, where a living process of this machine holds it.
    """
    with refusals.told(folder, "read"):
        number, holder = lease.newest(folder / NAME)
    if number == 0 or lease.ended(holder):
        return None
    if lease.lives_here(holder):
        _refuse(folder / NAME, holder, None)
    return _named(holder)


def hold(folder: Path, me: Holder, waited: Waited | None, tell: Tell) -> lease.Lease:
    """Take the lease of `folder`, which is made if it is not there. For the task that starts rank 0.

    Raises:
        Failure: OUTPUT, naming another start that was faster; as in `refusals.MEANING`.
    """
    while True:
        with refusals.told(folder):
            folder.mkdir(parents=True, exist_ok=True)
            held = lease.take(folder / NAME, waited, me)
        if held is not None:
            return held
        waited = refuse_taken(folder, me, tell, first=True)


@contextmanager
def kept(held: lease.Lease, lost: Callable[[], None]) -> Iterator[Claim]:
    """Keep the lease until the block ends. `lost` is called, from another thread, if another start took over.

    Raises:
        Failure: OUTPUT at the end of the block, if the lease was lost.
    """
    claim = Claim(folder=held.path.parent, number=held.number)

    def note() -> None:
        claim.lost = True
        lost()

    with held.held(note):
        yield claim
        claim.refuse_lost()


def held_by_another(folder: Path, environ: Mapping[str, str]) -> bool:
    """Whether the folder seems to be another job's just now: to be asked where nobody can wait."""
    number, holder = lease.newest(folder / NAME)
    mine = holder is not None and holder.job == environ.get("SLURM_JOB_ID", "")
    return number > 0 and not mine and not lease.ended(holder)


def _present(path: Path) -> tuple[int, Holder | None]:
    """The present lease. A name is written a moment after the file is made: without it, tasks would take the lease of
    their own start for a stranger's."""
    found, until = lease.newest(path), time.monotonic() + NAMED_S
    while found[0] and found[1] is None and time.monotonic() < until:
        time.sleep(lease.POLL_S)
        found = lease.newest(path)
    return found


def _outlive(path: Path, holder: Holder | None, me: Holder, tell: Tell) -> Waited:
    """Until the holder is gone, silent, or an earlier start of this very job."""
    if holder and me.job and holder.job == me.job and holder.restart < me.restart:
        tell(f"taken over from {_named(holder)}: an earlier start of this job")
        return lease.overdue(path)
    if not lease.lives_here(holder) and not lease.ended(holder):
        tell(f"{_named(holder)} holds the run's folder: waiting for a sign of life, {lease.STALE_S:.0f} s at most")
    waited = lease.wait(path, lambda now: _refuse_living(path, now, me), beat=lambda now: _refuse(path, now, me))
    if waited.silent:
        tell(f"taken over from {_named(holder)}: no sign of life for {lease.STALE_S:.0f} s")
    elif lease.ended(holder):
        tell(f"taken over from {_named(holder)}, which has ended without giving the run's folder back")
    return waited


def _refuse_living(path: Path, holder: Holder | None, me: Holder) -> None:
    if lease.lives_here(holder):
        _refuse(path, holder, me)


def _refuse(path: Path, holder: Holder | None, me: Holder | None) -> None:
    if holder and me and holder.launch == me.launch:
        raise Failure(
            "two processes say that they are rank 0 of this run",
            found=f"{_named(holder)}, and {me}",
            expected="each rank once",
            fix="give each machine its own --node-rank; or wait for the first, if the same command was started twice",
            code=ExitCode.FACTS,
        )
    job = holder.job if holder else ""
    end = f"scancel {job}" if job else f"kill {holder.pid} on {holder.host}" if holder else "end it"
    raise Failure(
        f"another start of this run is at work in {path.parent}",
        found=_named(holder),
        expected="one start of a run at a time",
        fix=f"wait for it, or end it ({end}); for a run of its own set run.name",
        code=ExitCode.OUTPUT,
    )


def _successor(holder: Holder | None) -> str:
    return f"held by {_named(holder)}" if holder else "its lease is gone"


def _named(holder: Holder | None) -> str:
    """`process 12 on node01 (Slurm job 7, start 2), since 2026-...`."""
    if holder is None:
        return "a process that has not said its name"
    job = f" (Slurm job {holder.job}, start {holder.restart + 1})" if holder.job else ""
    return f"{holder}{job}, since {holder.since}"
