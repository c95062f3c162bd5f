"""All ranks at one store, before any process group: same run, no rank twice, no GPU twice, or a clear refusal."""

from __future__ import annotations

import queue
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from torch import distributed as dist

from entrypoint import Failure, World, begin_thread, network
from train.ranks import attendance

_NONCE = "train/nonce"
_SERVER = "train/server"
_ME = str(uuid.uuid4())
_ANSWER_S = 5.0  # for one store to answer a question; a foreign service on our port never does
_RETRY_S = 0.2
_LOOPBACK = "127.0.0.1"  # ranks of one host need no port that the network can see


def connect(world: World, environ: Mapping[str, str], timeout_s: float, gpu: str = "") -> dist.Store:
    """The store that all ranks share, once all are there and agree.

    Args:
        gpu: UUID of this rank's GPU, empty on the CPU.

    Raises:
        Failure: PEER where the store or a rank does not appear in `timeout_s` seconds (attendance.NEIGHBOUR_S later
            for one of this host); FACTS for a rank that is there twice, two ranks on one GPU, or ranks that disagree
            about the world.
    """
    deadline = time.monotonic() + timeout_s
    store = _open(world, environ, deadline)
    if world.world_size > 1:
        try:
            attendance.sign(store, world, gpu)
        except Failure as failure:
            attendance.tell_those_who_wait(store, failure)
            raise
        who = attendance.wait_for_all(store, world, deadline, lambda: _refuse_rival(world, environ), _hosts(environ))
        attendance.compare(who, world)
    return store


def _open(world: World, environ: Mapping[str, str], deadline: float) -> dist.Store:
    if world.world_size == 1:
        return dist.HashStore()
    run_id = environ.get("ENTRYPOINT_RUN_ID", "")
    ports = [int(port) for port in environ.get("ENTRYPOINT_PORTS", str(world.master_port)).split(",")]
    if environ.get("ENTRYPOINT_AGENT_STORE") == "1":
        attempt = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        agents = _client(world.master_addr, world.master_port, world.world_size, deadline - time.monotonic())
        return dist.PrefixStore(f"train/attempt-{attempt}", agents)
    meeting = replace(world, master_addr=_LOOPBACK) if environ.get("ENTRYPOINT_ONE_HOST") == "1" else world
    if world.rank == 0:
        return _serve(meeting, ports, run_id, deadline)
    return _find(meeting, ports, run_id, deadline)


def _hosts(environ: Mapping[str, str]) -> list[str]:
    return [host for host in environ.get("ENTRYPOINT_HOSTS", "").split(",") if host]


def _serve(world: World, ports: Sequence[int], run_id: str, deadline: float) -> dist.Store:
    listener = network.bind_first_free(network.where_to_listen(world.master_addr, world.num_nodes), ports)
    address, port = listener.getsockname()[:2]
    for earlier in ports[: list(ports).index(port)]:
        if _speaks_for(run_id, world, earlier):
            listener.close()
            raise attendance.twice(0, f"a store of this run already listens on {world.master_addr}:{earlier}")
    store = dist.TCPStore(
        {"0.0.0.0": _LOOPBACK, "::": "::1"}.get(address, address),
        port,
        world.world_size,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=max(deadline - time.monotonic(), 1.0)),
        master_listen_fd=listener.detach(),
    )
    store.set(_SERVER, _ME)
    store.set(_NONCE, run_id)
    return store


def _find(world: World, ports: Sequence[int], run_id: str, deadline: float) -> dist.Store:
    """Try the candidates until a store answers with this run's nonce: refused is normal until the deadline."""
    started, error = time.monotonic(), None
    deadline += attendance.NEIGHBOUR_S if attendance.is_neighbour(0, world) else 0.0
    address = network.resolve(world.master_addr)
    while True:
        for port in ports:
            error = network.probe(address, port, _ANSWER_S)
            if error is None and (store := _ours(run_id, world, address, port)):
                store.set_timeout(timedelta(seconds=max(deadline - time.monotonic(), 1.0)))
                return store
        if time.monotonic() > deadline:
            raise network.unreachable(world.master_addr, ports, error, time.monotonic() - started)
        time.sleep(_RETRY_S)


def _speaks_for(run_id: str, world: World, port: int) -> bool:
    address = network.resolve(world.master_addr)
    return network.probe(address, port, _ANSWER_S) is None and _ours(run_id, world, address, port) is not None


def _ours(run_id: str, world: World, address: str, port: int) -> dist.Store | None:
    """The store on that port, if it is this run's.

    A program that accepts and stays silent holds torch's client for ever, whatever its timeout says (torch 2.15): the
    question is asked in a thread that can be left behind.
    """
    answer: queue.SimpleQueue[dist.Store | None] = queue.SimpleQueue()

    def ask() -> None:
        try:
            store = _client(address, port, world.world_size, _ANSWER_S)
            answer.put(store if store.get(_NONCE).decode() == run_id else None)
        except (dist.DistError, RuntimeError, UnicodeDecodeError):
            answer.put(None)  # another program's port, or another run's store

    begin_thread(ask)
    try:
        return answer.get(timeout=2 * _ANSWER_S)
    except queue.Empty:
        return None


def _client(address: str, port: int, world_size: int, timeout_s: float) -> dist.Store:
    wait = timedelta(seconds=max(timeout_s, 1.0))
    return dist.TCPStore(address, port, world_size, is_master=False, wait_for_workers=False, timeout=wait)


def _refuse_rival(world: World, environ: Mapping[str, str]) -> None:
    """A rank 0 that listens where the master's address does not lead to: does another rank 0 answer there?

    The address may also be a service's that leads back here: the server's own mark tells.
    """
    if world.rank or world.num_nodes == 1 or environ.get("ENTRYPOINT_AGENT_STORE") == "1":
        return
    address = network.resolve(world.master_addr)
    if network.is_ours(address):
        return
    run_id = environ.get("ENTRYPOINT_RUN_ID", "")
    for port in (int(port) for port in environ.get("ENTRYPOINT_PORTS", str(world.master_port)).split(",")):
        reached = network.probe(address, port, _ANSWER_S) is None
        other = _ours(run_id, world, address, port) if reached else None
        if other and other.get(_SERVER).decode() != _ME:
            failure = attendance.twice(0, f"one here on {socket.gethostname()}, one on {world.master_addr}:{port}")
            attendance.tell_those_who_wait(other, failure)
            raise failure
