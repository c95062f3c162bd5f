"""A requeued job is refused if its run's folder is missing: it must not silently start at step 0.

The folder may be missing because this node has not mounted it, because the container does not show
it, or because somebody moved it; but also because the earlier start was killed before it created
the folder. Only what is kept elsewhere can tell: each start of a job leaves a marker in the user's
cache folder once it has the run's folder.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from entrypoint import ExitCode, Failure, job_info_from_environ
from train import files
from train.run import record

REQUEUED_EXIT_CODES: Final = frozenset(code for code in ExitCode if code.requeue)
MARKER_LIFETIME_S: Final = 90 * 86_400.0  # older markers are removed: nobody requeues such a job


def refuse_missing_run(run_folder: Path, environ: Mapping[str, str], *, host: str) -> str | None:
    """Refuse a requeued job whose run is missing. Return a warning if nothing shows whether it is.

    Raises:
        Failure: NO_INPUT, if an earlier start of this job had the folder and it is not here.
    """
    job = job_info_from_environ(environ)
    if job is None or job.restart == 0:
        return None
    if run_folder.is_dir():
        _refuse_without_checkpoints(run_folder)
        return None
    earlier = _read_job_marker(_job_marker_path(run_folder, environ))
    if earlier is None:
        return (
            f"start {job.restart + 1} of this job begins at step 0: "
            f"{run_folder.absolute()} is not there, "
            "and nothing shows that an earlier start had made it. fix: if one had, cancel the job and look for it"
        )
    raise Failure(
        f"the run of this requeued job is not here: it would begin at step 0 again, in {run_folder.absolute()}",
        found=f"no such folder on {host}; an earlier start of the job kept the run in {earlier['folder']} on "
        f"{earlier['host']}",
        expected="the same folder on all nodes that the job may run on",
        fix="mount it on this node or leave the node out (--exclude), bind it (APPTAINER_BIND), or start where it is; "
        "to start over, submit a new job",
        code=ExitCode.NO_INPUT,
    )


def _refuse_without_checkpoints(run_folder: Path) -> None:
    starts = [start for start in record.read_starts(run_folder) if start.get("step") is not None]
    if starts and not (run_folder / "checkpoints").is_dir():
        raise Failure(
            "the checkpoints of this requeued job are not here: it would begin at step 0 again",
            found=f"{run_folder.absolute()} holds the record of {len(starts)} starts, and no folder checkpoints",
            fix="put the folder checkpoints back; or to start over, submit with checkpoint.resume=never",
            code=ExitCode.NO_INPUT,
        )


def write_job_marker(run_folder: Path, environ: Mapping[str, str], *, host: str, written_at: float) -> None:
    """Record that this job has created its run's folder. Without a cache folder it does nothing.

    Raises:
        Failure: STOPPED, for a signal meanwhile.
    """
    path = _job_marker_path(run_folder, environ)
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for other in path.parent.iterdir():
            if other.stat().st_mtime < written_at - MARKER_LIFETIME_S:
                files.remove(other)
        files.write_json(path, {"folder": str(run_folder.absolute()), "host": host})
    except OSError:
        return
    except Failure as failure:
        if failure.code == ExitCode.STOPPED:
            raise


def remove_job_marker(run_folder: Path, environ: Mapping[str, str], code: int) -> None:
    """Remove the marker of a job that ended with an exit code that is not requeued."""
    if code not in REQUEUED_EXIT_CODES and (path := _job_marker_path(run_folder, environ)):
        files.remove(path)


def _job_marker_path(run_folder: Path, environ: Mapping[str, str]) -> Path | None:
    """One file for each job and run, in the user's cache folder. None outside a job or without such a folder."""
    job, cache = job_info_from_environ(environ), files.cache_folder(environ)
    if job is None or cache is None:
        return None
    digest = hashlib.sha256(os.fsencode(f"{job.cluster or ''} {run_folder}")).hexdigest()
    name = re.sub(r"[^\w.-]", "_", job.id, flags=re.ASCII)  # HTCondor's is a path
    return cache / "jobs" / f"{name[-100:]}-{digest[:16]}.json"


def _read_job_marker(path: Path | None) -> dict[str, str] | None:
    try:
        marker = files.read_json(path) if path else None
        return {name: str(marker[name]) for name in ("folder", "host")} if marker else None
    except (OSError, ValueError, TypeError, KeyError):
        return None
