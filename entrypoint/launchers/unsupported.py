"""This module refuses a job of several nodes whose scheduler has no launcher here.

Without this refusal each node would train alone. UNSUPPORTED_SCHEDULERS is the table; an entry
holds all that is known about one scheduler or platform.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from entrypoint.errors import ExitCode, Failure
from entrypoint.machine import HOST_FILE_VARIABLES, Machine
from entrypoint.world import parse_whole_number

THIS_NODE_ONLY_FIX: Final = "for a training of this node alone: --nodes 1 --node-rank 0 --master-addr 127.0.0.1"


def _first_word_of_lines(text: str) -> list[str]:
    """Names from a host file: one line for each host or slot, the name first."""
    return [line.split()[0] for line in text.splitlines() if line.strip()]


def _split_names(text: str) -> list[str]:
    """Names separated by spaces, commas or lines, or in a JSON list."""
    return re.findall(r'[^\s,"\[\]]+', text)


def _every_second_word(text: str) -> list[str]:
    """Names from `host1 4 host2 4`."""
    return text.split()[::2]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsupportedScheduler:
    """How one scheduler or platform describes a job's nodes.

    Attributes:
        title: the job's name in the error.
        names: variables with the nodes' names, or with the path of a file that has them
            (HOST_FILE_VARIABLES), and how to read them.
        counts: variables with the number of nodes, used if no names can be read.
        number: the variable with this node's number.
        own_name: the variable with this node's name, as in `names`.
        master: the variable with the first node's address, if it is not the first of `names`.
        starter: the command that starts a program on the other nodes, if the job's script runs on
            the first node only; empty if the command runs on every node.
    """

    title: str
    names: Mapping[str, Callable[[str], Sequence[str]]] = field(default_factory=dict)
    counts: tuple[str, ...] = ()
    number: str = ""
    own_name: str = ""
    master: str = ""
    starter: str = ""

    @property
    def detection_variables(self) -> tuple[str, ...]:
        """The variables that show that this scheduler started the job."""
        return (*self.names, *self.counts) or (self.number,)


UNSUPPORTED_SCHEDULERS: Final = (
    # https://docs.skypilot.co/en/stable/running-jobs/environment-variables.html
    UnsupportedScheduler(
        title="SkyPilot job",
        names={"SKYPILOT_NODE_IPS": _split_names},
        counts=("SKYPILOT_NUM_NODES",),
        number="SKYPILOT_NODE_RANK",
    ),
    # dstack's runner/internal/executor/executor.go, execJob
    UnsupportedScheduler(
        title="dstack task",
        names={"DSTACK_NODES_IPS": _split_names},
        counts=("DSTACK_NODES_NUM",),
        number="DSTACK_NODE_RANK",
        master="DSTACK_MASTER_NODE_IP",
    ),
    # ENVIRONMENT_VARIABLES.md of sagemaker-training-toolkit, which sets them: SM_HOSTS=["algo-1","algo-2"]
    UnsupportedScheduler(title="SageMaker job", names={"SM_HOSTS": _split_names}, own_name="SM_CURRENT_HOST"),
    # HTCondor's src/condor_starter.V6.1/parallel_proc.cpp
    UnsupportedScheduler(title="HTCondor parallel job", counts=("_CONDOR_NPROCS",), number="_CONDOR_PROCNO"),
    # https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode, which JobSet makes its Jobs use. A
    # pod knows only its own index: JobSet's labels (how many Jobs) become variables only if the
    # manifest says so, under names that it chooses, and no label tells how many pods a Job has.
    UnsupportedScheduler(title="Kubernetes indexed Job", number="JOB_COMPLETION_INDEX"),
    # qsub(1B) and pbsdsh(1B). PBS_NUM_NODES is Torque's; PBS_NNODES is set by some sites, and
    # counts cores on some: last.
    UnsupportedScheduler(
        title="PBS job",
        names={"PBS_NODEFILE": _first_word_of_lines},
        counts=("PBS_NUM_NODES", "PBS_NNODES"),
        starter="pbsdsh",
    ),
    # qsub(1) of Grid Engine, "ENVIRONMENTAL VARIABLES", and sge_pe(5) for the file
    UnsupportedScheduler(
        title="Grid Engine job",
        names={"PE_HOSTFILE": _first_word_of_lines},
        counts=("NHOSTS",),
        starter="qrsh -inherit HOST",
    ),
    # https://www.ibm.com/docs/en/spectrum-lsf, "Environment variables set for job execution"
    UnsupportedScheduler(
        title="LSF job",
        names={
            "LSB_MCPU_HOSTS": _every_second_word,
            "LSB_HOSTS": _split_names,
            "LSB_DJOB_HOSTFILE": _first_word_of_lines,
        },
        starter="blaunch",
    ),
)


def refuse_several_nodes(environ: Mapping[str, str], machine: Machine) -> tuple[str, ...]:
    """Refuse a job of several nodes; return warnings. Call this when no launcher was detected.

    Raises:
        Failure: LAUNCH_CONFLICT if a job has several nodes, or if each of its nodes runs this and
            their number is unknown.
    """
    warnings = []
    for family in UNSUPPORTED_SCHEDULERS:
        variables = {name: environ[name] for name in family.detection_variables if environ.get(name)}
        if not variables:
            continue
        hosts, nodes = _read_nodes(family, variables, machine)
        if nodes is None and family.starter:
            file, path = next(iter(variables.items()))
            warnings.append(
                f"{file}={path} cannot be read here: whether this {family.title} has other nodes, which would stay "
                f"idle, is not known. fix: mount it into the container (--bind {os.path.dirname(path)})"
            )
        elif nodes is None or nodes > 1:
            raise _several_nodes_failure(family, environ, hosts, nodes)
    return tuple(warnings)


def _read_nodes(
    family: UnsupportedScheduler, variables: Mapping[str, str], machine: Machine
) -> tuple[tuple[str, ...], int | None]:
    """The nodes' names, if they can be read, and the number of nodes; None if it is unknown."""
    for name, read in family.names.items():
        text = (machine.host_files if name in HOST_FILE_VARIABLES else variables).get(name, "")
        if hosts := tuple(dict.fromkeys(read(text))):
            return hosts, len(hosts)
    count = next((name for name in family.counts if name in variables), None)
    return (), None if count is None else parse_whole_number(count, variables[count])


def _several_nodes_failure(
    family: UnsupportedScheduler, environ: Mapping[str, str], hosts: tuple[str, ...], nodes: int | None
) -> Failure:
    own_name = environ.get(family.own_name, "")
    node_rank = environ.get(family.number) or (str(hosts.index(own_name)) if own_name in hosts else "K")
    master = environ.get(family.master) or (hosts[0] if hosts else "HOST")
    options = f"--nodes {nodes or 'N'} --node-rank {node_rank} --master-addr {master} --master-port PORT"
    if family.starter:
        fix = f"start one process for each GPU with mpirun -x MASTER_ADDR={master}; or start it on each node "
        fix += f"({family.starter}) with {options}"
    else:
        fix = f"start it with {options} (a free PORT, the same on all nodes"
        fix += f"; --node-rank is {family.number} on each)" if family.number else ")"
    what = f"no launcher connects the {nodes} nodes of this {family.title}"
    if nodes is None:
        what = f"nothing tells how many nodes this {family.title} has, and no launcher connects them"
    names = (*family.detection_variables, family.number, family.own_name, family.master)
    return Failure(
        f"{what}: this node would train alone",
        found=" ".join(f"{name}={environ[name][:200]}" for name in dict.fromkeys(names) if environ.get(name)),
        fix=f"{fix}; {THIS_NODE_ONLY_FIX}",
        code=ExitCode.LAUNCH_CONFLICT,
    )
