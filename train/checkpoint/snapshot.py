"""Tensors on any device and JSON become the bytes of a checkpoint's files: each tensor copied once, all in memory.

What is written from them needs torch no more, so that training goes on meanwhile. The files are safetensors' format,
laid out here: its own writer wants a copy on the CPU first and makes a second one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from train.files import direct

STATE, SUFFIX = "state.json", ".safetensors"
ALIGNED: Final = 8  # bytes: the size of the largest number
# safetensors' names (https://github.com/huggingface/safetensors, README).
DTYPES: Final = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What a run was after `step`: the content of each file by its name. torch: the version that wrote them."""

    step: int
    torch: str
    files: Mapping[str, bytes | memoryview]

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(len(data) for data in self.files.values())


@dataclass(frozen=True, slots=True)
class Memory:
    """What one snapshot after the other is copied into: the first to use some waits four times as long for it.

    Only the newest snapshot in it is whole: the one before must have been written.
    """

    kept: dict[str, Tensor] = field(default_factory=dict)

    def of(self, name: str, size: int, *, pinned: bool) -> Tensor:
        """uint8 [size], with any content."""
        found = self.kept.get(name)
        if found is None or found.numel() != size or found.is_pinned() != pinned:
            room = torch.empty(size + direct.BLOCK, dtype=torch.uint8, pin_memory=pinned)
            at = -room.data_ptr() % direct.BLOCK  # so that it can be written past the page cache
            found = self.kept[name] = room[at : at + size]
        return found


def take(
    step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any], memory: Memory | None = None
) -> Snapshot:
    """Copy what is there now. From a GPU into pinned memory; returns once all is copied.

    Args:
        tensors: by group ("model", "optimizer") and name; any device, any layout. Tied weights are saved twice.
        state: everything else, as JSON; NaN and infinities are allowed.
        memory: of the snapshot before, which is over with.
    """
    room = memory or Memory()
    files: dict[str, bytes | memoryview] = {
        f"{group}{SUFFIX}": _packed(named, group, room) for group, named in tensors.items()
    }
    if any(tensor.is_cuda for named in tensors.values() for tensor in named.values()):
        torch.cuda.synchronize()
    return Snapshot(step=step, torch=torch.__version__, files=files | {STATE: json.dumps(state, indent=1).encode()})


def _packed(named: Mapping[str, Tensor], group: str, memory: Memory) -> memoryview:
    """The safetensors file of these tensors. From a GPU the copies may be still under way."""
    ordered = sorted(named.items(), key=lambda item: (-item[1].element_size(), item[0]))  # so that all are aligned
    header = _header(ordered)
    pinned = any(tensor.is_cuda for tensor in named.values())
    whole = memory.of(group, len(header) + sum(t.nbytes for _, t in ordered), pinned=pinned)
    whole[: len(header)] = torch.frombuffer(bytearray(header), dtype=torch.uint8)
    at = len(header)
    for _, tensor in ordered:
        place = whole[at : (at := at + tensor.nbytes)].view(tensor.dtype).view(tensor.shape)
        place.copy_(tensor.detach(), non_blocking=True)
    return whole.numpy().data


def _header(ordered: list[tuple[str, Tensor]]) -> bytes:
    """The length of what follows as 8 bytes, and the JSON that says where each tensor lies."""
    at, entries = 0, {}
    for name, tensor in ordered:
        offsets = [at, at := at + tensor.nbytes]
        entries[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNED)
    return len(text).to_bytes(8, "little") + text
