"""What a node of a job cannot do becomes a file for the job script: srun shows it another exit code."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from entrypoint import ExitCode, Failure
from train.record import exitfile


@contextmanager
def noted(run_folder: Path, environ: Mapping[str, str]) -> Iterator[None]:
    """Leave `errors/node-HOST.json` where the block finds this node unusable, in a Slurm job only; raise all the same.

    With several nodes, srun ends the others and returns their 143; the job script has to know which node to leave out.
    """
    if not environ.get("SLURM_JOB_ID"):
        yield
        return
    host = environ.get("SLURMD_NODENAME") or socket.gethostname()  # the name by which Slurm leaves it out
    exitfile.clear_refusal(run_folder, host=host)
    try:
        yield
    except Failure as failure:
        if failure.code == ExitCode.NODE:
            exitfile.write_refusal(run_folder, failure, host=host)
        raise
