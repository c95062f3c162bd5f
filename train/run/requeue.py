"""A requeued job is refused if its run's folder is missing: it must not silently start at step 0.

The folder may be missing because this node has not mounted it, because the container does not show
it, or because somebody moved it; but also because the earlier start was killed before it created
the folder. Only what is kept elsewhere can tell: each start of a job leaves a marker in the user's
cache folder once it has the run's folder.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from entrypoint import ExitCode, Failure
from train import files
from train.run import lock, record

REQUEUED_EXIT_CODES: Final = (ExitCode.PEER, ExitCode.STOPPED, ExitCode.NODE, ExitCode.HANG)
MARKER_LIFETIME_S: Final = 90 * 86_400.0  # marks of jobs that nobody has put back for so long are removed


def refuse_missing_run(run_folder: Path, environ: Mapping[str, str], *, host: str) -> str | None:
    """Return where the run of a requeued job is where it was; else what is to be said where that cannot be known.

    Raises:
        Failure: NO_INPUT, where an earlier start of this job had the folder and it is not here.
    """
    if lock.restart_count(environ) == 0:
        return None
    if run_folder.is_dir():
        _refuse_without_checkpoints(run_folder)
        return None
    earlier = _read_job_marker(_job_marker_path(run_folder, environ))
    if earlier is None:
        return (
            f"start {lock.restart_count(environ) + 1} of this job begins at step 0: "
            f"{run_folder.absolute()} is not there, "
            "and nothing shows that an earlier start had made it. fix: if one had, cancel the job and look for it"
        )
    raise Failure(
        f"the run of this requeued job is not here: it would begin at step 0 again, in {run_folder.absolute()}",
        found=f"no such folder on {host}; an earlier start of the job kept the run in {earlier['folder']} on "
        f"{earlier['host']}",
        expected="the same folder on all nodes that the job may run on",
        fix="mount it on this node or leave the node out (--exclude), bind it (APPTAINER_BIND), or start where it is; "
        "to begin anew, submit a new job",
        code=ExitCode.NO_INPUT,
    )


def _refuse_without_checkpoints(run_folder: Path) -> None:
    begun = [start for start in record.read_starts(run_folder) if start.get("step") is not None]
    if begun and not (run_folder / "checkpoints").is_dir():
        raise Failure(
            "the checkpoints of this requeued job are not here: it would begin at step 0 again",
            found=f"{run_folder.absolute()} holds the record of {len(begun)} starts, and no folder checkpoints",
            fix="put the folder checkpoints back; or to begin anew, submit with checkpoint.resume=never",
            code=ExitCode.NO_INPUT,
        )


def write_job_marker(run_folder: Path, environ: Mapping[str, str], *, host: str, now: float) -> None:
    """Leave word that this job has made its run's folder. Without a home that lasts there is none, and no failure.

    Raises:
        Failure: STOPPED, for a signal meanwhile.
    """
    place = _job_marker_path(run_folder, environ)
    if place is None:
        return
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        for other in place.parent.iterdir():
            if other.stat().st_mtime < now - MARKER_LIFETIME_S:
                files.remove(other)
        files.write_json(place, {"folder": str(run_folder.absolute()), "host": host})
    except OSError:
        return
    except Failure as failure:
        if failure.code == ExitCode.STOPPED:
            raise


def remove_job_marker(run_folder: Path, environ: Mapping[str, str], code: int) -> None:
    """Remove the mark of a job that ended with a code for which no job is put back."""
    if code not in REQUEUED_EXIT_CODES and (place := _job_marker_path(run_folder, environ)):
        files.remove(place)


def _job_marker_path(run_folder: Path, environ: Mapping[str, str]) -> Path | None:
    """One file for each job and run, in the caller's cache folder. None outside a job, or without such a folder."""
    ours = files.cache_folder(environ)
    if not environ.get("SLURM_JOB_ID") or ours is None:
        return None
    whose = f"{environ.get('SLURM_CLUSTER_NAME', '')} {run_folder}"
    name = f"{environ['SLURM_JOB_ID']}-{hashlib.sha256(os.fsencode(whose)).hexdigest()[:16]}.json"
    return ours / "jobs" / name


def _read_job_marker(place: Path | None) -> dict[str, str] | None:
    try:
        found = files.read_json(place) if place else None
        return {noun: str(found[noun]) for noun in ("folder", "host")} if found else None
    except (OSError, ValueError, TypeError, KeyError):
        return None
