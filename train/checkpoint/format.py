"""This module saves a run's tensors and JSON as a checkpoint, and loads the newest valid one.

`checkpoints/step-00001200/` holds one `<group>.safetensors` for each group of tensors,
`state.json`, and `manifest.json` with the size and sha256 of each. Nothing is ever unpickled:
nested state is stored as flat tensors and JSON, bit for bit.

A snapshot copies each tensor once, into the bytes of the files. Writing them needs no torch, so
training continues in the meantime. safetensors' format is laid out here, since its own writer wants
a copy on the CPU first and makes a second one.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from
from torch import Tensor

from entrypoint import ExitCode, Failure
from train import files
from train.checkpoint import manifest, store
from train.checkpoint.manifest import DamagedCheckpointError, Manifest
from train.files import DIRECT_BLOCK_BYTES

# JSON has no tensors, tuples or keys that are not text. Each becomes an object with one of these marks.
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
    """What `pack_state` was given. Tensors keep their memory layout (channels_last), so that the same kernels run."""
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
        return [_encode(item, f"{path}.{at}", tensors) for at, item in enumerate(value)]
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


# The bits that are all set in what is not finite, by safetensors' name of the type: IEEE 754's exponent, or in the
# types of 8 bits as in https://arxiv.org/abs/2209.05433 (table 1). A complex number is two.
NON_FINITE_BITS: Final[dict[str, tuple[type[np.unsignedinteger[Any]], int]]] = {
    "F64": (np.uint64, 0x7FF0_0000_0000_0000),
    "F32": (np.uint32, 0x7F80_0000),
    "C64": (np.uint32, 0x7F80_0000),
    "F16": (np.uint16, 0x7C00),
    "BF16": (np.uint16, 0x7F80),
    "F8_E5M2": (np.uint8, 0x7C),
    "F8_E4M3": (np.uint8, 0x7F),
}
CHUNK_NUMEL: Final = 2**18  # numbers: they stay in a core's cache until they were compared


def all_finite(file: bytes | memoryview) -> bool:
    """Whether each number of each tensor in it is finite."""
    data = memoryview(file)
    begin = 8 + int.from_bytes(data[:8], "little")
    for entry in json.loads(bytes(data[8:begin])).values():
        if entry["dtype"] in NON_FINITE_BITS:
            kind, bits = NON_FINITE_BITS[entry["dtype"]]
            first, last = entry["data_offsets"]
            if not _none_has_bits(np.frombuffer(data[begin + first : begin + last], dtype=kind), kind(bits)):
                return False
    return True


def _none_has_bits(numbers: np.ndarray[Any, Any], bits: np.unsignedinteger[Any]) -> bool:
    """Whether none has all of these bits."""
    room = np.empty(min(CHUNK_NUMEL, len(numbers)), dtype=numbers.dtype)
    for at in range(0, len(numbers), CHUNK_NUMEL):
        part = numbers[at : at + CHUNK_NUMEL]
        if np.bitwise_and(part, bits, out=room[: len(part)]).max() == bits:
            return False
    return True


STATE_FILE, TENSORS_SUFFIX = "state.json", ".safetensors"
Array = np.ndarray[Any, np.dtype[Any]]
TensorCopy = tuple[Array, Array]  # where a tensor's copy is to be, and the tensor: both on the CPU
ALIGNMENT_BYTES: Final = 8  # bytes: the size of the largest number
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
class SnapshotBuffers:
    """What one snapshot after the other is copied into: the first to use some waits four times as long for it.

    Only the newest snapshot in it is whole: the one before must have been written.
    """

    kept: dict[str, Tensor] = field(default_factory=dict)
    twins: dict[tuple[str, str], Tensor] = field(default_factory=dict)

    def of(self, name: str, size: int, *, pinned: bool) -> Tensor:
        """uint8 [size], with any content."""
        found = self.kept.get(name)
        if found is None or found.numel() != size or found.is_pinned() != pinned:
            room = torch.empty(size + DIRECT_BLOCK_BYTES, dtype=torch.uint8, pin_memory=pinned)
            at = -room.data_ptr() % DIRECT_BLOCK_BYTES  # so that it can be written past the page cache
            found = self.kept[name] = room[at : at + size]
        return found

    def twin(self, group: str, name: str, tensor: Tensor) -> Tensor:
        """One laid out in memory like this one, with any content."""
        found = self.twins.get((group, name))
        if found is None or (found.dtype, found.shape, found.stride()) != (tensor.dtype, tensor.shape, tensor.stride()):
            found = self.twins[group, name] = torch.empty_like(tensor)
        return found


@dataclass(slots=True, kw_only=True)
class PendingSnapshot:
    """A snapshot under way. `copied` is set once nothing of what it is taken from is needed any more.

    later: where a tensor's copy is to be, and the tensor. turned: the same with a copy of the tensor that is laid out
    as itself: to lay it out as a file has it holds training up half as long again. arrived: what comes from a GPU is
    there; what its stream has to do after that waits by itself.
    """

    step: int
    state: Mapping[str, Any]
    files: dict[str, memoryview] = field(default_factory=dict)
    later: list[TensorCopy] = field(default_factory=list)
    turned: list[TensorCopy] = field(default_factory=list)
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
        return Snapshot(step=self.step, torch=torch.__version__, files={**self.files, STATE_FILE: text})


def take_snapshot(
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    memory: SnapshotBuffers | None = None,
) -> Snapshot:
    """Copy what is there now, all of it: see `begin`."""
    return begin_snapshot(step, tensors, state, memory).finish()


def begin_snapshot(
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    memory: SnapshotBuffers | None = None,
    later: Collection[str] = (),
) -> PendingSnapshot:
    """Copy what is there now, but for the groups named in `later` as far as they are on the CPU.

    Args:
        tensors: by group ("model", "optimizer") and name; any device, any layout. Tied weights are saved twice.
            From a GPU they go into pinned memory, behind what its current stream has to do.
        state: everything else, as JSON; NaN and infinities are allowed. Nobody changes it any more.
        memory: of the snapshot before, which is over with.
        later: `PendingSnapshot.finish` copies them. They must not change before `copied` is set.
    """
    taking, room = PendingSnapshot(step=step, state=state), memory or SnapshotBuffers()
    for group, named in tensors.items():
        taking.files[f"{group}{TENSORS_SUFFIX}"] = _pack_group(named, group, taking, room, later=group in later)
    if any(tensor.is_cuda for named in tensors.values() for tensor in named.values()):
        taking.arrived = torch.cuda.current_stream().record_event()
    if not taking.later:
        taking.copied.set()
    return taking


def _pack_group(
    named: Mapping[str, Tensor], group: str, taking: PendingSnapshot, memory: SnapshotBuffers, *, later: bool
) -> memoryview:
    """The safetensors file of these tensors, but for what `taking` is to copy, or what is under way from a GPU."""
    ordered = sorted(named.items(), key=lambda item: (-item[1].element_size(), item[0]))  # so that all are aligned
    header = _safetensors_header(ordered)
    pinned = any(tensor.is_cuda for tensor in named.values())
    whole = memory.of(group, len(header) + sum(t.nbytes for _, t in ordered), pinned=pinned)
    whole[: len(header)] = torch.frombuffer(bytearray(header), dtype=torch.uint8)
    at = len(header)
    for name, tensor in ordered:
        place = whole[at : (at := at + tensor.nbytes)].view(tensor.dtype).view(tensor.shape)
        tensor = tensor.detach()
        if later and not pinned:
            taking.later.append((_as_integer_array(place), _as_integer_array(tensor)))
        elif pinned or tensor.is_contiguous():
            place.copy_(tensor, non_blocking=True)
        else:
            twin = memory.twin(group, name, tensor).copy_(tensor)
            taking.turned.append((_as_integer_array(place), _as_integer_array(twin)))
    return whole.numpy().data


def _as_integer_array(tensor: Tensor) -> Array:
    """The same memory, of any type of number."""
    return tensor.view(INTEGER_DTYPE_BY_SIZE[tensor.element_size()]).numpy()


def _safetensors_header(ordered: list[tuple[str, Tensor]]) -> bytes:
    """The length of what follows as 8 bytes, and the JSON that says where each tensor lies."""
    at, entries = 0, {}
    for name, tensor in ordered:
        offsets = [at, at := at + tensor.nbytes]
        entries[name] = {
            "dtype": SAFETENSORS_DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": offsets,
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT_BYTES)
    return len(text).to_bytes(8, "little") + text


START_OVER_FIX = "start over with checkpoint.resume=never"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedCheckpoint:
    """A checkpoint whose manifest is right; of `newest_checkpoint`, its hashes too: `skipped` says which newer ones
    were not."""

    path: Path
    step: int
    contents: Manifest
    skipped: tuple[str, ...] = ()


def prepare_folder(folder: Path, *, need: int = 0) -> list[str]:
    """Make `folder` ready: sweep what killed writers left (their names are returned), and rehearse one small save.

    The rehearsal shows before training that checkpoints can be kept there, with `need` bytes to spare, and loads all
    code that a save runs: a signal may take the image's file server away (Apptainer under proctrack/linuxproc).
    On rank 0, before `newest_checkpoint`.

    Raises:
        Failure: as `save_checkpoint` does.
    """
    store.list_checkpoints(folder)  # refuses a link before anything is written through it
    files.prepare_folder(folder, need)
    swept = store.remove_leftovers(folder)
    rehearsal = folder / f"{files.TEMPORARY_PREFIX}rehearsal"
    try:
        save_checkpoint(rehearsal, step=0, tensors={"model": {"weight": torch.zeros(1)}}, state={}, keep=1)
        newest_checkpoint(rehearsal)
    finally:
        files.remove(rehearsal)
    return swept


def save_checkpoint(
    folder: Path,
    *,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    keep: int,
    best: int | None = None,
) -> Path:
    """Write a snapshot as a checkpoint, then prune: `keep` checkpoints stay, and that of step `best`."""
    final = write_snapshot(folder, take_snapshot(step, tensors, state))
    store.prune_checkpoints(folder, keep=keep, best=best, trusted=step)
    return final


def write_snapshot(folder: Path, taken: Snapshot) -> Path:
    """Commit a snapshot in `folder` (the run's `checkpoints/`). On rank 0 only, in any thread: torch is not used.

    Writing the same content again changes nothing. Another content for the same step replaces it.

    Raises:
        Failure: as in `files.ERRNO_MEANINGS`, before anything is written where there is no room for it; `kept`
            names the last committed checkpoint.
    """
    before = store.list_checkpoints(folder)
    final = folder / store.step_folder_name(taken.step)
    try:
        entries = {name: manifest.make_file_entry(data) for name, data in taken.files.items()}
        contents = Manifest(format=manifest.FORMAT_VERSION, step=taken.step, torch=taken.torch, files=entries)
        with files.translate_os_errors(final):
            if not store.is_committed(final, contents):
                files.refuse_full_disk(folder, taken.size)
                store.commit_checkpoint(final, taken.files, contents)
    except Failure as failure:
        failure.kept = next((str(path) for path in reversed(before.values()) if store.is_valid_checkpoint(path)), None)
        raise
    return final


def newest_checkpoint(folder: Path) -> CommittedCheckpoint | None:
    """The newest checkpoint whose manifest and hashes are right, checked before anything is parsed; None if none is.

    Raises:
        Failure: DATA when there are checkpoints and all are damaged, or the newest was written by a newer version;
            SECURITY for links and for paths in a manifest.
    """
    skipped: list[str] = []
    for step, path in reversed(store.list_checkpoints(folder).items()):
        try:
            return CommittedCheckpoint(path=path, step=step, contents=store.verify_hashes(path), skipped=tuple(skipped))
        except DamagedCheckpointError as reason:
            skipped.append(f"{path.name}: {reason}")
    if skipped:
        raise Failure(
            f"no checkpoint in {folder} is whole", found="; ".join(skipped), fix=START_OVER_FIX, code=ExitCode.DATA
        )
    return None


def checkpoint_at_step(folder: Path, step: int) -> CommittedCheckpoint:
    """The checkpoint of `step`: for the ranks that are told which one rank 0 has chosen. `load_checkpoint` compares
    its hashes.

    Raises as `newest_checkpoint` does.
    """
    path = store.list_checkpoints(folder).get(step, folder / store.step_folder_name(step))
    try:
        return CommittedCheckpoint(path=path, step=step, contents=store.read_manifest(path))
    except DamagedCheckpointError as reason:
        raise _damaged_failure(path, reason) from reason


def load_checkpoint(
    committed: CommittedCheckpoint, groups: Collection[str] | None = None
) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """(tensors by group and name, on the CPU; state) of a checkpoint, hashed again as it is read.

    groups: those to read, as far as they are there; None for all.

    Raises:
        Failure: DATA when it was damaged since it was found.
    """
    try:
        names = [name for name in committed.contents.files if name.endswith(TENSORS_SUFFIX)]
        wanted = [name for name in names if groups is None or name.removesuffix(TENSORS_SUFFIX) in groups]
        tensors = {name.removesuffix(TENSORS_SUFFIX): tensors_from(_read_verified(committed, name)) for name in wanted}
        return tensors, json.loads(_read_verified(committed, STATE_FILE))
    except (DamagedCheckpointError, SafetensorError, ValueError, KeyError, RecursionError) as reason:
        raise _damaged_failure(committed.path, reason) from reason


def _read_verified(committed: CommittedCheckpoint, name: str) -> bytes:
    expected = committed.contents.files[name]
    data = manifest.read_file(committed.path, name, limit=expected.size)
    manifest.refuse_changed_file(name, expected, manifest.make_file_entry(data))
    return data


def _damaged_failure(path: Path, reason: Exception) -> Failure:
    fix = f"delete it, so that the one before is taken, or {START_OVER_FIX}"
    return Failure(f"the checkpoint {path} is damaged", found=str(reason), fix=fix, code=ExitCode.DATA)
