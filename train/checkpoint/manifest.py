"""The manifest lists a checkpoint's files with their sizes and hashes.

Only a manifest makes a folder a checkpoint. It tells a damaged checkpoint from a whole one.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

from entrypoint import ExitCode, Failure

FILE_NAME = "manifest.json"
FORMAT_VERSION = (
    1  # of the files beside the manifest; the envelope {"manifest", "sha256"} stays the same for every format
)
PLAIN_NAME_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
MAX_MANIFEST_BYTES = 1 << 20  # bytes; ours has a few hundred


class DamagedCheckpointError(Exception):
    """This checkpoint cannot be used; the text says which file and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file: its size in bytes and the sha256 of its content, in hex."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The step that a checkpoint was taken after, the torch that wrote it, and its files by name."""

    format: int
    step: int
    torch: str
    files: Mapping[str, FileEntry]


def make_file_entry(data: bytes | memoryview) -> FileEntry:
    """The entry of a file that is to hold `data`."""
    return FileEntry(size=len(data), sha256=hashlib.sha256(data).hexdigest())


def to_bytes(manifest: Manifest) -> bytes:
    """The manifest's file, which carries its own hash. The same content always gives the same bytes."""
    inner = asdict(manifest)
    return (json.dumps({"manifest": inner, "sha256": _hash_manifest(inner)}, indent=2, sort_keys=True) + "\n").encode()


def from_bytes(data: bytes) -> Manifest:
    """Read back what `to_bytes` wrote. The hash is compared first: a flipped bit is damage, not a new format.

    Raises:
        Damaged: not a manifest, or its own hash differs.
        Failure: SECURITY for a name that is not a plain file name.
    """
    try:
        envelope = json.loads(data)
        inner, told = envelope["manifest"], envelope["sha256"]
        own = _hash_manifest(inner)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedCheckpointError(f"{FILE_NAME} is not a manifest") from error
    if own != told:
        raise DamagedCheckpointError(f"{FILE_NAME} does not match its own hash{_newer_format_hint(inner)}")
    try:
        files = inner["files"]
        _refuse_paths(files)
        entries = {name: FileEntry(size=int(e["size"]), sha256=str(e["sha256"])) for name, e in files.items()}
        return Manifest(format=int(inner["format"]), step=int(inner["step"]), torch=str(inner["torch"]), files=entries)
    except (ArithmeticError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedCheckpointError(f"{FILE_NAME} lacks a part: {error}") from error


def read_file(folder: Path, name: str, *, limit: int) -> bytes:
    """The bytes of `folder/name`, through no link, device or pipe.

    Raises:
        Damaged: missing, unreadable, or longer than `limit`.
        Failure: SECURITY when it, or the folder, is a link or not a regular file.
    """
    with open_file(folder, name) as file, _os_errors_as_damage(name):
        data = file.read(limit + 1)
    if len(data) > limit:
        raise DamagedCheckpointError(f"{name} is longer than {limit} bytes")
    return data


def hash_file(folder: Path, name: str) -> FileEntry:
    """The entry that `folder/name` has now, read piece by piece; raises as `read` does."""
    with open_file(folder, name) as file, _os_errors_as_damage(name):
        digest = hashlib.file_digest(file, "sha256")
        return FileEntry(size=file.tell(), sha256=digest.hexdigest())


def open_file(folder: Path, name: str) -> BufferedReader:
    """`folder/name` open for reading; raises as `read` does."""
    if os.path.islink(folder) or os.path.islink(folder / name):  # Path's own raises for a folder that is shut
        raise _security_failure(f"{folder / name} is reached through a symbolic link")
    with _os_errors_as_damage(name):
        within = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=within)
        finally:
            os.close(within)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise _security_failure(f"{folder / name} is not a regular file")
    return os.fdopen(handle, "rb")


@contextmanager
def _os_errors_as_damage(name: str) -> Iterator[None]:
    """Turn an OSError from reading `name` into Damaged: an older checkpoint may be on a better part of the disk."""
    try:
        yield
    except OSError as error:
        raise DamagedCheckpointError(f"{name}: {os.strerror(error.errno or errno.EIO)}") from error


def refuse_changed_file(name: str, expected: FileEntry, found: FileEntry) -> None:
    """Raises Damaged, naming the file, unless both are the same."""
    if expected.size != found.size:
        raise DamagedCheckpointError(f"{name} has {found.size} bytes, not {expected.size}")
    if expected.sha256 != found.sha256:
        raise DamagedCheckpointError(f"{name} does not match its hash")


def _hash_manifest(inner: Any) -> str:
    return hashlib.sha256(json.dumps(inner, sort_keys=True).encode()).hexdigest()


def _newer_format_hint(inner: Any) -> str:
    """The version text for a manifest whose hash is wrong and which says that it is newer."""
    told = inner.get("format") if isinstance(inner, dict) else None
    return "" if told == FORMAT_VERSION else f" (it claims format {told}; this version reads {FORMAT_VERSION})"


def _refuse_paths(files: Mapping[str, Any]) -> None:
    for name in files:
        if not PLAIN_NAME_PATTERN.fullmatch(name) or name == FILE_NAME:
            raise _security_failure(f"a checkpoint's manifest names {name!r}, which is not a plain file name")


def _security_failure(what: str) -> Failure:
    return Failure(what, fix="delete this checkpoint: this project does not write such", code=ExitCode.SECURITY)
