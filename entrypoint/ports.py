"""The ports on which ranks may meet, derived from the launch's key, so that all tasks know them without talking."""

from __future__ import annotations

import hashlib

# Below Linux's ephemeral range (32768-60999), where outgoing connections take ports at random, and above the range
# where services sit. Source: net.ipv4.ip_local_port_range in the kernel's ip-sysctl documentation.
PORT_RANGE = (20_000, 32_767)
CANDIDATES = 8


def candidates(key: str, port_range: tuple[int, int] | None = None) -> tuple[int, ...]:
    """Distinct ports, the same on every task that knows `key`, without talking."""
    low, high = port_range or PORT_RANGE
    ports: dict[int, None] = {}
    for attempt in range(CANDIDATES * 8):
        digest = hashlib.sha256(f"{key}/{attempt}".encode()).digest()
        ports[low + int.from_bytes(digest[:8], "big") % (high - low + 1)] = None
    return tuple(ports)[:CANDIDATES]
