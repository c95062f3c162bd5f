"""The network functions find the address, port and interface on which ranks meet.

They also explain why a connection fails.
"""

from __future__ import annotations

import errno
import fcntl
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from entrypoint.errors import ExitCode, Failure
from entrypoint.files import read_text
from entrypoint.world import is_loopback

LOOPBACK_INTERFACE = "lo"
# ioctl requests, and one flag of the answer. Source: linux/sockios.h, linux/if.h.
_SIOCGIFFLAGS, _SIOCGIFADDR, _IFF_RUNNING = 0x8913, 0x8915, 0x40
# No machine has them (RFC 5737, RFC 3849), so they are reached by the default routes.
_DEFAULT_ROUTE_ADDRESSES = ("192.0.2.1", "2001:db8::1")
_LINK_LOCAL_SCOPE = "20"  # in /proc/net/if_inet6


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
        if host == "::":
            listener.setsockopt(
                socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0
            )  # IPv4 too, whatever the system's default is
        try:
            listener.bind(
                socket.getaddrinfo(host, port, family)[0][4]
            )  # (host, port) alone would lose the interface of a link-local address
            listener.listen(2048)
        except OSError as error:
            listener.close()
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise Failure(
                    f"rank 0 cannot listen on {host}:{port}: {error.strerror}",
                    found=f"master address {host}",
                    expected="an address of the machine that rank 0 runs on",
                    fix="unset MASTER_ADDR, or set it to the host of rank 0",
                    code=ExitCode.PEER,
                ) from error
        else:
            return listener
    listened_on = "this host" if host in ("::", "0.0.0.0") else host  # on all its addresses
    raise Failure(
        f"every port that this run may use on {listened_on} is taken by another process",
        found="ports " + ", ".join(map(str, ports)),
        fix="set MASTER_PORT to a free port, or ENTRYPOINT_PORT_RANGE=LOW-HIGH to another range",
        code=ExitCode.PEER,
    )


def listen_address(master: str, num_nodes: int) -> str:
    """The address on which rank 0 listens.

    It is a single address if possible, because torch's store has no password.
    On several nodes another host may come to it by another address of the master's name: here the name may mean
    loopback (Debian's 127.0.1.1), another network or another family. An address may be forwarded to this host (by a
    service or a router). Then rank 0 listens on all addresses, of both families for a name.

    Raises:
        Failure: PEER if the master does not resolve here.
    """
    address = resolve(master)
    is_name = address != master
    if num_nodes == 1 or (not is_name and is_own_address(address) and not is_loopback(address)):
        return address
    return "::" if (is_name or ":" in address) and socket.has_dualstack_ipv6() else "0.0.0.0"


def is_own_address(address: str) -> bool:
    """Whether this machine has that address; tried by listening on it."""
    try:
        bind_first_free(address, [0]).close()
    except Failure:
        return False
    return True


def resolve(host: str) -> str:
    """The first address of `host`, as `resolve_all`."""
    return resolve_all(host)[0]


def resolve_all(host: str) -> tuple[str, ...]:
    """The addresses of `host`, those of IPv4 first.

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
    entries.sort(key=lambda entry: entry[0] != socket.AF_INET)
    scopes = [int(address[3]) if len(address) == 4 else 0 for *_, address in entries]
    names = [f"%{socket.if_indextoname(scope)}" if scope else "" for scope in scopes]
    return tuple(dict.fromkeys(f"{entry[4][0]}{name}" for entry, name in zip(entries, names, strict=True)))


def probe(address: str, port: int, timeout_s: float) -> OSError | None:
    """Try one TCP connection; return its error, or None if it was accepted."""
    try:
        socket.create_connection((address, port), timeout=timeout_s).close()
    except OSError as error:
        return error
    return None


def unreachable_failure(
    host: str, ports: Iterable[int], error: OSError | None, waited_s: float, addresses: Sequence[str] = ()
) -> Failure:
    """The Failure for a master that was never reached: refused, no route and time-out need different fixes.

    error: of the last attempt. addresses: those of `host` here, where it is a name.
    """
    others = "" if list(addresses) in ([], [host]) else f" ({', '.join(addresses)})"
    if error is None:
        why, fix = "something answers there, but not this run", "set MASTER_PORT to another free port"
    elif isinstance(error, ConnectionRefusedError):
        why = "refused: nothing listens there"
        fix = "look at the output of rank 0: it may not have started, or have ended, or its host has another address: "
        fix += "then set MASTER_ADDR to one that all nodes reach"
    elif error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL):
        why, fix = "no route to the host", "set ENTRYPOINT_INTERFACE or MASTER_ADDR to a network that all nodes share"
    else:
        why, fix = "no answer: a firewall, or the host is down", "open the ports between nodes, or set MASTER_PORT"
    return Failure(
        f"rank 0's store was not reached within {waited_s:.0f} s: {why}",
        found=f"{host}{others}, ports {', '.join(map(str, ports))}",
        fix=fix,
        code=ExitCode.PEER,
    )


def interface_between(hosts: Sequence[str], master: str) -> str | None:
    """The interface over which ranks of several machines communicate: the one that leads to the master.

    On the master itself it is the one towards another of `hosts`, because the master's name may mean a network there
    that the others cannot reach, or loopback (Debian's 127.0.1.1). If no other host is known, it is the one with the
    master's address, or that of a default route, or the first one that is up.

    Raises:
        Failure: PEER if the master does not resolve here.
    """
    addresses = resolve_all(master)
    towards = next(filter(None, map(interface_towards, addresses)), None)
    if is_loopback(master) or not any(is_loopback(address) or is_own_address(address) for address in addresses):
        return towards
    candidates = _candidate_interfaces(hosts[:2], addresses)  # at least one of two hosts is not this one
    return next((name for name in candidates if name not in (None, LOOPBACK_INTERFACE)), towards)


def _candidate_interfaces(hosts: Sequence[str], addresses: Sequence[str]) -> Iterator[str | None]:
    for host in hosts:
        with suppress(Failure):  # it does not resolve here: try the next one
            yield from (interface_towards(address) for address in resolve_all(host) if not is_own_address(address))
    yield from map(interface_towards, (*addresses, *_DEFAULT_ROUTE_ADDRESSES))
    yield from (name for name, _ in _interface_addresses() if _is_running(name))


def own_address(environ: Mapping[str, str]) -> str:
    """The address at which other hosts reach this one.

    It is that of ENTRYPOINT_INTERFACE, or the one that this host's name resolves to, or that of the default
    route, or that of the first interface that is up; of IPv4 if there is one. Loopback if there is none.
    """
    own = [pair for pair in _interface_addresses() if pair[0] != LOOPBACK_INTERFACE]
    candidates = [address for name, address in own if name == environ.get("ENTRYPOINT_INTERFACE")]
    with suppress(Failure):
        names = resolve_all(socket.gethostname())
        candidates += [address for address in names if not is_loopback(address) and is_own_address(address)]
    candidates += filter(None, map(_source_address, _DEFAULT_ROUTE_ADDRESSES))
    candidates += [address for name, address in own if _is_running(name)]
    return next(iter(candidates), "127.0.0.1")


def interface_towards(address: str) -> str | None:
    """The interface that the kernel would use to reach `address` (no packet is sent)."""
    if "%" in address:
        return address.partition("%")[2]
    source = _source_address(address)
    return next((name for name, own in _interface_addresses() if own == source), None)


def _source_address(address: str) -> str | None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe_socket:
        try:
            probe_socket.connect((address, 9))
            return str(probe_socket.getsockname()[0])
        except OSError:
            return None


def _interface_addresses() -> list[tuple[str, str]]:
    """The interfaces of this host with their addresses, those of IPv4 first. Without link-local ones."""
    answers = ((name, _query_interface(name, _SIOCGIFADDR)) for _, name in socket.if_nameindex())
    pairs = [(name, socket.inet_ntoa(answer[4:8])) for name, answer in answers if answer]
    for digits, _, _, scope, _, name in map(str.split, read_text("/proc/net/if_inet6").splitlines()):
        if scope != _LINK_LOCAL_SCOPE:
            pairs.append((name, socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))))
    return pairs


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
