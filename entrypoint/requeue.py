"""Decides after a job's start whether the job is requeued, from the files in the run's errors/."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from entrypoint.errors import ExitCode
from entrypoint.files import read_json_object


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueDecision:
    """The exit code of a start, whether the job is requeued, and the hosts that it shall avoid."""

    code: int
    requeue: bool
    excluded_hosts: tuple[str, ...] = ()

    def __str__(self) -> str:
        action = "requeue" if self.requeue else "exit"
        return " ".join([str(self.code), action, ",".join(self.excluded_hosts)]).rstrip()


def decide_requeue(srun_code: int, error_files: Sequence[Path]) -> RequeueDecision:
    """Decide from srun's exit code and the files that this start wrote into the run's errors/.

    The code in exit.json wins over srun's, and that of a node without ranks (node-HOST.json) is
    next. srun's 73 stays: the run folder is locked by another start, and exit.json is that start's.
    """
    failures = {path.name: read_json_object(path) for path in error_files}
    by_rank = {name: failure for name, failure in failures.items() if name.startswith("rank-")}
    code = srun_code
    if srun_code != ExitCode.OUTPUT:
        written = (failure.get("code") for name, failure in sorted(failures.items()) if name not in by_rank)
        code = next((code for code in written if type(code) is int), srun_code)
    hosts = {
        host[0]
        for name, failure in failures.items()
        if name != "exit.json" and failure.get("code") == ExitCode.NODE
        if (host := re.match(r"[\w-]+", str(failure.get("host", "")), re.ASCII))  # Slurm's short name
    }
    requeue = code in set(ExitCode) and ExitCode(code).requeue
    return RequeueDecision(code=code, requeue=requeue, excluded_hosts=tuple(sorted(hosts)) if requeue else ())
