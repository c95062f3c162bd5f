"""Machines that are joined by a network and share nothing else of it: one network namespace each, on one bridge."""

from __future__ import annotations

import ipaddress
import itertools
import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from processes import unmeasured

_NUMBERS = itertools.count()
_LISTENING = "0A"  # source: TCP_LISTEN in the kernel's net/tcp_states.h


def ip(*words: str) -> subprocess.CompletedProcess[str]:
    """The command `ip`; never raises for an exit code."""
    return subprocess.run(["ip", *words], capture_output=True, text=True, timeout=30)


def missing() -> str | None:
    """Why no namespaces can be made here; None where they can."""
    if os.geteuid() != 0:
        return "machine: network namespaces need root"
    name = f"try-{os.getpid()}"
    try:
        made = ip("netns", "add", name)
    except OSError:
        return "machine: the command ip is not there"
    ip("netns", "delete", name)
    return f"machine: no network namespaces: {made.stderr.strip()}" if made.returncode else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One machine. etc_hosts: its own /etc/hosts, where it has another one than this machine."""

    namespace: str
    address: str
    etc_hosts: Path | None = None

    def start(self, *arguments: str, cwd: Path, measured: bool = True, **environ: str) -> subprocess.Popen[str]:
        """Start this Python there; the caller waits for it. measured: by coverage, where the tests are."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, *self._with_own_names(), sys.executable, *arguments],
            env={**(os.environ if measured else unmeasured()), **environ},
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _with_own_names(self) -> Sequence[str]:
        if self.etc_hosts is None:
            return ()
        mounted = 'mount --bind "$1" /etc/hosts && shift && exec "$@"'
        return ("unshare", "--mount", "sh", "-c", mounted, "sh", str(self.etc_hosts))

    def listens(self) -> list[str]:
        """The addresses of all TCP sockets there that wait for somebody."""
        tables = ip("netns", "exec", self.namespace, "cat", "/proc/net/tcp", "/proc/net/tcp6").stdout
        rows = [line.split() for line in tables.splitlines() if ":" in line and "local" not in line]
        return [_address(row[1].partition(":")[0]) for row in rows if row[3] == _LISTENING]

    def cut(self) -> None:
        """Pull the cable."""
        ip("-n", self.namespace, "link", "set", "eth0", "down")


@contextmanager
def joined(count: int, network: str = "10.77.0") -> Iterator[Sequence[Host]]:
    """So many machines; gone at the end, with all that was left of them. network: the first three numbers of all."""
    tag = f"t{os.getpid()}-{next(_NUMBERS)}"
    hub, names = f"{tag}-hub", [f"{tag}-{number}" for number in range(count)]
    try:
        _made("netns", "add", hub)
        _made("-n", hub, "link", "add", "bridge", "type", "bridge")
        _made("-n", hub, "link", "set", "bridge", "up")
        yield [_plugged(name, hub, number, network) for number, name in enumerate(names)]
    finally:
        for name in (*names, hub):
            ip("netns", "delete", name)


def _address(words: str) -> str:
    """What /proc/net/tcp writes as hexadecimal words of the machine's own byte order."""
    raw = b"".join(struct.pack("=I", int(words[at : at + 8], 16)) for at in range(0, len(words), 8))
    return str(ipaddress.ip_address(raw))


def _plugged(name: str, hub: str, number: int, network: str) -> Host:
    port, address = f"port{number}", f"{network}.{number + 1}"
    _made("netns", "add", name)
    _made("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", hub)
    _made("-n", hub, "link", "set", port, "master", "bridge", "up")
    _made("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
    for device in ("lo", "eth0"):
        _made("-n", name, "link", "set", device, "up")
    return Host(namespace=name, address=address)


def _made(*words: str) -> None:
    done = ip(*words)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
