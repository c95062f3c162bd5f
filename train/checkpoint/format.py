"""This module saves a run's tensors and JSON as a checkpoint, and loads the newest valid one.

`checkpoints/step-00001200/` holds one `<group>.safetensors` for each group of tensors,
`state.json`, and `manifest.json` with the size and sha256 of each. Nothing is ever unpickled:
nested state is stored as flat tensors and JSON, bit for bit.

A snapshot copies each tensor once, into the bytes of the files. Writing them needs no torch, so
training continues in the meantime.

This module writes the safetensors format itself. With 256 MB of tensors, `safetensors.torch.save`
(0.8) makes a second copy (peak memory 1,508 MiB, here 1,023). `save_file` needs as much time and
memory as this module, but its errors have no errno, from which the fix for a full disk or quota
follows; it does not fsync; it refuses tensors that are not contiguous; and with bool beside uint8
it orders tensors differently, so the bytes of checkpoints would change.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from
from torch import Tensor, nn

from entrypoint import Failure, file_writer
from train import files
from train.checkpoint import manifest, store
from train.checkpoint.manifest import DamagedCheckpointError, Manifest
from train.checkpoint.store import EMA_GROUP, MODEL_GROUP, STATE_FILE, CommittedCheckpoint
from train.config.schema import CheckpointConfig
from train.files import DIRECT_BLOCK_BYTES

# JSON has no tensors, tuples or keys other than strings. Each becomes an object with one of these
# keys.
TENSOR_MARK, TUPLE_MARK, ITEMS_MARK = "$tensor", "$tuple", "$items"
MARKS = frozenset({TENSOR_MARK, TUPLE_MARK, ITEMS_MARK})


def pack_state(state: Any) -> tuple[dict[str, Tensor], Any]:
    """Split `state`, such as an optimizer's state_dict(), into its tensors by path and a JSON value that names them.

    Raises:
        TypeError: a value is neither a tensor, a container, a number, text nor None.
    """
    tensors: dict[str, Tensor] = {}
    return tensors, _encode(state, "", tensors)


def unpack_state(tensors: Mapping[str, Tensor], value: Any) -> Any:
    """Undo `pack_state`.

    Tensors keep their memory layout (channels_last), so that the same kernels run.
    """
    if isinstance(value, list):
        return [unpack_state(tensors, item) for item in value]
    if not isinstance(value, dict):
        return value
    if TENSOR_MARK in value:
        return _restore_strides(tensors[value[TENSOR_MARK]], value.get("stride"))
    if TUPLE_MARK in value:
        return tuple(unpack_state(tensors, value[TUPLE_MARK]))
    if ITEMS_MARK in value:
        return {key: unpack_state(tensors, item) for key, item in value[ITEMS_MARK]}
    return {key: unpack_state(tensors, item) for key, item in value.items()}


def _encode(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        tensors[path] = value
        return {TENSOR_MARK: path} | ({} if value.is_contiguous() else {"stride": list(value.stride())})
    if isinstance(value, list):
        return [_encode(item, f"{path}.{index}", tensors) for index, item in enumerate(value)]
    if isinstance(value, tuple):
        return {TUPLE_MARK: _encode(list(value), path, tensors)}
    if isinstance(value, Mapping):
        return _encode_mapping(value, path, tensors)
    raise TypeError(f"{path}: cannot keep a {type(value).__name__} without pickle")


def _encode_mapping(value: Mapping[Any, Any], path: str, tensors: dict[str, Tensor]) -> Any:
    items = [(key, _encode(item, f"{path}.{key}".lstrip("."), tensors)) for key, item in value.items()]
    plain = all(isinstance(key, str) for key in value) and not MARKS & value.keys()
    return dict(items) if plain else {ITEMS_MARK: [[key, item] for key, item in items]}


def _restore_strides(tensor: Tensor, stride: list[int] | None) -> Tensor:
    if stride is None:
        return tensor
    return torch.empty_strided(tuple(tensor.shape), stride, dtype=tensor.dtype).copy_(tensor)


TENSORS_SUFFIX = ".safetensors"
Array = np.ndarray[Any, np.dtype[Any]]
FileData = bytes | memoryview
TensorCopy = tuple[Array, Array]  # (destination, tensor), both on the CPU
ALIGNMENT_BYTES: Final = 8  # the size of the largest number
INTEGER_DTYPE_BY_SIZE: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # NumPy has no bfloat16
# safetensors' names (https://github.com/huggingface/safetensors, README).
SAFETENSORS_DTYPES: Final = {
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


@dataclass(frozen=True, slots=True)
class SnapshotBuffers:
    """Memory that successive snapshots reuse: the first copy into new memory takes four times as long.

    A new snapshot overwrites the previous one, which must have been written.
    """

    buffers: dict[str, Tensor] = field(default_factory=dict)
    staging: dict[tuple[str, str], Tensor] = field(default_factory=dict)

    def buffer(self, name: str, size: int, *, pinned: bool) -> Tensor:
        """A buffer, uint8 [size], with arbitrary content."""
        buffer = self.buffers.get(name)
        if buffer is None or buffer.numel() != size or buffer.is_pinned() != pinned:
            memory = torch.empty(size + DIRECT_BLOCK_BYTES, dtype=torch.uint8, pin_memory=pinned)
            offset = -memory.data_ptr() % DIRECT_BLOCK_BYTES  # aligned, as O_DIRECT needs it
            buffer = self.buffers[name] = memory[offset : offset + size]
        return buffer

    def staging_tensor(self, group: str, name: str, tensor: Tensor) -> Tensor:
        """A tensor with the dtype, shape and strides of this one, and arbitrary content."""
        staged = self.staging.get((group, name))
        if staged is None or (staged.dtype, staged.shape, staged.stride()) != (
            tensor.dtype,
            tensor.shape,
            tensor.stride(),
        ):
            staged = self.staging[group, name] = torch.empty_like(tensor)
        return staged


@dataclass(slots=True, kw_only=True)
class Snapshot:
    """A copy of a run's state, in progress. `copied` is set when the original tensors are no longer needed.

    metadata: see `begin_snapshot`. deferred: tensors that `finish` copies to the file's bytes.
    strided: staging copies of tensors that are not contiguous, which `finish` converts to the
    file's layout; converting them at once would delay training by half as much again.
    gpu_copies_done: the event after the copies from a GPU.
    """

    metadata: Mapping[str, Any]
    files: dict[str, memoryview] = field(default_factory=dict)
    deferred: list[TensorCopy] = field(default_factory=list)
    strided: list[TensorCopy] = field(default_factory=list)
    gpu_copies_done: torch.cuda.Event | None = None
    copied: threading.Event = field(default_factory=threading.Event)

    def finish(self) -> dict[str, FileData]:
        """Copy the rest, in any thread; return the content of each file. `copied` is set even after an exception."""
        try:
            for destination, tensor in self.deferred:
                np.copyto(destination, tensor)
        finally:
            self.copied.set()
        for destination, staged in self.strided:
            np.copyto(destination, staged)
        if self.gpu_copies_done is not None:
            self.gpu_copies_done.synchronize()
        text = json.dumps(self.metadata, indent=1).encode()
        return {**self.files, STATE_FILE: text}


def take_snapshot(
    tensors: Mapping[str, Mapping[str, Tensor]],
    metadata: Mapping[str, Any],
    memory: SnapshotBuffers | None = None,
) -> dict[str, FileData]:
    """Copy everything now; return the content of each file: see `begin_snapshot`."""
    return begin_snapshot(tensors, metadata, memory).finish()


def begin_snapshot(
    tensors: Mapping[str, Mapping[str, Tensor]],
    metadata: Mapping[str, Any],
    memory: SnapshotBuffers | None = None,
    deferred: Collection[str] = (),
) -> Snapshot:
    """Copy the tensors now, except groups in `deferred` that are on the CPU.

    Args:
        tensors: by group ("model", "optimizer") and name; any device, any layout. Tied weights are
            saved twice. From a GPU they are copied to pinned memory, in its current stream.
        metadata: the JSON content of state.json; NaN and infinities are allowed. It must not change
            any more.
        memory: the buffers of the previous snapshot, which must have been written.
        deferred: groups that `Snapshot.finish` copies. They must not change before `copied` is
            set.
    """
    snapshot, buffers = Snapshot(metadata=metadata), memory or SnapshotBuffers()
    for group, group_tensors in tensors.items():
        snapshot.files[f"{group}{TENSORS_SUFFIX}"] = _pack_group(
            group_tensors, group, snapshot, buffers, deferred=group in deferred
        )
    if any(tensor.is_cuda for group_tensors in tensors.values() for tensor in group_tensors.values()):
        snapshot.gpu_copies_done = torch.cuda.current_stream().record_event()
    if not snapshot.deferred:
        snapshot.copied.set()
    return snapshot


def _pack_group(
    tensors: Mapping[str, Tensor], group: str, snapshot: Snapshot, memory: SnapshotBuffers, *, deferred: bool
) -> memoryview:
    """The safetensors file of these tensors.

    `snapshot` or the GPU's stream completes some of them.
    """
    ordered = sorted(
        tensors.items(), key=lambda item: (-item[1].element_size(), item[0])
    )  # largest numbers first, so that all are aligned
    header = _safetensors_header(ordered)
    pinned = any(tensor.is_cuda for tensor in tensors.values())
    file = memory.buffer(group, len(header) + sum(tensor.nbytes for _, tensor in ordered), pinned=pinned)
    file[: len(header)] = torch.frombuffer(bytearray(header), dtype=torch.uint8)
    offset = len(header)
    for name, tensor in ordered:
        destination = file[offset : (offset := offset + tensor.nbytes)].view(tensor.dtype).view(tensor.shape)
        tensor = tensor.detach()
        if deferred and not pinned:
            snapshot.deferred.append((_as_integer_array(destination), _as_integer_array(tensor)))
        elif pinned or tensor.is_contiguous():
            destination.copy_(tensor, non_blocking=True)
        else:
            staged = memory.staging_tensor(group, name, tensor).copy_(tensor)
            snapshot.strided.append((_as_integer_array(destination), _as_integer_array(staged)))
    return file.numpy().data


def _as_integer_array(tensor: Tensor) -> Array:
    """The same memory as an array of integers, since NumPy has no bfloat16."""
    return tensor.view(INTEGER_DTYPE_BY_SIZE[tensor.element_size()]).numpy()


def _safetensors_header(ordered: list[tuple[str, Tensor]]) -> bytes:
    """The header: its length in 8 bytes, and JSON with the dtype, shape and offsets of each tensor."""
    offset, entries = 0, {}
    for name, tensor in ordered:
        offsets = [offset, offset := offset + tensor.nbytes]
        entries[name] = {
            "dtype": SAFETENSORS_DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": offsets,
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT_BYTES)
    return len(text).to_bytes(8, "little") + text


def prepare_folder(folder: Path, *, need: int = 0) -> list[str]:
    """Remove leftovers of killed writers, and save one small checkpoint as a test.

    The test shows before training that checkpoints can be written, with `need` bytes free, and imports all code that a
    save runs: a signal may end the image's file server (Apptainer under proctrack/linuxproc). Call it on rank 0, before
    `store.newest_checkpoint`.

    Raises:
        Failure: as `save_checkpoint`.
    """
    store.list_checkpoints(folder)  # refuses a link before a file is written through it
    files.prepare_folder(folder, need)
    removed = store.remove_leftovers(folder)
    rehearsal = file_writer.temporary_path(folder / "rehearsal")
    try:
        save_checkpoint(rehearsal, step=0, tensors={"model": {"weight": torch.zeros(1)}}, metadata={}, keep=1)
        store.newest_checkpoint(rehearsal)
    finally:
        files.remove(rehearsal)
    return removed


def save_checkpoint(
    folder: Path,
    *,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    metadata: Mapping[str, Any],
    keep: int,
    best: int | None = None,
) -> Path:
    """Write a snapshot as a checkpoint, then prune.

    `keep` checkpoints stay, and the one of step `best`. The rehearsal and tests call it; a training saves with
    `Checkpointer.save`, which does not wait for the disk.
    """
    final = write_snapshot(folder, step, take_snapshot(tensors, metadata))
    store.prune_checkpoints(folder, CheckpointConfig(keep=keep), best=best, trusted=step)
    return final


def write_snapshot(folder: Path, step: int, data_by_name: Mapping[str, FileData]) -> Path:
    """Commit a snapshot's files in `folder` (the run's `checkpoints/`). On rank 0 only, in any thread, without torch.

    Writing the same content again changes nothing. Different content for the same step replaces it.

    Raises:
        Failure: as in `files.ERRNO_MEANINGS`, before the first write if the disk is too full;
            `kept` names the last committed checkpoint.
    """
    earlier = store.list_checkpoints(folder)
    final = folder / store.step_folder_name(step)
    try:
        entries = {name: manifest.make_file_entry(data) for name, data in data_by_name.items()}
        contents = Manifest(format=manifest.FORMAT_VERSION, step=step, torch=torch.__version__, files=entries)
        with files.translate_os_errors(final):
            if not store.is_committed(final, contents):
                files.refuse_full_disk(folder, sum(map(len, data_by_name.values())))
                store.commit_checkpoint(final, data_by_name, contents)
    except Failure as failure:
        failure.kept = next((str(path) for path in reversed(earlier.values()) if store.is_valid_checkpoint(path)), None)
        raise
    return final


def load_checkpoint(
    committed: CommittedCheckpoint, groups: Collection[str] | None = None
) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """(tensors by group and name, on the CPU; metadata) of a checkpoint, hashed again as it is read.

    groups: the groups to read, if they exist; None for all.

    Raises:
        Failure: DATA if it was damaged in the meantime.
    """
    try:
        names = [name for name in committed.contents.files if name.endswith(TENSORS_SUFFIX)]
        selected = [name for name in names if groups is None or name.removesuffix(TENSORS_SUFFIX) in groups]
        path, contents = committed.path, committed.contents
        tensors = {
            name.removesuffix(TENSORS_SUFFIX): tensors_from(store.read_verified(path, contents, name))
            for name in selected
        }
        return tensors, store.read_state(committed)
    except (DamagedCheckpointError, SafetensorError, ValueError, KeyError, RecursionError) as reason:
        raise store.damaged_failure(committed.path, reason, committed.damaged_fix) from reason


def load_model(committed: CommittedCheckpoint) -> tuple[dict[str, Tensor], bool]:
    """(the network's tensors by name, whether they are averaged); no tensors if the checkpoint has no network.

    With an average of the weights that is what counts: the run evaluates it. Raises Failure as `load_checkpoint`.
    """
    groups, _ = load_checkpoint(committed, (MODEL_GROUP, EMA_GROUP))
    return {**groups[MODEL_GROUP], **groups.get(EMA_GROUP, {})} if MODEL_GROUP in groups else {}, EMA_GROUP in groups


def restore_network(network: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load the tensors of a checkpoint, all of them.

    Some networks, such as torchvision's MNASNet, ask which version of their layout the tensors have. That stands in
    the metadata of a state dict, which no checkpoint holds: it is the network's own.

    Raises:
        RuntimeError: they belong to another network.
    """
    state = OrderedDict(tensors)
    state._metadata = getattr(network.state_dict(), "_metadata", {})  # type: ignore[attr-defined]  # as torch sets it
    network.load_state_dict(state)
