"""Points of curves become the bytes of TensorBoard's event files, without its own library: 0.3 s of imports per start.

The messages are those of tensorboard/compat/proto/event.proto and summary.proto, in protobuf's encoding; each is framed
as TFRecord: its length, that one's checksum, the message, its checksum.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

POLYNOMIAL: Final = 0x82F63B78  # of CRC-32C, reflected
MASK: Final = 0xA282EAD8
VARINT, EIGHT_BYTES, LENGTH, FOUR_BYTES = 0, 1, 2, 5  # kinds of fields
START: Final = b"\x08\x01"  # SessionLog: status = START


def version(now: float) -> bytes:
    """The first record of a file; `now` in seconds since 1970."""
    return _record(_double(1, now) + _bytes(3, b"brain.Event:2"))


def begins(step: int, now: float) -> bytes:
    """A record by which TensorBoard hides what earlier files say about this step and later ones."""
    return _record(_double(1, now) + _whole(2, step) + _bytes(7, START))


def points(values: Mapping[str, float], *, step: int, now: float) -> bytes:
    """A record with one point of each named curve."""
    told = (_bytes(1, tag.encode()) + _float(2, value) for tag, value in values.items())
    return _record(_double(1, now) + _whole(2, step) + _bytes(5, b"".join(_bytes(1, value) for value in told)))


def checksum(data: bytes) -> int:
    """CRC-32C, masked as TFRecord wants it."""
    rest = 0xFFFFFFFF
    for byte in data:
        rest = (rest >> 8) ^ TABLE[(rest ^ byte) & 0xFF]
    rest ^= 0xFFFFFFFF
    return ((rest >> 15 | rest << 17) + MASK) & 0xFFFFFFFF


def _record(message: bytes) -> bytes:
    length = struct.pack("<Q", len(message))
    framed = length + struct.pack("<I", checksum(length)) + message
    return framed + struct.pack("<I", checksum(message))


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | EIGHT_BYTES) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    try:
        return _varint(field << 3 | FOUR_BYTES) + struct.pack("<f", value)
    except OverflowError:  # larger than a float of four bytes
        return _float(field, float("inf") if value > 0 else float("-inf"))


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | LENGTH) + _varint(len(value)) + value


def _whole(field: int, value: int) -> bytes:
    return _varint(field << 3 | VARINT) + _varint(value)


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; all but the last have the highest bit set."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _remainder(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (POLYNOMIAL if byte & 1 else 0)
    return byte


TABLE: Final = tuple(map(_remainder, range(256)))
