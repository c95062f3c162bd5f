"""The network functions find the address, port and interface on which ranks meet.

They also explain why a connection fails.
"""

from __future__ import annotations

import errno
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from entrypoint.errors import ExitCode, Failure

LOOPBACK_INTERFACE = "lo"
# ioctl requests, and one flag of the answer. Source: linux/sockios.h, linux/if.h.
_SIOCGIFFLAGS, _SIOCGIFADDR, _IFF_RUNNING = 0x8913, 0x8915, 0x40
_DEFAULT_ROUTE_ADDRESS = "192.0.2.1"  # no machine has it (RFC 5737), so it is reached by the default route


def bind_first_free(host: str, ports: Iterable[int]) -> socket.socket:
    """A listening socket on the first free port; the caller passes its descriptor to the store.

    Raises:
        Failure: PEER, naming the ports tried.
    """
    ports = tuple(ports)
    for port in ports:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(
                socket.getaddrinfo(host, port, family)[0][4]
            )  # (host, port) alone would lose the interface of a link-local address
            listener.listen(2048)
        except OSError as error:
            listener.close()
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise _bind_failure(host, port, error) from error
        else:
            return listener
    raise Failure(
        f"every port that this run may use on {host} is taken by another process",
        found="ports " + ", ".join(map(str, ports)),
        fix="set MASTER_PORT to a free port, or ENTRYPOINT_PORT_RANGE=LOW-HIGH to another range",
        code=ExitCode.PEER,
    )


def listen_address(master: str, num_nodes: int) -> str:
    """The address on which rank 0 listens.

    It is a single address if possible, because torch's store has no password.
    On several nodes the master's name may resolve to loopback here (Debian's 127.0.1.1) or to an
    address that is forwarded to this host (by a service or a router): then rank 0 has to listen on
    all interfaces.

    Raises:
        Failure: PEER if the master does not resolve here.
    """
    address = resolve(master)
    if num_nodes == 1 or (is_own_address(address) and not _is_loopback(address)):
        return address
    return "::" if ":" in address else "0.0.0.0"


def is_own_address(address: str) -> bool:
    """Whether this machine has that address; tried by listening on it."""
    try:
        bind_first_free(address, [0]).close()
    except Failure:
        return False
    return True


def _bind_failure(host: str, port: int, error: OSError) -> Failure:
    return Failure(
        f"rank 0 cannot listen on {host}:{port}: {error.strerror}",
        found=f"master address {host}",
        expected="an address of the machine that rank 0 runs on",
        fix="unset MASTER_ADDR, or set it to the host of rank 0",
        code=ExitCode.PEER,
    )


def resolve(host: str) -> str:
    """The address of `host`, IPv4 if it has one.

    A link-local one keeps its interface (`fe80::1%eth0`).

    Raises:
        Failure: PEER if the name does not resolve here.
    """
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Failure(
            f"the master's host name {host!r} does not resolve on {socket.gethostname()}",
            found=str(error),
            fix=f"set MASTER_ADDR to the IP address of {host}, or correct the name",
            code=ExitCode.PEER,
        ) from error
    family, _, _, _, address = min(entries, key=lambda entry: entry[0] != socket.AF_INET)
    scope = address[3] if family == socket.AF_INET6 and len(address) == 4 else 0
    return f"{address[0]}%{socket.if_indextoname(scope)}" if scope else str(address[0])


def probe(address: str, port: int, timeout_s: float) -> OSError | None:
    """Try one TCP connection; return its error, or None if it was accepted."""
    try:
        socket.create_connection((address, port), timeout=timeout_s).close()
    except OSError as error:
        return error
    return None


def unreachable_failure(host: str, ports: Iterable[int], error: OSError | None, waited_s: float) -> Failure:
    """The Failure for a master that was never reached: refused, no route and time-out need different fixes."""
    address = f"{host}, ports {', '.join(map(str, ports))}"
    if error is None:
        why, fix = "something answers there, but not this run", "set MASTER_PORT to another free port"
    elif isinstance(error, ConnectionRefusedError):
        why, fix = "refused: nothing listens", "look at the output of rank 0: it did not start, or has ended"
    elif error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH):
        why, fix = "no route to the host", "set ENTRYPOINT_INTERFACE or MASTER_ADDR to a network that all nodes share"
    else:
        why, fix = "no answer: a firewall, or the host is down", "open the ports between nodes, or set MASTER_PORT"
    return Failure(
        f"rank 0's store was not reached within {waited_s:.0f} s: {why}",
        found=address,
        fix=fix,
        code=ExitCode.PEER,
    )


def interface_between(hosts: Sequence[str], master: str) -> str | None:
    """The interface over which ranks of several machines communicate: the one that leads to the master.

    On a master whose own name resolves to loopback (Debian's 127.0.1.1) that would be `lo`, and its
    published address 127.0.0.1 would mean each peer itself. There it is the interface towards
    another of `hosts`, or that of the default route, or the first one that is up.

    Raises:
        Failure: PEER if the master does not resolve here.
    """
    towards = interface_towards(resolve(master))
    if not is_loopback_only_here(master):
        return towards
    candidates = _candidate_interfaces(hosts[:2])  # at least one of two hosts is not this one
    return next((name for name in candidates if name not in (None, LOOPBACK_INTERFACE)), towards)


def is_loopback_only_here(master: str) -> bool:
    """Whether the master's name means loopback here but not everywhere, unlike `localhost`."""
    return master != "localhost" and not _is_loopback(master) and _is_loopback(resolve(master))


def _candidate_interfaces(hosts: Sequence[str]) -> Iterator[str | None]:
    for host in hosts:
        try:
            yield interface_towards(resolve(host))
        except Failure:  # it does not resolve here: try the next one
            continue
    yield interface_towards(_DEFAULT_ROUTE_ADDRESS)
    yield from (name for _, name in socket.if_nameindex() if _ipv4_address(name) and _is_running(name))


def own_address(environ: Mapping[str, str]) -> str:
    """The address at which other hosts reach this one.

    It is that of ENTRYPOINT_INTERFACE, or the one that this host's name resolves to, or that of the default
    route, or that of the first interface that is up; loopback if there is none.
    """
    chosen = _ipv4_address(environ.get("ENTRYPOINT_INTERFACE", ""))
    if chosen:
        return chosen
    with suppress(Failure):
        address = resolve(socket.gethostname())
        if not _is_loopback(address) and is_own_address(address):
            return address
    routed = _source_address(_DEFAULT_ROUTE_ADDRESS)
    if routed is not None:
        return routed
    names = (name for _, name in socket.if_nameindex() if name != LOOPBACK_INTERFACE and _is_running(name))
    return next((own for name in names if (own := _ipv4_address(name))), "127.0.0.1")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def interface_towards(address: str) -> str | None:
    """The interface that the kernel would use to reach `address` (no packet is sent)."""
    if "%" in address:
        return address.partition("%")[2]
    source = _source_address(address)
    if source is None:
        return None
    if ipaddress.ip_address(source).version == 4:
        return next((name for _, name in socket.if_nameindex() if _ipv4_address(name) == source), None)
    return None


def _source_address(address: str) -> str | None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe_socket:
        try:
            probe_socket.connect((address, 9))
            return str(probe_socket.getsockname()[0])
        except OSError:
            return None


def _ipv4_address(interface: str) -> str | None:
    answer = _query_interface(interface, _SIOCGIFADDR)
    return socket.inet_ntoa(answer[4:8]) if answer else None


def _is_running(interface: str) -> bool:
    """Whether it is up and has a carrier.

    A container engine's bridge without containers has none.
    """
    answer = _query_interface(interface, _SIOCGIFFLAGS)
    return answer is not None and bool(struct.unpack("H", answer[:2])[0] & _IFF_RUNNING)


def _query_interface(interface: str, request: int) -> bytes | None:
    """The kernel's answer after the interface's name in `struct ifreq`; None if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            return fcntl.ioctl(any_socket, request, struct.pack("256s", interface.encode()[:15]))[16:]
        except OSError:
            return None
