"""RunErrors is the folder errors/ of a run: the names of its files, who writes and reads them, and who is to blame.

Ranks, their parents and job scripts tell each other in this folder why a start ended. `cause` is the one rule that
chooses the error to blame, whoever asks.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from entrypoint.console import dump_json
from entrypoint.errors import ExitCode, Failure
from entrypoint.file_writer import MAX_WRITE_S, left_files, replace_file
from entrypoint.files import read_json_object

ERRORS_FOLDER: Final = "errors"
DEADLINE_CAUSE: Final = "deadline"  # the cause if a run stopped without a signal, because its time was up
_EXIT_FILE, _STOPPING_FILE, _DIVERGED_FILE = "exit.json", "stopping.json", "diverged.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunError:
    """Why one rank ended, or why a node could not be used: then there is no rank.

    Attributes:
        step: the last step that the rank finished, if it is known.
        killed: whether something outside the rank ended it, so that it could not report that itself.
        symptom: whether the rank only ended because of another one's end. Its writer knows that: a rank that lost a
            peer has the same exit code as one that was killed.
    """

    failure: Failure
    host: str
    rank: int | None = None
    step: int | None = None
    killed: bool = False
    symptom: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitRecord:
    """How a run ended: its exit code, its last finished step, and the cause in one line ("SIGUSR1", a failure)."""

    code: int
    step: int | None
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueDecision:
    """The exit code of a start, whether the job is requeued, and the hosts that it shall avoid."""

    code: int
    requeue: bool
    excluded_hosts: tuple[str, ...] = ()

    def __str__(self) -> str:
        action = "requeue" if self.requeue else "exit"
        return " ".join([str(self.code), action, ",".join(self.excluded_hosts)]).rstrip()


def blame_order(rank: int | None, *, killed: bool, symptom: bool) -> tuple[bool, bool, int]:
    """The sort key of blame: a killed rank, then one with its own error, then one that lost a peer; then the rank.

    The time does not count: the clocks of nodes differ.
    """
    return not killed, symptom, -1 if rank is None else rank


def cause(errors: Iterable[RunError]) -> RunError | None:
    """The error to blame; None without any."""
    return min(
        errors, key=lambda error: blame_order(error.rank, killed=error.killed, symptom=error.symptom), default=None
    )


@dataclass(frozen=True, slots=True)
class RunErrors:
    """The folder errors/. Its writers never raise and never follow a link out of the run's folder."""

    folder: Path

    @classmethod
    def in_run(cls, run_folder: Path) -> Self:
        """The errors/ of this run."""
        return cls(run_folder / ERRORS_FOLDER)

    def stacks_path(self, rank: int) -> Path:
        """The file with the stacks of a rank that was silent."""
        return self.folder / f"stacks-rank-{rank:04d}.txt"

    @property
    def collectives_prefix(self) -> Path:
        """What torch's flight recorder appends the rank to."""
        return self.folder.absolute() / "nccl-rank-"

    def status_paths(self, launch_id: str) -> list[Path]:
        """The files with which the tasks of one start tell each other the status of their ranks."""
        return sorted(self.folder.glob(f"{_status_prefix(launch_id)}*.json"))

    def status_path(self, launch_id: str, host: str, rank: int) -> Path:
        """The status file of the task whose first rank this is."""
        return self.folder / f"{_status_prefix(launch_id)}{host}-{rank:04d}.json"

    def write_file(self, path: Path, text: str, *, durable: bool = True, replace: bool = True) -> bool:
        """Write a file of this folder, whole or not at all; False if that failed. replace: as in `replace_file`."""
        if self.folder.is_symlink():  # it points outside the run's folder
            return False
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with replace_file(path, durable=durable, replace=replace) as stream:
                stream.write(text.encode(errors="backslashreplace"))
        except OSError:
            return False
        if durable:  # not with each sign of life: every task would list the folder every two seconds
            with suppress(OSError):
                for left in left_files(self.folder, [path.name], min_age_s=MAX_WRITE_S):
                    left.unlink()
        return True

    def write_exit(self, *, code: int, step: int | None, cause: str, replace: bool = True) -> bool:
        """Write exit.json. Rank 0 calls it after the commit and before the last barrier."""
        record = ExitRecord(code=int(code), step=step, cause=cause)
        written = self._write_json(_EXIT_FILE, asdict(record), replace=replace)
        self._remove(_STOPPING_FILE)
        return written

    def read_exit(self) -> ExitRecord | None:
        """Read exit.json; None if it is missing or unreadable."""
        values = read_json_object(self.folder / _EXIT_FILE)
        with suppress(KeyError, ValueError, TypeError, OverflowError):
            return ExitRecord(code=int(values["code"]), step=values["step"], cause=str(values["cause"]))
        return None

    def write(self, error: RunError) -> bool:
        """Write rank-NNNN.json with the console's facts, or node-HOST.json for a node on which no rank was started.

        exit.json cannot hold what a node reports: rank 0 on another node may be removing it at this moment.
        """
        facts = {"host": error.host, "killed": error.killed, "symptom": error.symptom}
        facts |= {} if error.rank is None else {"rank": error.rank}
        return self._write_json(_error_file(error.rank, error.host), error.failure.as_json() | facts)

    def write_cause(self, error: RunError) -> None:
        """Write a rank's error, and end the run with it. A symptom is the run's end only while no other cause is known.

        The file system decides that: this host may not see yet what another one has written.
        """
        self.write(error)
        self.write_exit(code=error.failure.code, step=error.step, cause=error.failure.what, replace=not error.symptom)

    def read(self) -> list[RunError]:
        """The readable errors of ranks."""
        return _read_errors(self.folder.glob("rank-*.json"))

    def write_stopping(self, *, by: str, save_s: float, clock: Callable[[], float] = time.time) -> bool:
        """Record that the last save has begun because of `by`, and how long a save takes.

        `write_exit` removes the file. If the start is killed before that, `describe_unfinished_save`
        can explain what happened.
        """
        return self._write_json(_STOPPING_FILE, {"by": by, "at": clock(), "save_s": round(save_s, 1)})

    def describe_unfinished_save(self) -> str | None:
        """The message about a start that was killed during its last save; None if the last start was not."""
        values = read_json_object(self.folder / _STOPPING_FILE)
        try:
            by, takes = str(values["by"]), float(values["save_s"])
            ahead = 60 * math.ceil(3 * takes / 60 + 0.5)
        except (KeyError, ValueError, TypeError, OverflowError):
            return None
        message = f"the last start was asked to stop by {by} and was killed before its checkpoint was committed"
        advice = f"set #SBATCH --signal=USR1@{ahead}, or give a longer grace time"
        return message if by == "SIGINT" else f"{message}; a save may take {takes:.1f} s: {advice}"

    def write_diverged(self, text: str) -> bool:
        """Write diverged.json: the last batches of a run whose loss is no longer finite."""
        return self.write_file(self.folder / _DIVERGED_FILE, text)

    def clear_rank(self, *, rank: int, world_size: int) -> None:
        """Remove the last start's files about this rank. Every rank calls it.

        Rank 0 also removes exit.json, and the files of ranks that this world does not have. It leaves the other
        ranks' files: a rank that failed early may already have written its own.
        """
        self._remove(_error_file(rank), self.stacks_path(rank).name)
        if rank == 0:
            self._remove(_EXIT_FILE, _STOPPING_FILE, _DIVERGED_FILE)
            stay = {_error_file(other) for other in range(world_size)}
            self._remove(*{path.name for path in self.folder.glob("rank-*.json")} - stay)

    def clear_exit(self) -> None:
        """Remove the last start's exit.json. The task of rank 0 calls it, in case a signal ends the ranks early."""
        self._remove(_EXIT_FILE)

    def clear_node(self, host: str) -> None:
        """Remove the last start's file about this node."""
        self._remove(_error_file(None, host))

    def clear_status(self, launch_id: str) -> None:
        """Remove the status files of other starts: a node that was lost could not remove its own."""
        prefix = _status_prefix(launch_id)
        self._remove(*(path.name for path in self.folder.glob("hang-*.json") if not path.name.startswith(prefix)))

    def _write_json(self, name: str, value: dict[str, Any], *, replace: bool = True) -> bool:
        return self.write_file(self.folder / name, f"{dump_json(value, indent=2)}\n", replace=replace)

    def _remove(self, *names: str) -> None:
        for name in names:
            with suppress(OSError):
                (self.folder / name).unlink()


def _error_file(rank: int | None, host: str = "") -> str:
    return f"node-{host}.json" if rank is None else f"rank-{rank:04d}.json"


def _status_prefix(launch_id: str) -> str:
    return f"hang-{re.sub(r'[^A-Za-z0-9]', '-', launch_id)}-" if launch_id else "hang-"


def _read_errors(paths: Iterable[Path]) -> list[RunError]:
    """The errors in these files. One that is being written or is not as `write` leaves it is passed over.

    A file of an earlier version says nothing of symptoms: then the code does.
    """
    errors = []
    for path in sorted(paths):
        facts = read_json_object(path)
        code, host, rank = (facts.get(name) for name in ("code", "host", "rank"))
        if type(code) is int and code in set(ExitCode) and type(host) is str and type(rank) in (int, type(None)):
            failure = Failure(
                str(facts.get("what", "")), found=str(facts.get("found", "")), fix="", code=ExitCode(code)
            )
            symptom = facts.get("symptom", failure.code.symptom) is True
            killed = facts.get("killed") is True
            errors.append(RunError(failure=failure, host=host, rank=rank, killed=killed, symptom=symptom))
    return errors


def decide_requeue(launcher_code: int, paths: Sequence[Path]) -> RequeueDecision:
    """Decide from the launcher's exit code and the files that this start wrote into the run's errors/.

    The code in exit.json wins over the launcher's, and that of the error to blame is next. The launcher's 73 stays:
    the run folder is locked by another start, and exit.json is that start's.
    """
    errors = _read_errors(path for path in paths if path.name != _EXIT_FILE)
    code, blamed = launcher_code, cause(errors)
    if code != ExitCode.OUTPUT:
        codes = [read_json_object(path).get("code") for path in paths if path.name == _EXIT_FILE]
        codes += [int(blamed.failure.code)] if blamed else []
        code = next((each for each in codes if type(each) is int), launcher_code)
    hosts = {
        host[0]
        for error in errors
        if error.failure.code == ExitCode.NODE
        and (host := re.match(r"[\w-]+", error.host, re.ASCII))  # Slurm's short name
    }
    requeue = code in set(ExitCode) and ExitCode(code).requeue
    return RequeueDecision(code=code, requeue=requeue, excluded_hosts=tuple(sorted(hosts)) if requeue else ())
