"""A World is one process's place in the run; torchrun's environment variables carry it."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from entrypoint.errors import ExitCode, Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The place of this process among all processes of the run. No field is optional.

    rank in [0, world_size), local_rank in [0, local_world_size), node_rank in [0, num_nodes);
    master_addr is a name or address of the host of rank 0, master_port its TCP port.
    """

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    node_rank: int
    num_nodes: int
    master_addr: str
    master_port: int


MAX_DIGITS = 18  # a longer number is a mistake; int() refuses more than 4300 digits
# As Debian and Fedora write them in /etc/hosts.
LOOPBACK_NAMES = {"localhost", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback"}
LOOPBACK_NAMES |= {"localhost.localdomain", "localhost.localdomain4", "localhost.localdomain6"}
LOOPBACK_NAMES |= {"localhost4.localdomain4", "localhost6.localdomain6"}
# Field of World -> torchrun's variable; torchrun calls a node a group.
# Source: the "Environment Variables" section of PyTorch's torchrun documentation.
TORCHRUN_VARIABLES: dict[str, str] = {
    "rank": "RANK",
    "local_rank": "LOCAL_RANK",
    "world_size": "WORLD_SIZE",
    "local_world_size": "LOCAL_WORLD_SIZE",
    "node_rank": "GROUP_RANK",
    "num_nodes": "GROUP_WORLD_SIZE",
    "master_addr": "MASTER_ADDR",
    "master_port": "MASTER_PORT",
}


def world_to_environ(world: World) -> dict[str, str]:
    """Torchrun's variables for one process."""
    return {variable: str(getattr(world, name)) for name, variable in TORCHRUN_VARIABLES.items()}


def world_from_environ(environ: Mapping[str, str]) -> World:
    """Read back what `world_to_environ` wrote.

    Raises:
        Failure: LAUNCH_CONFLICT, naming the missing or unreadable variable.
    """
    missing = [variable for variable in TORCHRUN_VARIABLES.values() if not environ.get(variable)]
    if missing:
        raise Failure(
            f"this worker was started without {', '.join(missing)}",
            fix="start it with `train` or `entrypoint run`, which set all of them",
            code=ExitCode.LAUNCH_CONFLICT,
        )
    numbers = {
        name: parse_whole_number(variable, environ[variable])
        for name, variable in TORCHRUN_VARIABLES.items()
        if name != "master_addr"
    }
    return World(master_addr=environ["MASTER_ADDR"], **numbers)


def parse_port(variable: str, text: str) -> int:
    """`text` as a TCP port.

    Raises:
        Failure: LAUNCH_CONFLICT, naming the variable and its value.
    """
    if not 1 <= (number := parse_whole_number(variable, text)) <= 65_535:
        raise Failure(
            f"{variable} is not a port",
            found=f"{variable}={text}",
            expected="1 to 65535",
            fix=f"unset {variable}, or set it to a free port",
            code=ExitCode.LAUNCH_CONFLICT,
        )
    return number


def is_loopback(host: str) -> bool:
    """Whether `host` means this host on every host: a name or address of loopback, or the unspecified address.

    An address is written in any way that the resolver reads: 2130706433 and ::ffff:127.0.0.1 are loopback too.
    """
    name = host.casefold().rstrip(".")
    packed = pack_address(name)
    if packed is None:
        return name in LOOPBACK_NAMES or name.endswith(".localhost")
    # ::, ::1 and IPv4 in IPv6 begin so.
    return packed[-4] in (0, 127) and packed[:-4] in (b"", bytes(12), bytes(10) + b"\xff\xff")


def pack_address(host: str) -> bytes | None:
    """The 4 or 16 bytes of an address; None for a name."""
    host = host.removeprefix("[").removesuffix("]").partition("%")[0]
    with suppress(OSError, ValueError):
        return socket.inet_pton(socket.AF_INET6, host) if ":" in host else socket.inet_aton(host)
    return None


def is_whole_number(text: str) -> bool:
    """Whether `text` is a number of 0 or more, of at most MAX_DIGITS digits."""
    return text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS


def read_sizes(environ: Mapping[str, str], names: Iterable[str]) -> dict[str, int]:
    """Variable -> its number, for those that are set to one."""
    return {name: int(environ[name]) for name in names if is_whole_number(environ.get(name, ""))}


def parse_whole_number(variable: str, text: str) -> int:
    """`text` as a whole number of at least 0.

    Raises:
        Failure: LAUNCH_CONFLICT, naming the variable and its value.
    """
    if not is_whole_number(text):
        raise Failure(
            f"{variable} is not a whole number of 0 or more",
            found=f"{variable}={text[:200]}",
            expected=f"digits only, at most {MAX_DIGITS}",
            fix=f"unset {variable}, or let the launcher that owns it set it",
            code=ExitCode.LAUNCH_CONFLICT,
        )
    return int(text)
