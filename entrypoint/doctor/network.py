"""The network checks test rank 0's name, the route to it, the interface and the port.

They also test whether this host resolves its own name.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Sequence

from entrypoint import network
from entrypoint.doctor.context import CheckContext, Finding, fail, failure_finding, ok, warn
from entrypoint.errors import Failure
from entrypoint.plan import Plan

CONNECT_TIMEOUT_S = 2.0
ACCEPT_TIMEOUT_S = 0.5  # for a connection that an address in front of this host has taken
LOOPBACK = "127.0.0.1"
# Variables that choose an interface -> whether a name in it may be only the beginning of one (NCCL).
INTERFACE_VARIABLES = {"ENTRYPOINT_INTERFACE": False, "GLOO_SOCKET_IFNAME": False, "NCCL_SOCKET_IFNAME": True}
_ROUTE_FIX = "set MASTER_ADDR or ENTRYPOINT_INTERFACE to a network that all nodes share"
_LOOPBACK_FIX = "take the name out of the lines of /etc/hosts that begin with 127., or set MASTER_ADDR to its address"
_FORWARDED_ADDRESS_FIX = (
    "right for a service or a router that will lead here; else unset MASTER_ADDR, or set it to this host"
)
_FIREWALL_FIX = "open the ports {0} between the nodes, or set ENTRYPOINT_PORT_RANGE=LOW-HIGH to some that are open"


def check(scene: CheckContext) -> list[Finding]:
    """What is needed to meet; one rank meets nobody."""
    if scene.plan is None:
        return []
    if scene.plan.world.world_size == 1:
        return [ok("network", "one rank: there is nobody to meet")]
    chosen = [
        finding
        for name in INTERFACE_VARIABLES
        if (finding := check_interface_variable(name, scene.environ.get(name), interface_names()))
    ]
    return [
        *check_own_name(socket.gethostname()),
        *chosen,
        *(_check_one_host if scene.plan.one_host else _check_master)(scene.plan),
    ]


def interface_names() -> tuple[str, ...]:
    """The names of this host's network interfaces."""
    return tuple(name for _, name in socket.if_nameindex())


def check_own_name(host: str) -> list[Finding]:
    """Programs that ask for the host's own address (gloo without an interface) want its name to resolve."""
    try:
        return [ok("own name", f"{host} is {network.resolve(host)}")]
    except Failure:
        fix = f"add `ADDRESS {host}`, with its own address, to /etc/hosts (docker run --add-host), or ask the site"
        return [warn("own name", f"{host} does not resolve on this host itself", fix)]


def check_interface_variable(variable: str, value: str | None, known: Sequence[str]) -> Finding | None:
    """A variable that names an interface which this host does not have; None where all is well."""
    if not value:
        return None
    excludes, exact = value.startswith("^"), value.startswith("=") or not INTERFACE_VARIABLES[variable]
    names = [name.strip() for name in value.lstrip("^=").split(",") if name.strip()]
    found = [k for k in known if any(k == name if exact else k.startswith(name) for name in names)]
    left = [name for name in known if name not in found] if excludes and INTERFACE_VARIABLES[variable] else found
    if left:
        return None
    text = f"{variable}={value} leaves no network interface of this host ({', '.join(known)})"
    return fail("interface", text, f"unset {variable}, or set it to the interface that all nodes share")


def _check_one_host(plan: Plan) -> list[Finding]:
    """All ranks are here and meet on loopback."""
    return [check_port(LOOPBACK, plan.ports)]


def _check_master(plan: Plan) -> list[Finding]:
    """Rank 0 is, or may be, on another machine."""
    host = plan.world.master_addr
    try:
        address = network.resolve(host)
    except Failure as failure:
        return [failure_finding("master", failure)]
    towards = network.interface_towards(address)
    if towards is None and ":" not in address:
        return [fail("master", f"{host} is {address}, and this host has no route to it", _ROUTE_FIX)]
    known = ok("master", f"{host} is {address}, through {towards or 'an IPv6 route'}")
    if plan.world.num_nodes > 1 and network.is_loopback_only_here(host):
        known = _loopback_master_finding(plan, f"{host} is {address}, this host itself")
    if plan.agent_store:
        return [known]
    if plan.world.rank > 0:
        return [known, check_route(address, plan.ports[0])]
    listening = network.listen_address(host, plan.world.num_nodes)
    listens = check_port(listening, plan.ports)
    if listens.state == "ok" and not network.is_own_address(address):
        known = _check_forwarded_address(address, listening, plan.ports)
    return [known, listens]


def _loopback_master_finding(plan: Plan, text: str) -> Finding:
    """The master's name is loopback here: right on the master itself, as Debian's installer leaves it."""
    if plan.world.node_rank > 0:
        return warn("master", f"{text}: if rank 0 is on another one, it is not found", _LOOPBACK_FIX)
    between = network.interface_between(plan.hosts, plan.world.master_addr)
    if between in (None, network.LOOPBACK_INTERFACE):
        return warn("master", f"{text}, and no network interface leads to another one", _ROUTE_FIX)
    return ok("master", f"{text}; the others are reached through {between}, unless ENTRYPOINT_INTERFACE says another")


def _check_forwarded_address(address: str, listening: str, ports: Sequence[int]) -> Finding:
    """A service's address, or a router's, leads to rank 0's host; a wrong one does not."""
    text = f"{address} is not this host's own"
    with network.bind_first_free(listening, ports) as listener:
        network.probe(address, listener.getsockname()[1], CONNECT_TIMEOUT_S)
        listener.settimeout(ACCEPT_TIMEOUT_S)
        try:
            listener.accept()[0].close()
        except TimeoutError:
            return warn("master", f"{text}, and nothing came from there to here", _FORWARDED_ADDRESS_FIX)
    return ok("master", f"{text}, and leads here")


def check_port(address: str, ports: Sequence[int]) -> Finding:
    """Whether rank 0 can listen; several candidates are one more reason why it can."""
    try:
        with network.bind_first_free(address, ports) as listener:
            number = listener.getsockname()[1]
    except Failure as failure:
        return failure_finding("port", failure)
    taken = list(ports).index(number)
    return ok("port", f"rank 0 can listen on {address}:{number}" + (f" ({taken} before it are taken)" if taken else ""))


def check_route(
    address: str, number: int, probe: Callable[[str, int, float], OSError | None] = network.probe
) -> Finding:
    """Whether packets reach rank 0's host: `refused` is the answer of a host on which nobody listens yet."""
    error = probe(address, number, CONNECT_TIMEOUT_S)
    if error is None or isinstance(error, ConnectionRefusedError):
        return ok("way", f"{address}:{number} answers" + (", nobody listens there yet" if error else ""))
    if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH):
        return fail("way", f"no route to {address}", _ROUTE_FIX)
    text = f"{address}:{number} does not answer within {CONNECT_TIMEOUT_S:.0f} s: a firewall, or the host is down"
    return fail("way", text, _FIREWALL_FIX.format(number))
