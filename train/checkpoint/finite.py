"""Whether the numbers of a safetensors file are finite: looked at in memory, in any thread, without torch."""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np

# The bits that are all set in what is not finite, by safetensors' name of the type: IEEE 754's exponent, or in the
# types of 8 bits as in https://arxiv.org/abs/2209.05433 (table 1). A complex number is two.
BITS: Final[dict[str, tuple[type[np.unsignedinteger[Any]], int]]] = {
    "F64": (np.uint64, 0x7FF0_0000_0000_0000),
    "F32": (np.uint32, 0x7F80_0000),
    "C64": (np.uint32, 0x7F80_0000),
    "F16": (np.uint16, 0x7C00),
    "BF16": (np.uint16, 0x7F80),
    "F8_E5M2": (np.uint8, 0x7C),
    "F8_E4M3": (np.uint8, 0x7F),
}
CHUNK: Final = 2**18  # numbers: they stay in a core's cache until they were compared


def holds(file: bytes | memoryview) -> bool:
    """Whether each number of each tensor in it is finite."""
    data = memoryview(file)
    begin = 8 + int.from_bytes(data[:8], "little")
    for entry in json.loads(bytes(data[8:begin])).values():
        if entry["dtype"] in BITS:
            kind, bits = BITS[entry["dtype"]]
            first, last = entry["data_offsets"]
            if not _below(np.frombuffer(data[begin + first : begin + last], dtype=kind), kind(bits)):
                return False
    return True


def _below(numbers: np.ndarray[Any, Any], bits: np.unsignedinteger[Any]) -> bool:
    """Whether none has all of these bits."""
    room = np.empty(min(CHUNK, len(numbers)), dtype=numbers.dtype)
    for at in range(0, len(numbers), CHUNK):
        part = numbers[at : at + CHUNK]
        if np.bitwise_and(part, bits, out=room[: len(part)]).max() == bits:
            return False
    return True
