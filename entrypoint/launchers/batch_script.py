"""Schedulers whose job script runs on the first node only: PBS, Grid Engine, LSF, OAR, Flux and others.

Without mpiexec or the like a job of several nodes would train on the first one, so that is refused.
BATCH_SCHEDULERS is the table; an entry holds all that is known about one of them. (Slurm's batch
script is checked in `slurm`.)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from entrypoint.errors import ExitCode, Failure
from entrypoint.launchers.allocation import THIS_NODE_ONLY_FIX
from entrypoint.machine import HOST_FILE_VARIABLES, Machine
from entrypoint.world import is_whole_number, parse_whole_number


def _first_word_of_lines(text: str) -> Sequence[str]:
    """Names from a host file: one line for each host or slot, the name first."""
    return [line.split()[0] for line in text.splitlines() if line.strip()]


def _words(text: str) -> Sequence[str]:
    return text.split()


def _split_addresses(text: str) -> Sequence[str]:
    """Addresses separated by commas or semicolons."""
    return text.replace(";", " ").replace(",", " ").split()


def _every_second_word(text: str) -> Sequence[str]:
    """Names from `host1 4 host2 4`."""
    return text.split()[::2]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchScheduler:
    """How one scheduler describes a job's nodes to the job script.

    Attributes:
        title: the job's name in an error.
        hosts: variables with the nodes' names, or with the path of a file that has them
            (HOST_FILE_VARIABLES), and how to read them.
        counts: variables with the number of nodes, used if no names can be read.
        unknown: variables that show a job of this scheduler without its number of nodes.
        ids: the variables that together are the job's id; they reach the tasks on all hosts.
        command: starts one process per GPU on all nodes.
        first_task: variables with the number of a task -> the number in the job script; others were started on their
            own, as by pbsdsh.
    """

    title: str
    hosts: Mapping[str, Callable[[str], Sequence[str]]] = field(default_factory=dict)
    counts: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    command: str
    first_task: Mapping[str, int] = field(default_factory=dict)

    @property
    def detection_variables(self) -> tuple[str, ...]:
        """The variables that show a job of this scheduler."""
        return (*self.hosts, *self.counts, *self.unknown)


BATCH_SCHEDULERS: Final = (
    # qsub(1B) and pbsdsh(1B). PBS_NUM_NODES is Torque's; PBS_NNODES is set by some sites, and
    # counts cores on some: last.
    BatchScheduler(
        title="a PBS job",
        hosts={"PBS_NODEFILE": _first_word_of_lines},
        counts=("PBS_NUM_NODES", "PBS_NNODES"),
        ids=("PBS_JOBID",),
        command="mpiexec -n RANKS --ppn GPUS",
        first_task={"PBS_NODENUM": 0, "PBS_TASKNUM": 1},
    ),
    # qsub(1) of Grid Engine, "ENVIRONMENTAL VARIABLES", and sge_pe(5) for the file
    BatchScheduler(
        title="a Grid Engine job",
        hosts={"PE_HOSTFILE": _first_word_of_lines},
        counts=("NHOSTS",),
        ids=("JOB_ID",),  # not SGE_TASK_ID: mpirun's daemons on other hosts may have their own
        command="mpirun -n RANKS",
    ),
    # https://www.ibm.com/docs/en/spectrum-lsf, "Environment variables set for job execution"
    BatchScheduler(
        title="an LSF job",
        hosts={
            "LSB_MCPU_HOSTS": _every_second_word,
            "LSB_HOSTS": _words,
            "LSB_DJOB_HOSTFILE": _first_word_of_lines,
        },
        ids=("LSB_JOBID", "LSB_JOBINDEX"),
        command="mpirun -n RANKS, or jsrun -n NODES -a GPUS -g GPUS",
    ),
    # OAR's user guide, "Environment variables"
    BatchScheduler(
        title="an OAR job",
        hosts={"OAR_NODEFILE": _first_word_of_lines},
        ids=("OAR_JOB_ID",),
        command="mpirun -n RANKS --machinefile $OAR_NODEFILE",
    ),
    # Fujitsu's Technical Computing Suite, on Fugaku: pjsub(1)
    BatchScheduler(title="a Fujitsu PJM job", counts=("PJM_NODE",), ids=("PJM_JOBID",), command="mpiexec -n RANKS"),
    # https://learn.microsoft.com/azure/batch/batch-compute-node-environment-variables: of a multi-instance task, whose
    # command runs on the primary node
    BatchScheduler(
        title="an Azure Batch multi-instance task",
        hosts={"AZ_BATCH_NODE_LIST": _split_addresses, "AZ_BATCH_HOST_LIST": _split_addresses},
        ids=("AZ_BATCH_JOB_ID", "AZ_BATCH_TASK_ID"),
        command="mpirun -n RANKS --host $AZ_BATCH_HOST_LIST",
    ),
    # flux-environment(7): a batch script has no variable with the number of nodes
    BatchScheduler(
        title="a Flux job",
        unknown=("FLUX_URI",),
        ids=("FLUX_ENCLOSING_ID", "FLUX_JOB_ID"),
        command="flux run -N NODES -n RANKS --gpus-per-task=1",
    ),
)


def job_id(environ: Mapping[str, str]) -> str:
    """The id of the batch job; empty outside of one."""
    names = (name for scheduler in BATCH_SCHEDULERS for name in scheduler.ids)
    return ":".join(environ[name] for name in names if environ.get(name))


def job_hosts(environ: Mapping[str, str], machine: Machine) -> tuple[str, tuple[str, ...]]:
    """The variable that lists the job's hosts, and the hosts in its order; both empty if none can be read."""
    for scheduler in BATCH_SCHEDULERS:
        for name, read in scheduler.hosts.items():
            text = (machine.host_files if name in HOST_FILE_VARIABLES else environ).get(name, "")
            if hosts := tuple(dict.fromkeys(read(text))):
                return name, hosts
    return "", ()


def count_nodes(environ: Mapping[str, str], machine: Machine) -> tuple[int, str]:
    """The number of nodes of the batch job, and the variable that says so; (1, "") without one."""
    source, hosts = job_hosts(environ, machine)
    if hosts:
        return len(hosts), source
    names = (name for scheduler in BATCH_SCHEDULERS for name in scheduler.counts if environ.get(name))
    name = next(names, "")
    return (parse_whole_number(name, environ[name]), name) if name else (1, "")


def _refuse_later_tasks(environ: Mapping[str, str]) -> None:
    for scheduler in BATCH_SCHEDULERS:
        for name, first in scheduler.first_task.items():
            number = environ.get(name, "")
            if is_whole_number(number) and int(number) > first:
                raise Failure(
                    f"{name} shows that {scheduler.title} has other tasks, and no launcher connects them: this one "
                    "would train alone",
                    found=f"{name}={number}",
                    fix=f"{scheduler.command} apptainer exec --nv train.sif train ...; {THIS_NODE_ONLY_FIX}",
                    code=ExitCode.LAUNCH_CONFLICT,
                )


def refuse_several_nodes(environ: Mapping[str, str], machine: Machine) -> tuple[str, ...]:
    """Refuse a job of several nodes; return warnings. Call this when no launcher was detected.

    Raises:
        Failure: LAUNCH_CONFLICT if the job has several nodes.
    """
    _refuse_later_tasks(environ)
    nodes, source = count_nodes(environ, machine)
    schedulers = (each for each in BATCH_SCHEDULERS if any(environ.get(name) for name in each.detection_variables))
    scheduler = next(schedulers, None)
    if scheduler is None or (source and nodes == 1):
        return ()
    if source:
        name = next(name for name in scheduler.detection_variables if environ.get(name))
        raise Failure(
            f"the script of {scheduler.title} runs on the first of its {nodes} nodes: this node would train alone",
            found=f"{name}={environ[name][:200]}",
            fix=f"{scheduler.command} apptainer exec --nv train.sif train ..., which starts it on all nodes; "
            f"{THIS_NODE_ONLY_FIX}",
            code=ExitCode.LAUNCH_CONFLICT,
        )
    name = next(name for name in scheduler.detection_variables if environ.get(name))
    job = scheduler.title.partition(" ")[2]
    what = f"this {job} may have other nodes, which would stay idle"
    if name in HOST_FILE_VARIABLES:
        folder = os.path.dirname(environ[name])
        return (f"{what}: {name}={environ[name]} cannot be read. fix: export APPTAINER_BIND={folder}",)
    return (f"{what}. fix: start train with {scheduler.command}",)
