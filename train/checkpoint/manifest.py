"""The manifest lists a checkpoint's files with their sizes and hashes.

A folder is a checkpoint only with a manifest, which shows whether a file is missing or damaged.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

from entrypoint import ExitCode, Failure, resource_limit_failure
from train.files import is_plain_name, parse_json

FILE_NAME = "manifest.json"
# Of the files that the manifest lists; the envelope {"manifest", "sha256"} is the same for every
# version.
FORMAT_VERSION = 1
MAX_MANIFEST_BYTES = 1 << 20  # ours have a few hundred bytes


class DamagedCheckpointError(Exception):
    """This checkpoint cannot be used; the text says which file and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file: its size in bytes and the sha256 of its content, in hex."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The step of a checkpoint, the torch version that wrote it, and its files by name."""

    format: int
    step: int
    torch: str
    files: Mapping[str, FileEntry]


def make_file_entry(data: bytes | memoryview) -> FileEntry:
    """The entry of a file with the content `data`."""
    return FileEntry(size=len(data), sha256=hashlib.sha256(data).hexdigest())


def to_bytes(manifest: Manifest) -> bytes:
    """Serialize the manifest with its own hash. The same content always gives the same bytes."""
    content = asdict(manifest)
    return (
        json.dumps({"manifest": content, "sha256": _hash_manifest(content)}, indent=2, sort_keys=True) + "\n"
    ).encode()


def from_bytes(data: bytes) -> Manifest:
    """Read back what `to_bytes` wrote. The hash is compared first: a flipped bit is damage, not a new format.

    Raises:
        DamagedCheckpointError: not a manifest, or its own hash differs.
        Failure: SECURITY for a name that is not a plain file name.
    """
    try:
        envelope = parse_json(data)
        content, recorded = envelope["manifest"], envelope["sha256"]
        computed = _hash_manifest(content)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedCheckpointError(f"{FILE_NAME} is not a manifest") from error
    if computed != recorded:
        raise DamagedCheckpointError(f"{FILE_NAME} does not match its own hash{_newer_format_hint(content)}")
    try:
        files = content["files"]
        entries = {
            name: FileEntry(size=int(entry["size"]), sha256=str(entry["sha256"])) for name, entry in files.items()
        }
        _refuse_paths(entries)
        return Manifest(
            format=int(content["format"]), step=int(content["step"]), torch=str(content["torch"]), files=entries
        )
    except (ArithmeticError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedCheckpointError(f"{FILE_NAME} lacks a part: {error}") from error


def read_file(folder: Path, name: str, *, limit: int) -> bytes:
    """The bytes of `folder/name`, through no link, device or pipe.

    Raises:
        DamagedCheckpointError: missing, unreadable, or longer than `limit`.
        Failure: SECURITY when it, or the folder, is a link or not a regular file.
    """
    with open_file(folder, name) as file, _os_errors_as_damage(name):
        data = file.read(min(limit, os.fstat(file.fileno()).st_size) + 1)  # the limit may be a forged size
    if len(data) > limit:
        raise DamagedCheckpointError(f"{name} is longer than {limit} bytes")
    return data


def hash_file(folder: Path, name: str) -> FileEntry:
    """The current entry of `folder/name`, read in chunks; raises as `read_file`."""
    with open_file(folder, name) as file, _os_errors_as_damage(name):
        digest = hashlib.file_digest(file, "sha256")
        return FileEntry(size=file.tell(), sha256=digest.hexdigest())


def open_file(folder: Path, name: str) -> BufferedReader:
    """Open `folder/name` for reading; raises as `read_file`."""
    if os.path.islink(folder) or os.path.islink(folder / name):  # Path.is_symlink raises for an unreadable folder
        raise _security_failure(f"{folder / name} is reached through a symbolic link")
    with _os_errors_as_damage(name):
        folder_descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            descriptor = os.open(
                name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder_descriptor
            )
        finally:
            os.close(folder_descriptor)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _security_failure(f"{folder / name} is not a regular file")
    return os.fdopen(descriptor, "rb")


@contextmanager
def _os_errors_as_damage(name: str) -> Iterator[None]:
    """Turn an OSError into DamagedCheckpointError: an older checkpoint may still be readable.

    Raises:
        Failure: RESOURCE for a limit of the system, which says nothing about the file.
    """
    try:
        yield
    except OSError as error:
        if failure := resource_limit_failure(error):
            raise failure from error
        raise DamagedCheckpointError(f"{name}: {os.strerror(error.errno or errno.EIO)}") from error


def refuse_changed_file(name: str, expected: FileEntry, actual: FileEntry) -> None:
    """Raise DamagedCheckpointError, with the file's name, unless both entries are equal."""
    if expected.size != actual.size:
        raise DamagedCheckpointError(f"{name} has {actual.size} bytes, not {expected.size}")
    if expected.sha256 != actual.sha256:
        raise DamagedCheckpointError(f"{name} does not match its hash")


def _hash_manifest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _newer_format_hint(content: Any) -> str:
    """A hint for a manifest with a wrong hash and another format version."""
    version = content.get("format") if isinstance(content, dict) else None
    return "" if version == FORMAT_VERSION else f" (it claims format {version}; this version reads {FORMAT_VERSION})"


def _refuse_paths(files: Mapping[str, Any]) -> None:
    for name in files:
        if not is_plain_name(name) or name == FILE_NAME:
            raise _security_failure(f"a checkpoint's manifest names {name!r}, which is not a plain file name")


def _security_failure(what: str) -> Failure:
    return Failure(what, fix="delete this checkpoint: this project does not write such files", code=ExitCode.SECURITY)
