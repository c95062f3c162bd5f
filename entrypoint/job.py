"""A JobInfo says which scheduler's job this process belongs to, read from environment variables.

The records of `platforms` hold the variables of each scheduler. No other module needs them to know the job's id, its
restarts or its end. Without a scheduler there is no job.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from entrypoint.platforms import CHAIN_VARIABLE, PLATFORMS

# Slurm may run in the pods of Kubernetes, and on machines of a cloud: the scheduler that knows more comes first.
_BY_KNOWLEDGE: Final = sorted(PLATFORMS, key=lambda platform: ("step", "script", "node", "rank").index(platform.starts))
_NO_TASK: Final = ("0", "undefined")  # the task of a job that is no array: LSF's and Grid Engine's


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInfo:
    """The scheduler's job that this process belongs to.

    Attributes:
        launcher: the scheduler, as its record names it.
        id: unique within the cluster; a requeued job keeps it. Jobs that submit their successor share
            the first one's, and the pods of a Kubernetes Job share the Job's (ENTRYPOINT_JOB_CHAIN).
        restart: how often the scheduler has put this job back into its queue.
        is_chain: whether ENTRYPOINT_JOB_CHAIN gave the id. Every start but the first is then a restart.
        ends_at: when the job's time is up, in seconds since 1970; None if the scheduler does not say.
        cluster: the cluster that gave the id; None if the scheduler does not say.
        node: the scheduler's name of this node; None if it does not say.
    """

    launcher: str
    id: str
    restart: int = 0
    is_chain: bool = False
    ends_at: int | None = None
    cluster: str | None = None
    node: str | None = None


def job_info_from_environ(environ: Mapping[str, str]) -> JobInfo | None:
    """Return the job that `environ` belongs to; None outside a job. Unreadable numbers are absent."""
    chain = environ.get(CHAIN_VARIABLE) or None
    for platform in _BY_KNOWLEDGE:
        values = {fact: environ.get(variable) or None for fact, variable in platform.job.items()}
        if (text := values.get("id")) and values.get("sign", "none needed"):
            job_id, task = platform.read_job_id(text), values.get("task")
            return JobInfo(
                launcher=platform.name,
                id=chain or (job_id if task is None or task in _NO_TASK else f"{job_id}.{task}"),
                restart=_whole_number(values.get("restart")) or 0,
                is_chain=chain is not None,
                ends_at=_whole_number(values.get("ends_at")),
                cluster=values.get("cluster"),
                node=values.get("node"),
            )
    return None


def _whole_number(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"\d{1,12}", text, re.ASCII) else None
