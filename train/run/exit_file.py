"""errors/{exit,rank-NNNN,node-HOST}.json tell batch scripts and people how a run ended."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from entrypoint import Failure
from train import files

ERRORS_FOLDER, EXIT_FILE, STOPPING_FILE = "errors", "exit.json", "stopping.json"
DEADLINE_CAUSE = "deadline"  # the cause of an ending for which nobody sent a signal: the time was up
DIVERGED_FILE = "diverged.json"  # the last batches of a run whose numbers are not finite any more


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitRecord:
    """Why a run ended: its exit code, the last finished step, and in one line the cause ("SIGUSR1", a failure)."""

    code: int
    step: int | None
    cause: str


def write_exit(run_folder: Path, *, code: int, step: int | None, cause: str) -> bool:
    """Write `errors/exit.json` durably. On rank 0, after the commit and before the last barrier.

    Never fails the run: False when it could not be written.
    """
    written = _try_write_json(
        run_folder / ERRORS_FOLDER / EXIT_FILE, asdict(ExitRecord(code=int(code), step=step, cause=cause))
    )
    files.remove(run_folder / ERRORS_FOLDER / STOPPING_FILE)
    return written


def read_exit(run_folder: Path) -> ExitRecord | None:
    """What `write_exit` left; None when there is none or it is unreadable."""
    try:
        found = files.read_json(run_folder / ERRORS_FOLDER / EXIT_FILE)
        return ExitRecord(code=int(found["code"]), step=found["step"], cause=str(found["cause"]))
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return None


def write_stopping(run_folder: Path, *, by: str, save_s: float, clock: Callable[[], float] = time.time) -> bool:
    """Say that the last save has begun, because of `by`, and how long one takes: `write_exit` removes it again.

    Who finds it (`describe_unfinished_save`) knows what became of a start that was killed too early to say anything.
    """
    return _try_write_json(
        run_folder / ERRORS_FOLDER / STOPPING_FILE, {"by": by, "at": clock(), "save_s": round(save_s, 1)}
    )


def describe_unfinished_save(run_folder: Path) -> str | None:
    """What to say of a start that was asked to stop and killed before its checkpoint was committed; None of others."""
    try:
        found = files.read_json(run_folder / ERRORS_FOLDER / STOPPING_FILE)
        by, takes = str(found["by"]), float(found["save_s"])
        ahead = 60 * math.ceil(3 * takes / 60 + 0.5)
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return None
    said = f"the last start was asked to stop by {by} and was killed before its checkpoint was committed"
    advice = f"set #SBATCH --signal=USR1@{ahead}, or give a longer grace time"
    return said if by == "SIGINT" else f"{said}; a save may take {takes:.1f} s: {advice}"


def clear_rank(run_folder: Path, *, rank: int, world_size: int) -> None:
    """Remove what the last start said about this rank, so that nobody reads it as this start's. On every rank.

    Rank 0 also removes the ending, and what ranks said that this world no longer has; not the others' files: a rank
    that failed early may already have written its own.
    """
    folder = run_folder / ERRORS_FOLDER
    files.remove(_rank_file(folder, rank))
    files.remove(folder / f"stacks-rank-{rank:04d}.txt")
    if rank == 0:
        files.remove(folder / EXIT_FILE)
        files.remove(folder / STOPPING_FILE)
        files.remove(folder / DIVERGED_FILE)
        stay = {_rank_file(folder, other) for other in range(world_size)}
        for path in set(folder.glob("rank-*.json")) - stay:
            files.remove(path)


def clear_exit(run_folder: Path) -> None:
    """Remove how the last start ended. By the task that starts rank 0: a signal may end its ranks before they can."""
    files.remove(run_folder / ERRORS_FOLDER / EXIT_FILE)


def write_rank_failure(run_folder: Path, failure: Failure, *, rank: int, host: str) -> bool:
    """Write `errors/rank-NNNN.json`, the same block as on the console. Never fails; False when it could not."""
    return _try_write_json(
        _rank_file(run_folder / ERRORS_FOLDER, rank), failure.as_json() | {"rank": rank, "host": host}
    )


def write_node_failure(run_folder: Path, failure: Failure, *, host: str) -> bool:
    """Write `errors/node-HOST.json`: a node on which no rank was started. Never fails; False when it could not.

    `exit.json` will not do: rank 0 on another node may be clearing it at this moment.
    """
    return _try_write_json(_node_file(run_folder / ERRORS_FOLDER, host), failure.as_json() | {"host": host})


def clear_node_failure(run_folder: Path, *, host: str) -> None:
    """Remove what the last start said of this node."""
    files.remove(_node_file(run_folder / ERRORS_FOLDER, host))


def _node_file(folder: Path, host: str) -> Path:
    return folder / f"node-{host}.json"


def _rank_file(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank:04d}.json"


def _try_write_json(path: Path, value: object) -> bool:
    if path.parent.is_symlink():
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_json(path, value)
    except (OSError, Failure):
        return False
    return True
