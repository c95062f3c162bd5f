"""The ports on which ranks may meet, derived from the launch's key, so that all tasks know them without talking."""

from __future__ import annotations

# Below Linux's ephemeral range (32768-60999), where outgoing connections take ports at random, and above the range
# where services sit. Source: net.ipv4.ip_local_port_range in the kernel's ip-sysctl documentation.
PORT_RANGE = (20_000, 32_767)
CANDIDATES = 8
WHOLE = 2**64 - 1


def candidates(key: str, port_range: tuple[int, int] | None = None) -> tuple[int, ...]:
    """Distinct ports, the same on every task that knows `key`, without talking."""
    low, high = port_range or PORT_RANGE
    ports: dict[int, None] = {}
    for attempt in range(CANDIDATES * 8):
        ports[low + mixed(f"{key}/{attempt}".encode()) % (high - low + 1)] = None
    return tuple(ports)[:CANDIDATES]


def mixed(data: bytes) -> int:
    """64 bits, in which each bit of `data` counts: FNV-1a, then the last step of MurmurHash3. No secret depends
    on it, and hashlib would be a tenth of what `entrypoint show` takes.
    """
    found = 0xCBF29CE484222325
    for byte in data:
        found = (found ^ byte) * 0x100000001B3 & WHOLE
    found = (found ^ found >> 33) * 0xFF51AFD7ED558CCD & WHOLE
    found = (found ^ found >> 33) * 0xC4CEB9FE1A85EC53 & WHOLE
    return found ^ found >> 33
