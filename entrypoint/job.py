"""A JobInfo says which scheduler's job this process belongs to, read from environment variables.

One table lists the variables of each scheduler. No other module needs them to know the job's id,
its restarts or its end. Without a scheduler there is no job.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

# Scheduler -> field of JobInfo -> environment variable. Only `id` is required. A field without a
# variable is absent: a scheduler that does not restart jobs needs no line for `restart`. `task` is
# the number in an array of jobs, a part of the id; `sign` must be set too, where `id` is a common
# name. Where no variable has the end of the job, job scripts set ENTRYPOINT_DEADLINE.
CHAIN_VARIABLE: Final = "ENTRYPOINT_JOB_CHAIN"
SCHEDULER_VARIABLES: Final[Mapping[str, Mapping[str, str]]] = {
    # Source: sbatch(1), "OUTPUT ENVIRONMENT VARIABLES".
    "slurm": {
        "id": "SLURM_JOB_ID",
        "restart": "SLURM_RESTART_COUNT",  # not set before the first requeue
        "ends_at": "SLURM_JOB_END_TIME",  # not set by Slurm 22.05
        "cluster": "SLURM_CLUSTER_NAME",
        "node": "SLURMD_NODENAME",
    },
    # qsub(1B): the id holds the number in an array, as 7[1].server
    "pbs": {"id": "PBS_JOBID"},
    # https://www.ibm.com/docs/en/spectrum-lsf, "Environment variables set for job execution"
    "lsf": {"id": "LSB_JOBID", "task": "LSB_JOBINDEX"},
    # qsub(1) of Grid Engine, "ENVIRONMENTAL VARIABLES"
    "gridengine": {"id": "JOB_ID", "task": "SGE_TASK_ID", "restart": "RESTARTED", "sign": "SGE_TASK_ID"},
    "flux": {"id": "FLUX_JOB_ID"},  # flux-environment(7)
    # The sources of the others stand in entrypoint/launchers/per_node.py.
    "htcondor": {"id": "_CONDOR_REMOTE_SPOOL_DIR"},
    "skypilot": {"id": "SKYPILOT_TASK_ID"},
    "dstack": {"id": "DSTACK_RUN_ID"},
    "sagemaker": {"id": "TRAINING_JOB_NAME"},
    "vertex": {"id": "CLOUD_ML_JOB_ID"},
    "kubernetes": {"id": CHAIN_VARIABLE, "sign": "KUBERNETES_SERVICE_HOST"},  # a pod knows no id of its Job
}
_NO_TASK: Final = ("0", "undefined")  # the task of a job that is no array: LSF's and Grid Engine's


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInfo:
    """The scheduler's job that this process belongs to.

    Attributes:
        launcher: the scheduler, as the table names it.
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
    for launcher, variables in SCHEDULER_VARIABLES.items():
        values = {field: environ.get(variable) or None for field, variable in variables.items()}
        if (job_id := values["id"]) and values.get("sign", "none needed"):
            task = values.get("task")
            return JobInfo(
                launcher=launcher,
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
