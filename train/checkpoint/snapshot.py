"""Tensors on any device and JSON become the bytes of a checkpoint's files: each tensor copied once, all in memory.

What is written from them needs torch no more, so that training goes on meanwhile: even before all is copied, as long
as it leaves that alone. The files are safetensors' format, laid out here: its own writer wants a copy on the CPU first
and makes a second one.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from train.files import direct

STATE, SUFFIX = "state.json", ".safetensors"
Array = np.ndarray[Any, np.dtype[Any]]
Pair = tuple[Array, Array]  # where a tensor's copy is to be, and the tensor: both on the CPU
ALIGNED: Final = 8  # bytes: the size of the largest number
INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # NumPy has no bfloat16
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
    twins: dict[tuple[str, str], Tensor] = field(default_factory=dict)

    def of(self, name: str, size: int, *, pinned: bool) -> Tensor:
        """uint8 [size], with any content."""
        found = self.kept.get(name)
        if found is None or found.numel() != size or found.is_pinned() != pinned:
            room = torch.empty(size + direct.BLOCK, dtype=torch.uint8, pin_memory=pinned)
            at = -room.data_ptr() % direct.BLOCK  # so that it can be written past the page cache
            found = self.kept[name] = room[at : at + size]
        return found

    def twin(self, group: str, name: str, tensor: Tensor) -> Tensor:
        """One laid out in memory like this one, with any content."""
        found = self.twins.get((group, name))
        if found is None or (found.dtype, found.shape, found.stride()) != (tensor.dtype, tensor.shape, tensor.stride()):
            found = self.twins[group, name] = torch.empty_like(tensor)
        return found


@dataclass(slots=True, kw_only=True)
class Taking:
    """A snapshot under way. `copied` is set once nothing of what it is taken from is needed any more.

    later: where a tensor's copy is to be, and the tensor. turned: the same with a copy of the tensor that is laid out
    as itself: to lay it out as a file has it holds training up half as long again. arrived: what comes from a GPU is
    there; what its stream has to do after that waits by itself.
    """

    step: int
    state: Mapping[str, Any]
    files: dict[str, memoryview] = field(default_factory=dict)
    later: list[Pair] = field(default_factory=list)
    turned: list[Pair] = field(default_factory=list)
    arrived: torch.cuda.Event | None = None
    copied: threading.Event = field(default_factory=threading.Event)

    def finish(self) -> Snapshot:
        """Copy the rest, in any thread. `copied` is set however that ends."""
        try:
            for place, tensor in self.later:
                np.copyto(place, tensor)
        finally:
            self.copied.set()
        for place, twin in self.turned:
            np.copyto(place, twin)
        if self.arrived is not None:
            self.arrived.synchronize()
        text = json.dumps(self.state, indent=1).encode()
        return Snapshot(step=self.step, torch=torch.__version__, files={**self.files, STATE: text})


def take(
    step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any], memory: Memory | None = None
) -> Snapshot:
    """Copy what is there now, all of it: see `begin`."""
    return begin(step, tensors, state, memory).finish()


def begin(
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    memory: Memory | None = None,
    later: Collection[str] = (),
) -> Taking:
    """Copy what is there now, but for the groups named in `later` as far as they are on the CPU.

    Args:
        tensors: by group ("model", "optimizer") and name; any device, any layout. Tied weights are saved twice.
            From a GPU they go into pinned memory, behind what its current stream has to do.
        state: everything else, as JSON; NaN and infinities are allowed. Nobody changes it any more.
        memory: of the snapshot before, which is over with.
        later: `Taking.finish` copies them. They must not change before `copied` is set.
    """
    taking, room = Taking(step=step, state=state), memory or Memory()
    for group, named in tensors.items():
        taking.files[f"{group}{SUFFIX}"] = _packed(named, group, taking, room, later=group in later)
    if any(tensor.is_cuda for named in tensors.values() for tensor in named.values()):
        taking.arrived = torch.cuda.current_stream().record_event()
    if not taking.later:
        taking.copied.set()
    return taking


def _packed(named: Mapping[str, Tensor], group: str, taking: Taking, memory: Memory, *, later: bool) -> memoryview:
    """The safetensors file of these tensors, but for what `taking` is to copy, or what is under way from a GPU."""
    ordered = sorted(named.items(), key=lambda item: (-item[1].element_size(), item[0]))  # so that all are aligned
    header = _header(ordered)
    pinned = any(tensor.is_cuda for tensor in named.values())
    whole = memory.of(group, len(header) + sum(t.nbytes for _, t in ordered), pinned=pinned)
    whole[: len(header)] = torch.frombuffer(bytearray(header), dtype=torch.uint8)
    at = len(header)
    for name, tensor in ordered:
        place = whole[at : (at := at + tensor.nbytes)].view(tensor.dtype).view(tensor.shape)
        tensor = tensor.detach()
        if later and not pinned:
            taking.later.append((_numbers(place), _numbers(tensor)))
        elif pinned or tensor.is_contiguous():
            place.copy_(tensor, non_blocking=True)
        else:
            twin = memory.twin(group, name, tensor).copy_(tensor)
            taking.turned.append((_numbers(place), _numbers(twin)))
    return whole.numpy().data


def _numbers(tensor: Tensor) -> Array:
    """The same memory, of any type of number."""
    return tensor.view(INTEGERS[tensor.element_size()]).numpy()


def _header(ordered: list[tuple[str, Tensor]]) -> bytes:
    """The length of what follows as 8 bytes, and the JSON that says where each tensor lies."""
    at, entries = 0, {}
    for name, tensor in ordered:
        offsets = [at, at := at + tensor.nbytes]
        entries[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNED)
    return len(text).to_bytes(8, "little") + text
