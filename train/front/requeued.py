"""A job that was put back into the queue finds its run, or says so: it must not train from the start without a word.

The run's folder may be missing because this node has not mounted it, because the container does not show it, or because
somebody moved it; but also because the earlier start was killed before it had made it. Only what is kept elsewhere can
tell: each start of a job leaves a mark in the user's cache folder once it has the run's folder.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from entrypoint import ExitCode, Failure
from train.files import caches, durable, plain
from train.record import claim, starts

REQUEUED: Final = (ExitCode.PEER, ExitCode.STOPPED, ExitCode.NODE, ExitCode.HANG)
KEPT_S: Final = 90 * 86_400.0  # marks of jobs that nobody has put back for so long are removed


def look(run_folder: Path, environ: Mapping[str, str], *, host: str) -> str | None:
    """Return where the run of a requeued job is where it was; else what is to be said where that cannot be known.

    Raises:
        Failure: NO_INPUT, where an earlier start of this job had the folder and it is not here.
    """
    if claim.restart(environ) == 0:
        return None
    if run_folder.is_dir():
        _refuse_without_checkpoints(run_folder)
        return None
    earlier = _read(_mark(run_folder, environ))
    if earlier is None:
        return (
            f"start {claim.restart(environ) + 1} of this job begins at step 0: {run_folder.absolute()} is not there, "
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
    begun = [start for start in starts.known(run_folder) if start.get("step") is not None]
    if begun and not (run_folder / "checkpoints").is_dir():
        raise Failure(
            "the checkpoints of this requeued job are not here: it would begin at step 0 again",
            found=f"{run_folder.absolute()} holds the record of {len(begun)} starts, and no folder checkpoints",
            fix="put the folder checkpoints back; or to begin anew, submit with checkpoint.resume=never",
            code=ExitCode.NO_INPUT,
        )


def mark(run_folder: Path, environ: Mapping[str, str], *, host: str, now: float) -> None:
    """Leave word that this job has made its run's folder. Without a home that lasts there is none, and no failure.

    Raises:
        Failure: STOPPED, for a signal meanwhile.
    """
    place = _mark(run_folder, environ)
    if place is None:
        return
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        for other in place.parent.iterdir():
            if other.stat().st_mtime < now - KEPT_S:
                durable.remove(other)
        durable.write_json(place, {"folder": str(run_folder.absolute()), "host": host})
    except OSError:
        return
    except Failure as failure:
        if failure.code == ExitCode.STOPPED:
            raise


def forget(run_folder: Path, environ: Mapping[str, str], code: int) -> None:
    """Remove the mark of a job that ended with a code for which no job is put back."""
    if code not in REQUEUED and (place := _mark(run_folder, environ)):
        durable.remove(place)


def _mark(run_folder: Path, environ: Mapping[str, str]) -> Path | None:
    """One file for each job and run, in the caller's cache folder. None outside a job, or without such a folder."""
    ours = caches.folder(environ)
    if not environ.get("SLURM_JOB_ID") or ours is None:
        return None
    whose = f"{environ.get('SLURM_CLUSTER_NAME', '')} {run_folder}"
    name = f"{environ['SLURM_JOB_ID']}-{hashlib.sha256(os.fsencode(whose)).hexdigest()[:16]}.json"
    return ours / "jobs" / name


def _read(place: Path | None) -> dict[str, str] | None:
    try:
        found = plain.read_json(place) if place else None
        return {noun: str(found[noun]) for noun in ("folder", "host")} if found else None
    except (OSError, ValueError, TypeError, KeyError):
        return None
