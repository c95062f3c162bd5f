"""All ranks meet at one store before a process group exists, and conflicts are refused.

Each rank registers itself in the store. Then every rank checks that no rank and no GPU occurs twice
and that all agree on the size of the world. After the rendezvous, nodes whose clocks differ get a
warning.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import queue
import socket
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from torch import distributed as dist

from entrypoint import (
    ExitCode,
    Failure,
    Handover,
    World,
    engines,
    list_some,
    network,
    print_message,
    start_daemon_thread,
)

_REFUSAL_KEY = "train/refused"  # why a rank refused to take part, for the ranks that would wait for it
_POLL_INTERVAL_S = 1.0  # between two looks for missing ranks; the first ones are shorter
_WAITING_NOTE_AFTER_S = 10.0
# After the deadline a rank waits this much longer for a rank of its own host: if that rank is alive but silent, the
# parent process notices the hang first (entrypoint.hang), and its message says more.
SAME_HOST_GRACE_S: Final = 60.0


def register_rank(store: dist.Store, world: World, gpu: str) -> None:
    """Enter this rank into the store, with the UUID of its GPU (empty on the CPU).

    Raises:
        Failure: LAUNCH_CONFLICT if the rank is registered already, or if ranks disagree about the world size.
    """
    me = {"host": socket.gethostname(), "pid": os.getpid(), "gpu": gpu, "world_size": world.world_size}
    me |= {"node": world.node_rank, "reached": getattr(store, "host", "")}
    first = json.loads(store.compare_set("train/first", "", json.dumps(me | {"rank": world.rank})))
    if first["world_size"] != world.world_size:
        raise _world_size_failure(first["rank"], first, world)
    registration = json.dumps(me | {"id": str(uuid.uuid4())})  # pids repeat over containers
    winner = store.compare_set(f"train/who/{world.rank}", "", registration).decode()
    if winner != registration:
        other = json.loads(winner)
        raise duplicate_rank_failure(world.rank, f"{other['host']} pid {other['pid']} and {me['host']} pid {me['pid']}")


def is_on_same_host(rank: int, world: World) -> bool:
    """Whether both ranks are on the same host, if ranks are numbered host by host (not with `srun -m cyclic`).

    Only how long a rank is waited for depends on it.
    """
    return rank // world.local_world_size == world.rank // world.local_world_size


def wait_for_all_ranks(
    store: dist.Store, world: World, deadline: float, look: Callable[[], None], hosts: Sequence[str] = ()
) -> list[dict[str, object]]:
    """Wait until all ranks are registered; returns each rank's registration.

    Args:
        deadline: in time.monotonic's seconds; SAME_HOST_GRACE_S later for ranks of this host.
        look: called about once per second while ranks are missing; may raise.
        hosts: of all ranks, if the launcher gave them.

    Raises:
        Failure: PEER at the deadline or if the store is gone; LAUNCH_CONFLICT if a rank refused to take part.
    """
    keys = [f"train/who/{rank}" for rank in range(world.world_size)]
    interval_s, note_at = 0.01, time.monotonic() + _WAITING_NOTE_AFTER_S
    while not _has_keys(store, keys):  # torch's own wait() logs two lines each time that it times out
        left = deadline - time.monotonic()
        refused = _has_keys(store, [_REFUSAL_KEY])
        if refused:
            raise Failure(**json.loads(store.get(_REFUSAL_KEY)), code=ExitCode.LAUNCH_CONFLICT)
        if refused is None or left <= 0 or time.monotonic() > note_at:
            missing = [rank for rank, key in enumerate(keys) if _has_keys(store, [key]) is False]
            same_host = any(is_on_same_host(rank, world) for rank in missing)
            if refused is None or (left <= 0 and (left <= -SAME_HOST_GRACE_S or not same_host)):
                raise _missing_ranks_failure(store, keys, missing, hosts)
            if world.rank == 0 and time.monotonic() > note_at:
                note_at = math.inf
                print_message(f"waiting for {len(missing)} of {len(keys)} ranks: {list_some(missing, 8)}", sys.stderr)
        look()
        time.sleep(interval_s)
        interval_s = min(1.5 * interval_s, _POLL_INTERVAL_S)
    return [json.loads(value) for value in store.multi_get(keys)]


def refuse_conflicting_ranks(who: Sequence[Mapping[str, object]], world: World) -> None:
    """Refuse two ranks on one GPU, GPUs beside CPUs, and ranks that disagree about the world size.

    Raises:
        Failure: LAUNCH_CONFLICT.
    """
    for rank, other in enumerate(who):
        if other["world_size"] != world.world_size:
            raise _world_size_failure(rank, other, world)
    on_cpu = {str(other["host"]): rank for rank, other in enumerate(who) if not other["gpu"]}
    if on_cpu and any(other["gpu"] for other in who):
        raise Failure(
            "some ranks compute on GPUs and others on the CPU, where no NVIDIA driver is",
            found="on the CPU: " + ", ".join(f"rank {rank} on {host}" for host, rank in on_cpu.items()),
            expected="one device for all ranks",
            fix=f"leave these nodes out, or start the containers there with {engines.GPU_OPTIONS}; "
            "or --device cpu for all",
            code=ExitCode.LAUNCH_CONFLICT,
        )
    users: dict[tuple[object, object], list[int]] = defaultdict(list)
    for rank, other in enumerate(who):
        if other["gpu"]:
            users[other["host"], other["gpu"]].append(rank)
    for (host, gpu), ranks in users.items():
        if len(ranks) > 1:
            raise Failure(
                f"ranks {' and '.join(map(str, ranks))} use the same GPU",
                found=f"{gpu} on {host}",
                expected="one GPU for each rank",
                fix="give each task its own: srun --gpus-per-node=N --ntasks-per-node=N, without --gres-flags tricks",
                code=ExitCode.LAUNCH_CONFLICT,
            )


def publish_refusal(store: dist.Store, failure: Failure) -> None:
    """Write into the store why this rank does not take part: the others would wait for it."""
    arguments = {name: getattr(failure, name) for name in ("what", "found", "expected", "fix")}
    with suppress(dist.DistError, RuntimeError):
        store.set(_REFUSAL_KEY, json.dumps(arguments))


def duplicate_rank_failure(rank: int, processes: str) -> Failure:
    """The failure of two processes with the same rank. processes: names both."""
    return Failure(
        f"two processes say that they are rank {rank}",
        found=processes,
        expected="each rank once",
        fix="give each machine its own --node-rank; under srun read ranks inside the task, and export no RANK; two "
        "runs on one host need ports of their own: --master-port, or MASTER_PORT under mpiexec",
        code=ExitCode.LAUNCH_CONFLICT,
    )


def _has_keys(store: dist.Store, keys: list[str]) -> bool | None:
    """Whether the store has all keys; None if the store does not answer."""
    try:
        return bool(store.check(keys))
    except (dist.DistError, RuntimeError):
        return None


def _missing_ranks_failure(
    store: dist.Store, keys: Sequence[str], missing: Sequence[int], hosts: Sequence[str]
) -> Failure:
    empty = (
        _hosts_without_ranks(store, [key for rank, key in enumerate(keys) if rank not in missing], hosts)
        if missing
        else []
    )
    ranks = ", ".join(map(str, missing)) or "none, but the store is gone"
    return Failure(
        f"not all ranks arrived: missing {ranks}{', and no rank came from ' * bool(empty)}{', '.join(empty)}",
        found=f"{len(keys) - len(missing)} of {len(keys)} ranks",
        fix="look at the output of the missing ranks; launch.timeouts.start=SECONDS waits longer",
        code=ExitCode.PEER,
    )


def _hosts_without_ranks(store: dist.Store, arrived: Sequence[str], hosts: Sequence[str]) -> list[str]:
    """The hosts from which no rank came; empty if ranks name their hosts differently than the launcher."""
    with suppress(dist.DistError, RuntimeError):
        names = {_short_hostname(json.loads(value)["host"]) for value in store.multi_get(list(arrived))}
        if names <= {_short_hostname(host) for host in hosts}:
            return [host for host in hosts if _short_hostname(host) not in names]
    return []


def _short_hostname(host: str) -> str:
    return host.partition(".")[0]


def _world_size_failure(rank: int, other: Mapping[str, object], world: World) -> Failure:
    return Failure(
        f"rank {rank} and rank {world.rank} disagree about the number of ranks",
        found=f"{other['world_size']} says rank {rank} on {other['host']}, {world.world_size} says rank {world.rank}",
        fix="give all nodes the same number of GPUs and the same --nodes, or set --procs-per-node to one number",
        code=ExitCode.LAUNCH_CONFLICT,
    )


_LAUNCH_ID_KEY = "train/launch_id"  # kept in the store: the launch_id of who opened it
_SERVER_UUID_KEY = "train/server"
_PROCESS_UUID = str(uuid.uuid4())
_STORE_TIMEOUT_S = 5.0  # for the answer of one store; another program on our port never gives it
_RETRY_INTERVAL_S = 0.2
_LOOPBACK = "127.0.0.1"  # ranks of one host need no port that the network can see


def connect(world: World, environ: MutableMapping[str, str], timeout_s: float, gpu: str = "") -> dist.Store:
    """Wait for all ranks and check that they agree; returns the store that they share.

    Args:
        environ: this process's own; the interface for gloo and NCCL may be changed there.
        gpu: UUID of this rank's GPU, empty on the CPU.

    Raises:
        Failure: PEER if the store or a rank does not appear within `timeout_s` seconds (SAME_HOST_GRACE_S
            later for a rank of this host); LAUNCH_CONFLICT for two processes with one rank, two ranks on one
            GPU, or ranks that disagree about the world size.
    """
    deadline = time.monotonic() + timeout_s
    handover = Handover.from_environ(environ)
    store = _open_store(world, handover, environ.get("TORCHELASTIC_RESTART_COUNT", "0"), deadline)
    if world.world_size > 1:
        try:
            register_rank(store, world, gpu)
        except Failure as failure:
            publish_refusal(store, failure)
            raise
        who = wait_for_all_ranks(
            store, world, deadline, lambda: _refuse_second_rank_zero(world, handover), handover.hosts
        )
        refuse_conflicting_ranks(who, world)
        if world.node_rank == 0 and world.num_nodes > 1 and not environ.get("ENTRYPOINT_INTERFACE"):
            # On the host of rank 0: let gloo and NCCL use the interface to which the ranks of other nodes have come.
            #
            # The name of this host may mean a network here that they cannot reach. What the user set is kept.
            reached = {str(other["reached"]) for other in who if other["node"] != 0}
            name = next(
                (network.interface_towards(each) for each in reached if each and network.is_own_address(each)), None
            )
            for variable in handover.added:
                if name and variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
                    environ[variable] = name if variable == "GLOO_SOCKET_IFNAME" else f"={name}"
    return store


def _open_store(world: World, handover: Handover, attempt: str, deadline: float) -> dist.Store:
    """attempt: of torchrun, whose own store outlives the ranks."""
    if world.world_size == 1:
        return dist.HashStore()
    ports = handover.ports or (world.master_port,)
    if handover.agent_store:
        agents = _connect_client(world.master_addr, world.master_port, world.world_size, deadline - time.monotonic())
        return dist.PrefixStore(f"train/attempt-{attempt}", agents)
    meeting = replace(world, master_addr=_LOOPBACK) if handover.one_host else world
    if world.rank == 0:
        return _serve_store(meeting, ports, handover.launch_id, deadline)
    return _find_store(meeting, ports, handover.launch_id, deadline)


def _serve_store(world: World, ports: Sequence[int], launch_id: str, deadline: float) -> dist.Store:
    listener = network.bind_first_free(network.listen_address(world.master_addr, world.num_nodes), ports)
    address, port = listener.getsockname()[:2]
    for earlier, _ in _stores_of_launch(launch_id, world, ports[: list(ports).index(port)]):
        listener.close()
        raise duplicate_rank_failure(0, f"a store of this run already listens on {world.master_addr}:{earlier}")
    store = dist.TCPStore(
        _LOOPBACK if address in ("0.0.0.0", "::") else address,
        port,
        world.world_size,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=max(deadline - time.monotonic(), 1.0)),
        master_listen_fd=listener.detach(),
    )
    store.set(_SERVER_UUID_KEY, _PROCESS_UUID)
    store.set(_LAUNCH_ID_KEY, launch_id)
    return store


def _find_store(world: World, ports: Sequence[int], launch_id: str, deadline: float) -> dist.Store:
    """Try the ports until a store answers with this launch_id. Until the deadline, refusals are normal."""
    started, error = time.monotonic(), None
    deadline += SAME_HOST_GRACE_S if is_on_same_host(0, world) else 0.0
    addresses = network.resolve_all(world.master_addr)
    while True:
        for address, port in itertools.product(addresses, ports):
            error = network.probe(address, port, _STORE_TIMEOUT_S)
            if error is None and (store := _connect_store_of_launch(launch_id, world, address, port)):
                store.set_timeout(timedelta(seconds=max(deadline - time.monotonic(), 1.0)))
                return store
        if time.monotonic() > deadline:
            waited_s = time.monotonic() - started
            raise network.unreachable_failure(world.master_addr, ports, error, waited_s, addresses)
        time.sleep(_RETRY_INTERVAL_S)


def _stores_of_launch(launch_id: str, world: World, ports: Sequence[int]) -> Iterator[tuple[int, dist.Store]]:
    """The stores of this launch that answer at the master's addresses, each with its port."""
    for address, port in itertools.product(network.resolve_all(world.master_addr), ports):
        reached = network.probe(address, port, _STORE_TIMEOUT_S) is None
        if reached and (store := _connect_store_of_launch(launch_id, world, address, port)):
            yield port, store


def _connect_store_of_launch(launch_id: str, world: World, address: str, port: int) -> dist.Store | None:
    """The store on that port, if it has this launch_id.

    Another program may accept the connection and stay silent. torch's client then waits for ever, whatever its
    timeout is (torch 2.15). So a thread asks, which can be left behind.
    """
    answer: queue.SimpleQueue[dist.Store | None] = queue.SimpleQueue()

    def ask() -> None:
        try:
            store = _connect_client(address, port, world.world_size, _STORE_TIMEOUT_S)
            answer.put(store if store.get(_LAUNCH_ID_KEY).decode() == launch_id else None)
        except (dist.DistError, RuntimeError, UnicodeDecodeError):
            answer.put(None)  # another program's port, or another launch's store

    start_daemon_thread(ask)
    try:
        return answer.get(timeout=2 * _STORE_TIMEOUT_S)
    except queue.Empty:
        return None


def _connect_client(address: str, port: int, world_size: int, timeout_s: float) -> dist.Store:
    wait = timedelta(seconds=max(timeout_s, 1.0))
    return dist.TCPStore(address, port, world_size, is_master=False, wait_for_workers=False, timeout=wait)


def _refuse_second_rank_zero(world: World, handover: Handover) -> None:
    """On rank 0: refuse if another rank 0 answers at the master's address.

    That can be if the address is not this host's. It may also be the address of a service that
    leads back to this process: then the server's UUID is our own.

    Raises:
        Failure: LAUNCH_CONFLICT.
    """
    if world.rank or world.num_nodes == 1 or handover.agent_store:
        return
    if any(map(network.is_own_address, network.resolve_all(world.master_addr))):
        return
    ports = handover.ports or (world.master_port,)
    for port, other in _stores_of_launch(handover.launch_id, world, ports):
        if other.get(_SERVER_UUID_KEY).decode() != _PROCESS_UUID:
            failure = duplicate_rank_failure(
                0, f"one here on {socket.gethostname()}, one on {world.master_addr}:{port}"
            )
            publish_refusal(other, failure)
            raise failure


MAX_CLOCK_SKEW_S: Final = 2.0  # ranks look at their clocks a few milliseconds apart


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    """One rank's clock: seconds since 1970."""

    node: int
    host: str
    seconds: float


def clock_skew_warnings(readings: Sequence[ClockReading]) -> tuple[str, ...]:
    """One line if the clocks of nodes differ from rank 0's by more than MAX_CLOCK_SKEW_S.

    Only times in logs depend on these clocks, and a deadline that the scheduler gives in seconds
    since 1970. Durations are measured with monotonic clocks.

    readings: in the order of the ranks.
    """
    nodes = {reading.node: reading for reading in reversed(readings)}  # each node's first rank
    first = nodes.pop(readings[0].node)
    off = [
        f"{other.host} is {abs(apart):.1f} s {'ahead of' if apart > 0 else 'behind'} {first.host}"
        for _, other in sorted(nodes.items())
        if abs(apart := other.seconds - first.seconds) > MAX_CLOCK_SKEW_S
    ]
    message = f"clocks differ: {list_some(off, 8)}"
    return (f"{message}; times in logs do not compare (set the clocks: chronyc tracking)",) if off else ()
