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
DEADLINE_CAUSE = "deadline"  # the cause if a run stopped without a signal, because its time was up
DIVERGED_FILE = "diverged.json"  # the last batches of a run whose loss is no longer finite


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitRecord:
    """How a run ended: its exit code, its last finished step, and the cause in one line ("SIGUSR1", a failure)."""

    code: int
    step: int | None
    cause: str


def write_exit(run_folder: Path, *, code: int, step: int | None, cause: str) -> bool:
    """Write `errors/exit.json` durably. Rank 0 calls it after the commit and before the last barrier.

    It never raises; False if the file could not be written.
    """
    written = _try_write_json(
        run_folder / ERRORS_FOLDER / EXIT_FILE, asdict(ExitRecord(code=int(code), step=step, cause=cause))
    )
    files.remove(run_folder / ERRORS_FOLDER / STOPPING_FILE)
    return written


def read_exit(run_folder: Path) -> ExitRecord | None:
    """Read `errors/exit.json`; None if it is missing or unreadable."""
    try:
        values = files.read_json(run_folder / ERRORS_FOLDER / EXIT_FILE)
        return ExitRecord(code=int(values["code"]), step=values["step"], cause=str(values["cause"]))
    except (OSError, *files.MALFORMED_ERRORS):
        return None


def write_stopping(run_folder: Path, *, by: str, save_s: float, clock: Callable[[], float] = time.time) -> bool:
    """Record that the last save has begun because of `by`, and how long a save takes.

    `write_exit` removes the file. If the start is killed before that, `describe_unfinished_save`
    can explain what happened.
    """
    return _try_write_json(
        run_folder / ERRORS_FOLDER / STOPPING_FILE, {"by": by, "at": clock(), "save_s": round(save_s, 1)}
    )


def describe_unfinished_save(run_folder: Path) -> str | None:
    """The message about a start that was killed during its last save; None if the last start was not."""
    try:
        values = files.read_json(run_folder / ERRORS_FOLDER / STOPPING_FILE)
        by, takes = str(values["by"]), float(values["save_s"])
        ahead = 60 * math.ceil(3 * takes / 60 + 0.5)
    except (OSError, *files.MALFORMED_ERRORS):
        return None
    message = f"the last start was asked to stop by {by} and was killed before its checkpoint was committed"
    advice = f"set #SBATCH --signal=USR1@{ahead}, or give a longer grace time"
    return message if by == "SIGINT" else f"{message}; a save may take {takes:.1f} s: {advice}"


def clear_rank(run_folder: Path, *, rank: int, world_size: int) -> None:
    """Remove the last start's files about this rank. Every rank calls it.

    Rank 0 also removes errors/exit.json, and the files of ranks that this world does not have. It leaves the other
    ranks' files: a rank that failed early may already have written its own.
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
    """Remove the last start's exit.json. The task of rank 0 calls it, in case a signal ends the ranks early."""
    files.remove(run_folder / ERRORS_FOLDER / EXIT_FILE)


def write_rank_failure(run_folder: Path, failure: Failure, *, rank: int, host: str) -> bool:
    """Write `errors/rank-NNNN.json`, with the console's facts. It never raises; False if it could not write."""
    return _try_write_json(
        _rank_file(run_folder / ERRORS_FOLDER, rank), failure.as_json() | {"rank": rank, "host": host}
    )


def write_node_failure(run_folder: Path, failure: Failure, *, host: str) -> bool:
    """Write `errors/node-HOST.json` for a node on which no rank was started. It never raises; False if it failed.

    `exit.json` cannot hold this: rank 0 on another node may be removing it at this moment.
    """
    return _try_write_json(_node_file(run_folder / ERRORS_FOLDER, host), failure.as_json() | {"host": host})


def clear_node_failure(run_folder: Path, *, host: str) -> None:
    """Remove the last start's file about this node."""
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
