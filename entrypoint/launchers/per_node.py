"""Platforms that start one task on each node: SkyPilot, dstack, SageMaker, HTCondor, Kubernetes and others.

Each task starts one rank per GPU. The PET_* variables of Kubeflow are torchrun's flags, and are read by a function of
their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from entrypoint.errors import ExitCode, Failure
from entrypoint.launchers.allocation import LOOPBACK, THIS_NODE_ONLY_FIX, Allocation, Evidence
from entrypoint.machine import Machine
from entrypoint.platforms import Hosts, Platform, platforms_that_start
from entrypoint.world import is_loopback, is_whole_number, parse_port, parse_whole_number, read_sizes

PLATFORMS: Final = platforms_that_start("node")


def find_platforms(environ: Mapping[str, str]) -> list[Platform]:
    """The platforms that started this task, innermost first."""
    # There WORLD_SIZE counts ranks: torchrun's, or those of torchrun's flags.
    counts_ranks = bool(environ.get("LOCAL_RANK") or environ.get("PET_NNODES"))
    return [
        platform
        for platform in PLATFORMS.values()
        if _started(environ, platform) and not (counts_ranks and platform.variables.get("num_nodes") == "WORLD_SIZE")
    ]


def _started(environ: Mapping[str, str], platform: Platform) -> bool:
    """Whether the variables are this platform's: also if only some of them are here that tell of other nodes."""
    sizes = (platform.variables.get("num_nodes", ""), *platform.hosts)
    counted = bool(platform.host_files) or any(environ.get(name) for name in sizes)
    signed = any(environ.get(name) and word in environ[name] for name, word in platform.signs.items())
    return (counted and signed) or (not platform.rank_counts_nodes and _tells_of_others(environ, platform))


def _tells_of_others(environ: Mapping[str, str], platform: Platform) -> bool:
    rank, nodes = (
        int(text) if is_whole_number(text := platform.get(environ, fact) or "") else 0
        for fact in ("node_rank", "num_nodes")
    )
    return rank > 0 or nodes > 1 or len(platform.read_hosts(environ, {}).names) > 1


def read_evidence(environ: Mapping[str, str], machine: Machine) -> Iterator[Evidence]:
    """What each platform says that started this task."""
    for platform in find_platforms(environ):
        if platform.name == "pet":
            read, count = partial(pet_allocation, environ, machine), partial(read_sizes, environ, ["PET_NNODES"])
        else:
            hosts = platform.read_hosts(environ, machine.host_files)
            read = partial(read_allocation, environ, machine, platform, hosts)
            count = partial(count_nodes, environ, platform, hosts)
        yield Evidence(platform=platform, read=read, count_nodes=count)


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


def count_nodes(environ: Mapping[str, str], platform: Platform, hosts: Hosts) -> dict[str, int]:
    """The variable or file that tells the number of nodes of the platform's job, and the number.

    Raises:
        Failure: LAUNCH_CONFLICT if nothing says so.
    """
    variable = platform.variables.get("num_nodes")
    if not (variable and environ.get(variable)):
        if not hosts.source:
            names = [name for name in (variable, *platform.hosts, *platform.host_files) if name]
            raise _conflict(environ, platform, f"the nodes cannot be read from {' or '.join(names)}", names[0])
        return {hosts.source: len(hosts.names)}
    nodes = parse_whole_number(variable, environ[variable])
    if nodes < 1 or (hosts.names and len(hosts.names) != nodes):
        raise _conflict(environ, platform, f"{variable} is not the number of nodes", variable)
    return {variable: nodes}


def read_allocation(environ: Mapping[str, str], machine: Machine, platform: Platform, hosts: Hosts) -> Allocation:
    """The Allocation of one task per node.

    Raises:
        Failure: LAUNCH_CONFLICT for a missing variable or impossible numbers.
    """
    ((nodes_source, nodes),) = count_nodes(environ, platform, hosts).items()
    node_rank, rank_source = _read_node_rank(environ, platform, hosts, nodes)
    master, master_source = _read_master(environ, machine, platform, hosts, node_rank)
    return Allocation(
        launcher=platform.name,
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
        launch_id=f"{platform.name}:{platform.launch_id(environ)}:{nodes}:{environ.get('MASTER_PORT', '')}",
        exchanges_hosts=nodes > 1 and not master,
        sources={
            "rank": rank_source,
            "node_rank": rank_source,
            "num_nodes": nodes_source,
            "hosts": hosts.source or "",
            "master_addr": "one node: loopback" if nodes == 1 else master_source or "",
        },
    )


def _read_node_rank(environ: Mapping[str, str], platform: Platform, hosts: Hosts, nodes: int) -> tuple[int, str]:
    """This node's number, and the variable or file that says so."""
    variables, own = platform.variables, hosts.own or platform.get(environ, "own_host")
    if hosts.source and (own or "own_host" in variables):
        source = hosts.source if hosts.own else variables["own_host"]
        if own not in hosts.names:
            listed = next(iter(platform.hosts)) if "own_host" in variables else "pool 0 or 1"
            raise _conflict(environ, platform, f"{source} is not in {listed}", source)
        return hosts.names.index(own), source
    variable = variables["node_rank"]
    if not environ.get(variable):
        raise _conflict(environ, platform, f"{variable} is not set", variable)
    node_rank = parse_whole_number(variable, environ[variable])
    if node_rank >= nodes:
        raise _conflict(environ, platform, f"{variable} must be below {nodes}", variable)
    first = parse_whole_number(variables.get("first_node", ""), platform.get(environ, "first_node") or "0")
    return (node_rank - first) % nodes, variable


def _read_master(
    environ: Mapping[str, str], machine: Machine, platform: Platform, hosts: Hosts, node_rank: int
) -> tuple[str, str | None]:
    """The address of node 0 and its source; ("", None) if nothing tells it to any node."""
    variable = platform.variables.get("master")
    for name in ("MASTER_ADDR", variable):
        if name and environ.get(name):
            return environ[name], name
    if hosts.names:
        return hosts.names[0], hosts.source
    if platform.master_knows_itself:
        return "", None
    if node_rank and variable:
        raise _conflict(environ, platform, f"{variable} is not set", variable)
    return machine.hostname, "this host"


def _conflict(environ: Mapping[str, str], platform: Platform, what: str, variable: str) -> Failure:
    names = dict.fromkeys((variable, platform.variables.get("num_nodes", variable), *platform.hosts, *platform.signs))
    return Failure(
        f"{what}, in {platform.title}",
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
