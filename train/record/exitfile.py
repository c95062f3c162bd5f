"""The end of a run becomes `errors/{exit,rank-NNNN,node-HOST}.json`, which batch scripts and people read."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from entrypoint import Failure
from train.files import durable, plain

FOLDER, NAME, STOP = "errors", "exit.json", "stopping.json"
DEADLINE = "deadline"  # the cause of an ending for which nobody sent a signal: the time was up
DIVERGED = "diverged.json"  # the last batches of a run whose numbers are not finite any more


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Why a run ended: its exit code, the last finished step, and in one line the cause ("SIGUSR1", a failure)."""

    code: int
    step: int | None
    cause: str


def write(run_folder: Path, *, code: int, step: int | None, cause: str) -> bool:
    """Write `errors/exit.json` durably. On rank 0, after the commit and before the last barrier.

    Never fails the run: False when it could not be written.
    """
    written = _try_write(run_folder / FOLDER / NAME, asdict(Ending(code=int(code), step=step, cause=cause)))
    durable.remove(run_folder / FOLDER / STOP)
    return written


def read(run_folder: Path) -> Ending | None:
    """What `write` left; None when there is none or it is unreadable."""
    try:
        found = plain.read_json(run_folder / FOLDER / NAME)
        return Ending(code=int(found["code"]), step=found["step"], cause=str(found["cause"]))
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return None


def note_stop(run_folder: Path, *, by: str, save_s: float, clock: Callable[[], float] = time.time) -> bool:
    """Say that the last save has begun, because of `by`, and how long one takes: `write` removes it again.

    Who finds it (`unfinished`) knows what became of a start that was killed too early to say anything.
    """
    return _try_write(run_folder / FOLDER / STOP, {"by": by, "at": clock(), "save_s": round(save_s, 1)})


def unfinished(run_folder: Path) -> str | None:
    """What to say of a start that was asked to stop and killed before its checkpoint was committed; None of others."""
    try:
        found = plain.read_json(run_folder / FOLDER / STOP)
        by, takes = str(found["by"]), float(found["save_s"])
        ahead = 60 * math.ceil(3 * takes / 60 + 0.5)
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return None
    said = f"the last start was asked to stop by {by} and was killed before its checkpoint was committed"
    advice = f"set #SBATCH --signal=USR1@{ahead}, or give a longer grace time"
    return said if by == "SIGINT" else f"{said}; a save may take {takes:.1f} s: {advice}"


def clear(run_folder: Path, *, rank: int, world_size: int) -> None:
    """Remove what the last start said about this rank, so that nobody reads it as this start's. On every rank.

    Rank 0 also removes the ending, and what ranks said that this world no longer has; not the others' files: a rank
    that failed early may already have written its own.
    """
    folder = run_folder / FOLDER
    durable.remove(_of_rank(folder, rank))
    durable.remove(folder / f"stacks-rank-{rank:04d}.txt")
    if rank == 0:
        durable.remove(folder / NAME)
        durable.remove(folder / STOP)
        durable.remove(folder / DIVERGED)
        stay = {_of_rank(folder, other) for other in range(world_size)}
        for path in set(folder.glob("rank-*.json")) - stay:
            durable.remove(path)


def clear_ending(run_folder: Path) -> None:
    """Remove how the last start ended. By the task that starts rank 0: a signal may end its ranks before they can."""
    durable.remove(run_folder / FOLDER / NAME)


def write_failure(run_folder: Path, failure: Failure, *, rank: int, host: str) -> bool:
    """Write `errors/rank-NNNN.json`, the same block as on the console. Never fails; False when it could not."""
    return _try_write(_of_rank(run_folder / FOLDER, rank), failure.as_json() | {"rank": rank, "host": host})


def write_refusal(run_folder: Path, failure: Failure, *, host: str) -> bool:
    """Write `errors/node-HOST.json`: a node on which no rank was started. Never fails; False when it could not.

    `exit.json` will not do: rank 0 on another node may be clearing it at this moment.
    """
    return _try_write(_of_node(run_folder / FOLDER, host), failure.as_json() | {"host": host})


def clear_refusal(run_folder: Path, *, host: str) -> None:
    """Remove what the last start said of this node."""
    durable.remove(_of_node(run_folder / FOLDER, host))


def _of_node(folder: Path, host: str) -> Path:
    return folder / f"node-{host}.json"


def _of_rank(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank:04d}.json"


def _try_write(path: Path, value: object) -> bool:
    if path.parent.is_symlink():
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        durable.write_json(path, value)
    except (OSError, Failure):
        return False
    return True
