"""The way to rank 0: its name, the route, the interface and the port, and whether this host knows its own name."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Sequence

from entrypoint import network
from entrypoint.doctor.findings import Finding, fail, ok, refused, warn
from entrypoint.doctor.scene import Scene
from entrypoint.errors import Failure
from entrypoint.plan import Plan

ANSWER_S = 2.0
ARRIVE_S = 0.5  # for a connection that an address in front of this host has taken
LOOPBACK = "127.0.0.1"
# Variables that choose an interface -> whether a name in it may be only the beginning of one (NCCL).
CHOICES = {"ENTRYPOINT_INTERFACE": False, "GLOO_SOCKET_IFNAME": False, "NCCL_SOCKET_IFNAME": True}
_ROUTE_FIX = "set MASTER_ADDR or ENTRYPOINT_INTERFACE to a network that all nodes share"
_LOOPING_FIX = "take the name out of the lines of /etc/hosts that begin with 127., or set MASTER_ADDR to its address"
_IN_FRONT_FIX = "right for a service or a router that will lead here; else unset MASTER_ADDR, or set it to this host"
_FIREWALL_FIX = "open the ports {0} between the nodes, or set ENTRYPOINT_PORT_RANGE=LOW-HIGH to some that are open"


def check(scene: Scene) -> list[Finding]:
    """What is needed to meet; one rank meets nobody."""
    if scene.plan is None:
        return []
    if scene.plan.world.world_size == 1:
        return [ok("network", "one rank: there is nobody to meet")]
    chosen = [finding for name in CHOICES if (finding := interface(name, scene.environ.get(name), interfaces()))]
    return [*own_name(socket.gethostname()), *chosen, *(_one_host if scene.plan.one_host else _master)(scene.plan)]


def interfaces() -> tuple[str, ...]:
    """The names of this host's network interfaces."""
    return tuple(name for _, name in socket.if_nameindex())


def own_name(host: str) -> list[Finding]:
    """Programs that ask for the host's own address (gloo without an interface) want its name to resolve."""
    try:
        return [ok("own name", f"{host} is {network.resolve(host)}")]
    except Failure:
        fix = f"add `ADDRESS {host}`, with its own address, to /etc/hosts (docker run --add-host), or ask the site"
        return [warn("own name", f"{host} does not resolve on this host itself", fix)]


def interface(variable: str, value: str | None, known: Sequence[str]) -> Finding | None:
    """A variable that names an interface which this host does not have; None where all is well."""
    if not value:
        return None
    excludes, exact = value.startswith("^"), value.startswith("=") or not CHOICES[variable]
    names = [name.strip() for name in value.lstrip("^=").split(",") if name.strip()]
    found = [k for k in known if any(k == name if exact else k.startswith(name) for name in names)]
    left = [name for name in known if name not in found] if excludes and CHOICES[variable] else found
    if left:
        return None
    text = f"{variable}={value} leaves no network interface of this host ({', '.join(known)})"
    return fail("interface", text, f"unset {variable}, or set it to the interface that all nodes share")


def _one_host(plan: Plan) -> list[Finding]:
    """All ranks are here and meet on loopback."""
    return [port(LOOPBACK, plan.ports)]


def _master(plan: Plan) -> list[Finding]:
    """Rank 0 is, or may be, on another machine."""
    host = plan.world.master_addr
    try:
        address = network.resolve(host)
    except Failure as failure:
        return [refused("master", failure)]
    towards = network.interface_towards(address)
    if towards is None and ":" not in address:
        return [fail("master", f"{host} is {address}, and this host has no route to it", _ROUTE_FIX)]
    known = ok("master", f"{host} is {address}, through {towards or 'an IPv6 route'}")
    if plan.world.num_nodes > 1 and network.loops_back(host):
        known = _looping(plan, f"{host} is {address}, this host itself")
    if plan.agent_store:
        return [known]
    if plan.world.rank > 0:
        return [known, way(address, plan.ports[0])]
    listening = network.where_to_listen(host, plan.world.num_nodes)
    listens = port(listening, plan.ports)
    if listens.state == "ok" and not network.is_ours(address):
        known = _in_front(address, listening, plan.ports)
    return [known, listens]


def _looping(plan: Plan, text: str) -> Finding:
    """The master's name is loopback here: right on the master itself, as Debian's installer leaves it."""
    if plan.world.node_rank > 0:
        return warn("master", f"{text}: if rank 0 is on another one, it is not found", _LOOPING_FIX)
    between = network.interface_between(plan.hosts, plan.world.master_addr)
    if between in (None, network.LO):
        return warn("master", f"{text}, and no network interface leads to another one", _ROUTE_FIX)
    return ok("master", f"{text}; the others are reached through {between}, unless ENTRYPOINT_INTERFACE says another")


def _in_front(address: str, listening: str, ports: Sequence[int]) -> Finding:
    """A service's address, or a router's, leads to rank 0's host; a wrong one does not."""
    text = f"{address} is not this host's own"
    with network.bind_first_free(listening, ports) as listener:
        network.probe(address, listener.getsockname()[1], ANSWER_S)
        listener.settimeout(ARRIVE_S)
        try:
            listener.accept()[0].close()
        except TimeoutError:
            return warn("master", f"{text}, and nothing came from there to here", _IN_FRONT_FIX)
    return ok("master", f"{text}, and leads here")


def port(address: str, ports: Sequence[int]) -> Finding:
    """Whether rank 0 can listen; several candidates are one more reason why it can."""
    try:
        with network.bind_first_free(address, ports) as listener:
            number = listener.getsockname()[1]
    except Failure as failure:
        return refused("port", failure)
    taken = list(ports).index(number)
    return ok("port", f"rank 0 can listen on {address}:{number}" + (f" ({taken} before it are taken)" if taken else ""))


def way(address: str, number: int, probe: Callable[[str, int, float], OSError | None] = network.probe) -> Finding:
    """Whether packets reach rank 0's host: `refused` is the answer of a host on which nobody listens yet."""
    error = probe(address, number, ANSWER_S)
    if error is None or isinstance(error, ConnectionRefusedError):
        return ok("way", f"{address}:{number} answers" + (", nobody listens there yet" if error else ""))
    if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH):
        return fail("way", f"no route to {address}", _ROUTE_FIX)
    text = f"{address}:{number} does not answer within {ANSWER_S:.0f} s: a firewall, or the host is down"
    return fail("way", text, _FIREWALL_FIX.format(number))
