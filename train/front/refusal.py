"""What a node of a job cannot do becomes a file for the job script: srun shows it another exit code."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from entrypoint import ExitCode, Failure
from train.record import claim, exitfile


@contextmanager
def noted(run_folder: Path, environ: Mapping[str, str]) -> Iterator[None]:
    """Leave `errors/node-HOST.json` where the block finds this node unusable, in a Slurm job only; raise all the same.

    With several nodes, srun ends the others and returns their 143; the job script has to know which node to leave out.
    Nothing is left in a folder that another job is at work in: it is that job's script that reads it.
    """
    try:
        yield
    except Failure as failure:
        if failure.code == ExitCode.NODE and _in_job(environ) and not claim.held_by_another(run_folder, environ):
            exitfile.write_refusal(run_folder, failure, host=_host(environ))
        raise


def forget(run_folder: Path, environ: Mapping[str, str]) -> None:
    """Remove what the last start said of this node, which can be used again."""
    if _in_job(environ):
        exitfile.clear_refusal(run_folder, host=_host(environ))


def _in_job(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("SLURM_JOB_ID"))


def _host(environ: Mapping[str, str]) -> str:
    """The name by which Slurm leaves it out."""
    return environ.get("SLURMD_NODENAME") or socket.gethostname()
