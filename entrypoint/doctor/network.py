"""The network checks test rank 0's name, the route to it, the interface and the port.

They also test whether this host resolves its own name.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Sequence

from entrypoint import engines, network
from entrypoint.doctor.context import CheckContext, Finding, fail, failure_finding, ok, warn
from entrypoint.errors import Failure
from entrypoint.plan import Plan
from entrypoint.world import is_loopback

CONNECT_TIMEOUT_S = 2.0
ACCEPT_TIMEOUT_S = 0.5  # for a connection that is forwarded to this host
LOOPBACK = "127.0.0.1"
# Variables that choose an interface -> whether a name in it is a prefix (NCCL).
INTERFACE_VARIABLES = {"ENTRYPOINT_INTERFACE": False, "GLOO_SOCKET_IFNAME": False, "NCCL_SOCKET_IFNAME": True}
_ROUTE_FIX = "set MASTER_ADDR or ENTRYPOINT_INTERFACE to a network that all nodes share"
_LOOPBACK_FIX = "remove the name from the lines of /etc/hosts that begin with 127., or set MASTER_ADDR to its address"
_FORWARDED_ADDRESS_FIX = (
    "right for a service or a router that forwards to this host; otherwise unset MASTER_ADDR, or set it to this host"
)
_FIREWALL_FIX = "open the ports {0} between the nodes, or set ENTRYPOINT_PORT_RANGE=LOW-HIGH to some that are open"


def check(context: CheckContext) -> list[Finding]:
    """Check what the ranks need to connect; a single rank needs nothing."""
    if context.plan is None:
        return []
    if context.plan.world.world_size == 1:
        return [ok("network", "one rank: no connection is needed")]
    interfaces = [name for _, name in socket.if_nameindex()]
    values = {name: context.environ.get(name) for name in INTERFACE_VARIABLES}
    return [
        *check_own_name(socket.gethostname()),
        *filter(None, (check_interface_variable(name, value, interfaces) for name, value in values.items())),
        # All ranks of one host meet on loopback.
        *([check_port(LOOPBACK, context.plan.ports)] if context.plan.one_host else _check_master(context.plan)),
    ]


def check_own_name(host: str) -> list[Finding]:
    """Check that this host's name resolves.

    Gloo without an interface looks up its own address so.
    """
    try:
        return [ok("own name", f"{host} is {network.resolve(host)}")]
    except Failure:
        fix = f"add `ADDRESS {host}`, with its own address, to /etc/hosts ({engines.fix('host name')}), or ask the site"
        return [warn("own name", f"{host} does not resolve on this host itself", fix)]


def check_interface_variable(variable: str, value: str | None, interfaces: Sequence[str]) -> Finding | None:
    """A finding if the variable selects no network interface of this host; otherwise None."""
    if not value:
        return None
    excludes, exact = value.startswith("^"), value.startswith("=") or not INTERFACE_VARIABLES[variable]
    names = [name.strip() for name in value.lstrip("^=").split(",") if name.strip()]
    matches = [
        interface
        for interface in interfaces
        if any(interface == name if exact else interface.startswith(name) for name in names)
    ]
    usable = (
        [name for name in interfaces if name not in matches] if excludes and INTERFACE_VARIABLES[variable] else matches
    )
    if usable:
        return None
    text = f"{variable}={value} leaves no network interface of this host ({', '.join(interfaces)})"
    return fail("interface", text, f"unset {variable}, or set it to the interface that all nodes share")


def _check_master(plan: Plan) -> list[Finding]:
    """Check name, route and port of rank 0, which may be on another machine."""
    host = plan.world.master_addr
    if not host:
        return [ok("master", f"not known yet: the tasks tell each other their hosts ({plan.sources['master_addr']})")]
    try:
        address = network.resolve(host)
    except Failure as failure:
        return [failure_finding("master", failure)]
    towards = network.interface_towards(address)
    if towards is None:
        return [fail("master", f"{host} is {address}, and this host has no route to it", _ROUTE_FIX)]
    master = ok("master", f"{host} is {address}, through {towards}")
    if plan.world.num_nodes > 1 and is_loopback(address) and not is_loopback(host):  # here, but not on every host
        master = _loopback_master_finding(plan, f"{host} is {address}, this host itself")
    if plan.agent_store:
        return [master]
    if plan.world.rank > 0:
        return [master, check_route(address, plan.ports[0])]
    listening = network.listen_address(host, plan.world.num_nodes)
    port = check_port(listening, plan.ports)
    if port.state == "ok" and not network.is_own_address(address):
        master = _check_forwarded_address(address, listening, plan.ports)
    return [master, port]


def _loopback_master_finding(plan: Plan, text: str) -> Finding:
    """The finding for a master whose name means loopback here.

    Debian's installer does that on the master.
    """
    if plan.world.node_rank > 0:
        return warn("master", f"{text}: if rank 0 is on another machine, it cannot be reached", _LOOPBACK_FIX)
    between = network.interface_between(plan.hosts, plan.world.master_addr)
    if between in (None, network.LOOPBACK_INTERFACE):
        return warn("master", f"{text}, and no network interface leads to another machine", _ROUTE_FIX)
    return ok("master", f"{text}; the others are reached through {between}, unless ENTRYPOINT_INTERFACE is set")


def _check_forwarded_address(address: str, listening: str, ports: Sequence[int]) -> Finding:
    """Test whether another address (of a service or router) is forwarded to this host."""
    text = f"{address} is not this host's own"
    with network.bind_first_free(listening, ports) as listener:
        network.probe(address, listener.getsockname()[1], CONNECT_TIMEOUT_S)
        listener.settimeout(ACCEPT_TIMEOUT_S)
        try:
            listener.accept()[0].close()
        except TimeoutError:
            return warn("master", f"{text}, and a connection to it did not arrive here", _FORWARDED_ADDRESS_FIX)
    return ok("master", f"{text}, and is forwarded to it")


def check_port(address: str, ports: Sequence[int]) -> Finding:
    """Check that rank 0 can listen on one of its ports."""
    try:
        with network.bind_first_free(address, ports) as listener:
            port = listener.getsockname()[1]
    except Failure as failure:
        return failure_finding("port", failure)
    num_taken = list(ports).index(port)
    where = f"0.0.0.0:{port} and [::]:{port}" if address == "::" else f"{address}:{port}"
    return ok("port", f"rank 0 can listen on {where}" + (f" ({num_taken} before it are taken)" if num_taken else ""))


def check_route(address: str, port: int, probe: Callable[[str, int, float], OSError | None] = network.probe) -> Finding:
    """Check that packets reach rank 0's host.

    `refused` is fine, since nobody may listen there yet.
    """
    error = probe(address, port, CONNECT_TIMEOUT_S)
    if error is None or isinstance(error, ConnectionRefusedError):
        return ok("way", f"{address}:{port} answers" + (", nobody listens there yet" if error else ""))
    if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH):
        return fail("way", f"no route to {address}", _ROUTE_FIX)
    text = f"{address}:{port} does not answer within {CONNECT_TIMEOUT_S:.0f} s: a firewall, or the host is down"
    return fail("way", text, _FIREWALL_FIX.format(port))
