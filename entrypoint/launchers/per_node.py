"""Platforms that start one task on each node: SkyPilot, dstack, SageMaker, HTCondor, Kubernetes, Vertex AI.

Each task starts one rank per GPU. NODE_LAUNCHERS is the table; an entry holds all that is known
about one platform. The PET_* variables of Kubeflow are torchrun's flags and are read on their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from entrypoint.errors import ExitCode, Failure
from entrypoint.launchers.allocation import LOOPBACK, THIS_NODE_ONLY_FIX, Allocation
from entrypoint.machine import Machine
from entrypoint.world import parse_port, parse_whole_number


def _split_names(text: str) -> Sequence[str]:
    """Names separated by spaces, commas or lines, or in a JSON list."""
    return re.findall(r'[^\s,"\[\]]+', text)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLauncher:
    """How one platform describes the nodes of a job. An empty name: it has no such variable.

    Attributes:
        name: in `entrypoint show`; title: in an error.
        sign: the variable that shows that this platform started the task.
        num_nodes, node_rank: the variables with the number of nodes and this node's number.
        hosts: the variable with the nodes' names or addresses, separated by lines, commas or spaces.
        own_host: the variable with this node's name, as in `hosts`, where there is no node_rank.
        master: the variable with the address of node 0, if it is not the first of `hosts`.
        job_id: the variable with an id of the job, equal on all nodes.
        split: reads the value of `hosts`.
    """

    name: str
    title: str
    sign: str
    num_nodes: str = ""
    node_rank: str = ""
    hosts: str = ""
    own_host: str = ""
    master: str = ""
    job_id: str = ""
    split: Callable[[str], Sequence[str]] = _split_names


NODE_LAUNCHERS: Final = (
    # https://docs.skypilot.co/en/stable/running-jobs/environment-variables.html
    NodeLauncher(
        name="skypilot",
        title="SkyPilot job",
        sign="SKYPILOT_NODE_RANK",
        num_nodes="SKYPILOT_NUM_NODES",
        node_rank="SKYPILOT_NODE_RANK",
        hosts="SKYPILOT_NODE_IPS",
        job_id="SKYPILOT_TASK_ID",
    ),
    # dstack's runner/internal/executor/executor.go, execJob
    NodeLauncher(
        name="dstack",
        title="dstack task",
        sign="DSTACK_NODE_RANK",
        num_nodes="DSTACK_NODES_NUM",
        node_rank="DSTACK_NODE_RANK",
        hosts="DSTACK_NODES_IPS",
        master="DSTACK_MASTER_NODE_IP",
        job_id="DSTACK_RUN_ID",
    ),
    # ENVIRONMENT_VARIABLES.md of sagemaker-training-toolkit, which sets them: SM_HOSTS=["algo-1","algo-2"]
    NodeLauncher(
        name="sagemaker",
        title="SageMaker job",
        sign="SM_HOSTS",
        hosts="SM_HOSTS",
        own_host="SM_CURRENT_HOST",
        job_id="TRAINING_JOB_NAME",
    ),
    # HTCondor's src/condor_starter.V6.1/parallel_proc.cpp. Several tasks may share a machine.
    NodeLauncher(
        name="htcondor",
        title="HTCondor parallel job",
        sign="_CONDOR_NPROCS",
        num_nodes="_CONDOR_NPROCS",
        node_rank="_CONDOR_PROCNO",
        job_id="_CONDOR_REMOTE_SPOOL_DIR",
    ),
    # A pod of Volcano's PyTorch plugin, PAI-DLC and others, where RANK and WORLD_SIZE count pods:
    # https://volcano.sh/en/docs/pytorch_plugin and https://www.alibabacloud.com/help/en/pai/general-environment-variables
    NodeLauncher(
        name="kubernetes",
        title="Kubernetes job",
        sign="KUBERNETES_SERVICE_HOST",
        num_nodes="WORLD_SIZE",
        node_rank="RANK",
        master="MASTER_ADDR",
    ),
    # https://cloud.google.com/vertex-ai/docs/training/distributed-training: they count machines
    NodeLauncher(
        name="vertex",
        title="Vertex AI job",
        sign="CLUSTER_SPEC",
        num_nodes="WORLD_SIZE",
        node_rank="RANK",
        master="MASTER_ADDR",
        job_id="CLOUD_ML_JOB_ID",
    ),
)
NAMES: Final = frozenset(("pet", *(launcher.name for launcher in NODE_LAUNCHERS)))


def find_launcher(environ: Mapping[str, str]) -> NodeLauncher | None:
    """The platform that started this task, or None."""
    # There WORLD_SIZE counts ranks: torchrun's, or those of torchrun's flags.
    counts_ranks = bool(environ.get("LOCAL_RANK") or environ.get("PET_NNODES"))
    for launcher in NODE_LAUNCHERS:
        if launcher.num_nodes == "WORLD_SIZE" and counts_ranks:
            continue
        counts = [name for name in (launcher.num_nodes, launcher.hosts) if name]
        if environ.get(launcher.sign) and any(environ.get(name) for name in counts):
            return launcher
    return None


def refuse_unknown_number_of_nodes(environ: Mapping[str, str]) -> None:
    """Refuse a pod of an indexed Job, which knows its own index and not the number of pods.

    https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode, which JobSet makes its Jobs use.
    Call this when no other launcher was detected.

    Raises:
        Failure: LAUNCH_CONFLICT if this is such a pod.
    """
    name = "JOB_COMPLETION_INDEX"
    if environ.get(name):
        raise Failure(
            "nothing tells how many nodes this Kubernetes indexed Job has: this node would train alone",
            found=f"{name}={environ[name][:200]}",
            fix="set PET_NNODES, PET_NODE_RANK and PET_MASTER_ADDR in the manifest, as launch/kubernetes.yaml does; "
            f"for a Job of one pod PET_NNODES=1 is enough; {THIS_NODE_ONLY_FIX}",
            code=ExitCode.LAUNCH_CONFLICT,
        )


def counts_nodes_in_world_size(environ: Mapping[str, str]) -> bool:
    """Whether RANK and WORLD_SIZE are numbers of nodes on the platform that started this task."""
    launcher = find_launcher(environ)
    return launcher is not None and launcher.num_nodes == "WORLD_SIZE"


def read_allocation(environ: Mapping[str, str], machine: Machine, launcher: NodeLauncher) -> Allocation:
    """The Allocation of one task per node.

    Raises:
        Failure: LAUNCH_CONFLICT for a missing variable or impossible numbers.
    """
    hosts = tuple(dict.fromkeys(launcher.split(environ.get(launcher.hosts, ""))))
    nodes = _read_num_nodes(environ, launcher, hosts)
    node_rank = _read_node_rank(environ, launcher, hosts, nodes)
    master = environ.get(launcher.master) or next(iter(hosts), "")
    return Allocation(
        launcher=launcher.name,
        task=node_rank,
        num_tasks=nodes,
        local_task=0,
        tasks_on_node=1,
        node_rank=node_rank,
        num_nodes=nodes,
        hosts=(machine.hostname,) if nodes == 1 else hosts,
        one_task_per_node=True,
        master_addr=LOOPBACK if nodes == 1 else master,
        master_port=None,
        launch_id=f"{launcher.name}:{environ.get(launcher.job_id, '')}:{master}",
        exchanges_hosts=nodes > 1 and not master,
        sources={
            "rank": launcher.node_rank or launcher.own_host,
            "node_rank": launcher.node_rank or launcher.own_host,
            "num_nodes": launcher.num_nodes or launcher.hosts,
            "hosts": launcher.hosts,
            "master_addr": "one node: loopback" if nodes == 1 else launcher.master or launcher.hosts,
        },
    )


def _read_num_nodes(environ: Mapping[str, str], launcher: NodeLauncher, hosts: Sequence[str]) -> int:
    if not environ.get(launcher.num_nodes):
        return len(hosts)
    nodes = parse_whole_number(launcher.num_nodes, environ[launcher.num_nodes])
    if nodes < 1 or (hosts and len(hosts) != nodes):
        raise _conflict(environ, launcher, f"{launcher.num_nodes} is not the number of nodes", launcher.num_nodes)
    return nodes


def _read_node_rank(environ: Mapping[str, str], launcher: NodeLauncher, hosts: Sequence[str], nodes: int) -> int:
    if launcher.own_host:
        if environ.get(launcher.own_host) not in hosts:
            raise _conflict(environ, launcher, f"{launcher.own_host} is not in {launcher.hosts}", launcher.own_host)
        return hosts.index(environ[launcher.own_host])
    if not environ.get(launcher.node_rank):
        raise _conflict(environ, launcher, f"{launcher.node_rank} is not set", launcher.node_rank)
    node_rank = parse_whole_number(launcher.node_rank, environ[launcher.node_rank])
    if node_rank >= nodes:
        raise _conflict(environ, launcher, f"{launcher.node_rank} must be below {nodes}", launcher.node_rank)
    return node_rank


def _conflict(environ: Mapping[str, str], launcher: NodeLauncher, what: str, variable: str) -> Failure:
    names = dict.fromkeys((variable, launcher.num_nodes, launcher.hosts))
    return Failure(
        f"{what}, in a {launcher.title}",
        found=" ".join(f"{name}={environ[name][:200]}" for name in names if environ.get(name)),
        fix=f"let the platform set {variable}; {THIS_NODE_ONLY_FIX}",
        code=ExitCode.LAUNCH_CONFLICT,
    )


def pet_allocation(environ: Mapping[str, str], machine: Machine) -> Allocation:
    """Torchrun's flags as PET_* variables, which Kubeflow sets: one task on each node.

    Raises:
        Failure: LAUNCH_CONFLICT for an elastic number of nodes or a missing variable.
    """
    nodes = _parse_num_nodes("PET_NNODES", environ["PET_NNODES"])
    needed = ("PET_NODE_RANK", "PET_MASTER_ADDR") if nodes > 1 else ()
    missing = [name for name in needed if not environ.get(name)]
    if missing:
        raise _pet_failure(f"PET_NNODES={nodes} without {', '.join(missing)}", f"set {', '.join(missing)} on each node")
    node_rank = parse_whole_number("PET_NODE_RANK", environ.get("PET_NODE_RANK") or "0")
    if node_rank >= nodes:
        raise _pet_failure(f"PET_NODE_RANK={node_rank} must be below PET_NNODES={nodes}", "count nodes from 0")
    addr, port = environ.get("PET_MASTER_ADDR") or LOOPBACK, environ.get("PET_MASTER_PORT")
    procs = environ.get("PET_NPROC_PER_NODE") or "auto"
    return Allocation(
        launcher="pet",
        task=node_rank,
        num_tasks=nodes,
        local_task=0,
        tasks_on_node=1,
        node_rank=node_rank,
        num_nodes=nodes,
        hosts=(machine.hostname,) if nodes == 1 else (),
        one_task_per_node=True,
        master_addr=addr,
        master_port=parse_port("PET_MASTER_PORT", port) if port else None,
        procs_per_node=None if procs in ("auto", "gpu", "cpu") else _parse_positive("PET_NPROC_PER_NODE", procs),
        launch_id=f"pet:{addr.partition('%')[0]}:{port}:{nodes}:{environ.get('PET_RDZV_ID', '')}",
        sources={
            "node_rank": "PET_NODE_RANK",
            "num_nodes": "PET_NNODES",
            "local_world_size": "PET_NPROC_PER_NODE",
            "master_addr": "PET_MASTER_ADDR",
            "master_port": "PET_MASTER_PORT",
        },
    )


def _parse_num_nodes(variable: str, text: str) -> int:
    if ":" in text:
        raise _pet_failure(f"{variable}={text}: an elastic number of nodes", f"set {variable} to one number")
    return _parse_positive(variable, text)


def _parse_positive(variable: str, text: str) -> int:
    number = parse_whole_number(variable, text)
    if number < 1:
        raise _pet_failure(f"{variable}={text}: there must be at least one", f"set {variable} to 1 or more")
    return number


def _pet_failure(what: str, fix: str) -> Failure:
    return Failure(what, fix=fix, code=ExitCode.LAUNCH_CONFLICT)
