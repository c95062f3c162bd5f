"""Platforms that start one task on each node: SkyPilot, dstack, SageMaker, HTCondor, Kubernetes and others.

Each task starts one rank per GPU. NODE_LAUNCHERS is the table; an entry holds all that is known
about one platform. The PET_* variables of Kubeflow are torchrun's flags and are read on their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from entrypoint.errors import ExitCode, Failure
from entrypoint.launchers.allocation import LOOPBACK, THIS_NODE_ONLY_FIX, Allocation
from entrypoint.machine import SAGEMAKER_HOST_FILE, Machine
from entrypoint.world import is_loopback, is_whole_number, parse_port, parse_whole_number


def _split_names(text: str) -> Sequence[str]:
    """Names separated by spaces, commas or lines, or in a JSON list."""
    return re.findall(r'[^\s,"\[\]]+', text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """The hosts of a job in the order of their ranks, and which of them this is ("": not told)."""

    names: tuple[str, ...] = ()
    own: str = ""


def _read_resource_config(text: str) -> Hosts:
    """SageMaker's resourceconfig.json: `{"current_host": "algo-2", "hosts": ["algo-1", "algo-2"]}`."""
    config = json.loads(text)
    return Hosts(names=tuple(map(str, config["hosts"])), own=str(config["current_host"]))


def _read_cluster_spec(text: str) -> Hosts:
    """Vertex AI's `{"cluster": {"workerpool0": ["host:port"], ...}, "task": {"type": "workerpool0", "index": 0}}`.

    Pools 0 and 1 train; the other two are parameter servers and evaluators.
    """
    import json

    spec = json.loads(text)
    pools = {
        pool: [str(name).rpartition(":")[0] or str(name) for name in names] for pool, names in spec["cluster"].items()
    }
    own = pools[spec["task"]["type"]][int(spec["task"]["index"])]
    return Hosts(names=(*pools["workerpool0"], *pools.get("workerpool1", ())), own=own)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLauncher:
    """How one platform describes the nodes of a job. An empty name: it has no such variable.

    Attributes:
        name: in `entrypoint show`; title: in an error.
        signs: variables that each show that this platform started the task, and a word that the value holds.
        num_nodes, node_rank: the variables with the number of nodes and this node's number.
        first_node: the variable with the number of the node that gets rank 0, if it may be another than node 0.
        hosts: the variable with the nodes' names or addresses, separated by lines, commas or spaces.
        own_host: the variable with this node's name, as in `hosts`, where there is no node_rank.
        document: the variable or the file of Machine.host_files with the hosts in JSON, read where `hosts` is not set.
        read_document: reads it.
        master: the variable with the address of node 0, if it is not the first of `hosts`.
        master_knows_itself: whether node 0 has `master` too.
        rank_counts_nodes: whether RANK and WORLD_SIZE without LOCAL_RANK are numbers of nodes.
        job_id: the variable with an id of the job, equal on all nodes.
        split: reads the value of `hosts`.
    """

    name: str
    title: str
    signs: Mapping[str, str] = field(default_factory=dict)
    num_nodes: str = ""
    node_rank: str = ""
    first_node: str = ""
    hosts: str = ""
    own_host: str = ""
    document: str = ""
    read_document: Callable[[str], Hosts] | None = None
    master: str = ""
    master_knows_itself: bool = True
    rank_counts_nodes: bool = False
    job_id: str = ""
    split: Callable[[str], Sequence[str]] = _split_names

    def started(self, environ: Mapping[str, str]) -> bool:
        """Whether the variables are this platform's: also if only some of them are here that tell of other nodes."""
        counted = self.document or any(environ.get(name) for name in (self.num_nodes, self.hosts))
        signed = any(environ.get(name) and word in environ[name] for name, word in self.signs.items())
        return bool(counted and signed) or (not self.rank_counts_nodes and self._tells_of_others(environ))

    def _tells_of_others(self, environ: Mapping[str, str]) -> bool:
        rank, nodes = (
            int(text) if is_whole_number(text := environ.get(name, "")) else 0
            for name in (self.node_rank, self.num_nodes)
        )
        return rank > 0 or nodes > 1 or len(self.split(environ.get(self.hosts, ""))) > 1


NODE_LAUNCHERS: Final = (
    # https://docs.skypilot.co/en/stable/running-jobs/environment-variables.html
    NodeLauncher(
        name="skypilot",
        title="a SkyPilot job",
        signs={"SKYPILOT_NODE_RANK": ""},
        num_nodes="SKYPILOT_NUM_NODES",
        node_rank="SKYPILOT_NODE_RANK",
        hosts="SKYPILOT_NODE_IPS",
        job_id="SKYPILOT_TASK_ID",
    ),
    # dstack's runner/internal/executor/executor.go, execJob
    NodeLauncher(
        name="dstack",
        title="a dstack task",
        signs={"DSTACK_NODE_RANK": ""},
        num_nodes="DSTACK_NODES_NUM",
        node_rank="DSTACK_NODE_RANK",
        hosts="DSTACK_NODES_IPS",
        master="DSTACK_MASTER_NODE_IP",
        job_id="DSTACK_RUN_ID",
    ),
    # ENVIRONMENT_VARIABLES.md of sagemaker-training-toolkit, which sets them: SM_HOSTS=["algo-1","algo-2"]. Without it
    # there is the file.
    NodeLauncher(
        name="sagemaker",
        title="a SageMaker job",
        signs={"SM_HOSTS": "", "TRAINING_JOB_ARN": ""},
        hosts="SM_HOSTS",
        own_host="SM_CURRENT_HOST",
        document=SAGEMAKER_HOST_FILE,
        read_document=_read_resource_config,
        job_id="TRAINING_JOB_NAME",
    ),
    # HTCondor's src/condor_starter.V6.1/parallel_proc.cpp. Several tasks may share a machine.
    NodeLauncher(
        name="htcondor",
        title="an HTCondor parallel job",
        signs={"_CONDOR_NPROCS": ""},
        num_nodes="_CONDOR_NPROCS",
        node_rank="_CONDOR_PROCNO",
        job_id="_CONDOR_REMOTE_SPOOL_DIR",
    ),
    # A pod of Volcano's PyTorch plugin, PAI-DLC and others, where RANK and WORLD_SIZE count pods:
    # https://volcano.sh/en/docs/pytorch_plugin and https://www.alibabacloud.com/help/en/pai/general-environment-variables
    NodeLauncher(
        name="kubernetes",
        title="a Kubernetes job",
        signs={"KUBERNETES_SERVICE_HOST": ""},
        num_nodes="WORLD_SIZE",
        node_rank="RANK",
        master="MASTER_ADDR",
        rank_counts_nodes=True,
    ),
    # https://cloud.google.com/vertex-ai/docs/training/distributed-training. RANK and WORLD_SIZE are not always set.
    NodeLauncher(
        name="vertex",
        title="a Vertex AI job",
        signs={"CLUSTER_SPEC": "workerpool"},
        document="CLUSTER_SPEC",
        read_document=_read_cluster_spec,
        rank_counts_nodes=True,
        job_id="CLOUD_ML_JOB_ID",
    ),
    # https://docs.aws.amazon.com/batch/latest/userguide/job_env_vars.html: a multi-node parallel job
    NodeLauncher(
        name="aws-batch",
        title="an AWS Batch job",
        signs={"AWS_BATCH_JOB_NODE_INDEX": ""},
        num_nodes="AWS_BATCH_JOB_NUM_NODES",
        node_rank="AWS_BATCH_JOB_NODE_INDEX",
        first_node="AWS_BATCH_JOB_MAIN_NODE_INDEX",
        master="AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS",
        master_knows_itself=False,
        job_id="AWS_BATCH_JOB_ATTEMPT",  # AWS_BATCH_JOB_ID differs between the nodes
    ),
    # https://lws.sigs.k8s.io, "Labels, annotations and environment variables" of LeaderWorkerSet
    NodeLauncher(
        name="leaderworkerset",
        title="a LeaderWorkerSet group",
        signs={"LWS_WORKER_INDEX": ""},
        num_nodes="LWS_GROUP_SIZE",
        node_rank="LWS_WORKER_INDEX",
        master="LWS_LEADER_ADDRESS",
    ),
    # https://beaker-docs.apps.allenai.org, "Distributed training"; the leader is known with leaderSelection only
    NodeLauncher(
        name="beaker",
        title="a Beaker experiment",
        signs={"BEAKER_REPLICA_RANK": ""},
        num_nodes="BEAKER_REPLICA_COUNT",
        node_rank="BEAKER_REPLICA_RANK",
        master="BEAKER_LEADER_REPLICA_HOSTNAME",
        job_id="BEAKER_WORKLOAD_ID",
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
        if launcher.started(environ):
            return launcher
    return None


def job_key(environ: Mapping[str, str]) -> str:
    """The platform's job; empty without a platform."""
    if environ.get("PET_NNODES"):
        return f"pet:{environ.get('PET_RDZV_ID', '')}"
    launcher = find_launcher(environ)
    return f"{launcher.name}:{environ.get(launcher.job_id, '')}" if launcher else ""


def refuse_unknown_number_of_nodes(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Refuse a pod that is not the first of its job, and whose place among all pods is not certain. Return warnings.

    https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode, which JobSet makes its Jobs use;
    Volcano's svc plugin, which counts the pods of each role: VC_MASTER_NUM, VC_WORKER_NUM.
    Call this when no other launcher was detected. The first pod may be the only one, unless it has an address of rank
    0 (MASTER_ADDR).

    Raises:
        Failure: LAUNCH_CONFLICT if this is such a pod.
    """
    roles = [name for name in environ if re.fullmatch(r"VC_\w+_NUM", name) and is_whole_number(environ[name])]
    manifest = "set PET_NNODES, PET_NODE_RANK and PET_MASTER_ADDR in the manifest, as launch/kubernetes.yaml does"
    index, what = "JOB_COMPLETION_INDEX", "nothing tells how many nodes this Kubernetes indexed Job has"
    way_out = "if its pods do not train together, set PET_NNODES=1; otherwise "
    if environ.get(index) == "0" and is_loopback(environ.get("MASTER_ADDR") or LOOPBACK):
        return (f"{what}: this pod trains alone, and others are refused. fix: {way_out}{manifest}",)
    if not environ.get(index):
        index, what = "VC_TASK_INDEX", "nothing tells which of the Volcano job's pods this is"
        way_out = "use Volcano's pytorch plugin, or "
        number = environ.get(index, "")
        if not is_whole_number(number) or (int(number) == 0 and sum(int(environ[name]) for name in roles) <= 1):
            return ()
    raise Failure(
        f"{what}: this node would train alone",
        found=" ".join(f"{name}={environ[name][:200]}" for name in (index, *sorted(roles))),
        fix=f"{way_out}{manifest}; {THIS_NODE_ONLY_FIX}",
        code=ExitCode.LAUNCH_CONFLICT,
    )


def counts_nodes_in_world_size(environ: Mapping[str, str]) -> bool:
    """Whether RANK and WORLD_SIZE are numbers of nodes on the platform that started this task."""
    launcher = find_launcher(environ)
    return launcher is not None and launcher.rank_counts_nodes


def count_nodes(environ: Mapping[str, str], machine: Machine, launcher: NodeLauncher) -> tuple[int, str]:
    """The number of nodes of the platform's job, and the variable or file that says so.

    Raises:
        Failure: LAUNCH_CONFLICT if nothing says so.
    """
    hosts, source = _read_hosts(environ, machine, launcher)
    if not environ.get(launcher.num_nodes):
        if not hosts.names:
            names = [name for name in (launcher.num_nodes, launcher.hosts, launcher.document) if name]
            raise _conflict(environ, launcher, f"the nodes cannot be read from {' or '.join(names)}", names[0])
        return len(hosts.names), source
    nodes = parse_whole_number(launcher.num_nodes, environ[launcher.num_nodes])
    if nodes < 1 or (hosts.names and len(hosts.names) != nodes):
        raise _conflict(environ, launcher, f"{launcher.num_nodes} is not the number of nodes", launcher.num_nodes)
    return nodes, launcher.num_nodes


def read_allocation(environ: Mapping[str, str], machine: Machine, launcher: NodeLauncher) -> Allocation:
    """The Allocation of one task per node.

    Raises:
        Failure: LAUNCH_CONFLICT for a missing variable or impossible numbers.
    """
    hosts, hosts_source = _read_hosts(environ, machine, launcher)
    nodes, nodes_source = count_nodes(environ, machine, launcher)
    node_rank, rank_source = _read_node_rank(environ, launcher, hosts, nodes)
    master, master_source = _read_master(environ, machine, launcher, hosts, node_rank)
    return Allocation(
        launcher=launcher.name,
        task=node_rank,
        num_tasks=nodes,
        local_task=0,
        tasks_on_node=1,
        node_rank=node_rank,
        num_nodes=nodes,
        hosts=(machine.hostname,) if nodes == 1 else hosts.names,
        one_task_per_node=True,
        master_addr=LOOPBACK if nodes == 1 else master,
        master_port=None,
        # Without the master's address, which may be `localhost` on the master only.
        launch_id=f"{launcher.name}:{environ.get(launcher.job_id, '')}:{nodes}:{environ.get('MASTER_PORT', '')}",
        exchanges_hosts=nodes > 1 and not master,
        sources={
            "rank": rank_source,
            "node_rank": rank_source,
            "num_nodes": nodes_source,
            "hosts": hosts_source,
            "master_addr": "one node: loopback" if nodes == 1 else master_source or hosts_source,
        },
    )


def _read_hosts(environ: Mapping[str, str], machine: Machine, launcher: NodeLauncher) -> tuple[Hosts, str]:
    """The hosts, and the variable or file that lists them; no hosts if nothing does, or nothing readable."""
    if text := environ.get(launcher.hosts):
        return Hosts(
            names=tuple(dict.fromkeys(launcher.split(text))), own=environ.get(launcher.own_host, "")
        ), launcher.hosts
    text = machine.host_files.get(launcher.document) or environ.get(launcher.document)
    if launcher.read_document and text:
        try:
            return launcher.read_document(text), launcher.document
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            pass  # count_nodes refuses what nothing else describes
    return Hosts(), ""


def _read_node_rank(environ: Mapping[str, str], launcher: NodeLauncher, hosts: Hosts, nodes: int) -> tuple[int, str]:
    """This node's number, and the variable or file that says so."""
    if hosts.own or launcher.own_host:
        source = launcher.own_host if environ.get(launcher.hosts) else launcher.document
        if hosts.own not in hosts.names:
            raise _conflict(environ, launcher, f"{source} is not in {launcher.hosts or 'pool 0 or 1'}", source)
        return hosts.names.index(hosts.own), source
    if not environ.get(launcher.node_rank):
        raise _conflict(environ, launcher, f"{launcher.node_rank} is not set", launcher.node_rank)
    node_rank = parse_whole_number(launcher.node_rank, environ[launcher.node_rank])
    if node_rank >= nodes:
        raise _conflict(environ, launcher, f"{launcher.node_rank} must be below {nodes}", launcher.node_rank)
    first = parse_whole_number(launcher.first_node, environ.get(launcher.first_node) or "0")
    return (node_rank - first) % nodes, launcher.node_rank


def _read_master(
    environ: Mapping[str, str], machine: Machine, launcher: NodeLauncher, hosts: Hosts, node_rank: int
) -> tuple[str, str]:
    """The address of node 0 and its source; both empty if nothing tells it to any node."""
    for name in ("MASTER_ADDR", launcher.master):
        if environ.get(name):
            return environ[name], name
    if hosts.names:
        return hosts.names[0], ""
    if launcher.master_knows_itself:
        return "", ""
    if node_rank:
        raise _conflict(environ, launcher, f"{launcher.master} is not set", launcher.master)
    return machine.hostname, "this host"


def _conflict(environ: Mapping[str, str], launcher: NodeLauncher, what: str, variable: str) -> Failure:
    names = dict.fromkeys((variable, launcher.num_nodes, launcher.hosts, *launcher.signs))
    return Failure(
        f"{what}, in {launcher.title}",
        found=" ".join(f"{name}={environ[name][:200]}" for name in names if environ.get(name)),
        fix=f"pass {variable} into the container (docker run -e {variable}); {THIS_NODE_ONLY_FIX}",
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
        launch_id=f"pet:{port}:{nodes}:{environ.get('PET_RDZV_ID', '')}",  # the master may call itself `localhost`
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
