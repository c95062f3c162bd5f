"""A verified archive becomes the files that torchvision reads, each of them whole or not there."""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from entrypoint import ExitCode, Failure
from train.fetching.archives import CHUNK, Archive, File
from train.files import durable

TEMPORARY = f"{durable.TEMPORARY}fetch-"


def unpack(archive: Archive, root: Path) -> None:
    """Put the files that `archive` holds in their places below `root`. Only they are read out of it, by name.

    Raises:
        Failure: DATA, where it does not hold them whole; SECURITY, where a name or a link in it leads elsewhere.
        OSError: where the disk refuses.
    """
    try:
        if archive.name.endswith(".tar.gz"):
            _untar(archive, root)
        else:
            _gunzip(archive, root)
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise _broken(archive, f"{type(error).__name__}: {error}") from error


def _untar(archive: Archive, root: Path) -> None:
    with tarfile.open(root / archive.path, "r:gz") as tar:
        members = {member.name: member for member in tar}
        _refuse_elsewhere(archive, members.values())
        for file in archive.files:
            member = members.get(file.path)
            source = tar.extractfile(member) if member and member.isreg() else None
            if source is None:
                raise _broken(archive, f"there is no file {file.path} in it")
            with source:
                _put(archive, file, source, root)


def _gunzip(archive: Archive, root: Path) -> None:
    (file,) = archive.files
    with gzip.open(root / archive.path) as source:
        _put(archive, file, source, root)


def _put(archive: Archive, file: File, source: IO[bytes] | gzip.GzipFile, root: Path) -> None:
    """Copy one file out, and let it appear if it is the published one."""
    digest, size = hashlib.md5(usedforsecurity=False), 0
    place = root / file.path
    place.parent.mkdir(parents=True, exist_ok=True)
    with appearing(place) as stream:
        while chunk := source.read(CHUNK):
            stream.write(chunk)
            digest.update(chunk)
            size += len(chunk)
        if file.md5 not in (None, digest.hexdigest()) or file.size not in (None, size):
            raise _broken(archive, f"{file.path} in it has {size} bytes and md5 {digest.hexdigest()}")


@contextmanager
def appearing(place: Path) -> Iterator[IO[bytes]]:
    """A stream whose file appears at `place` once the block has ended well, and is fsynced; else nothing is left.

    Raises:
        OSError: where the disk refuses.
    """
    temporary = place.with_name(f"{TEMPORARY}{place.name}-{os.urandom(4).hex()}")
    try:
        with temporary.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        durable.patiently(lambda: os.replace(temporary, place))
        durable.sync(place.parent)
    finally:
        durable.remove(temporary)


def sweep(archive: Archive, root: Path) -> None:
    """Remove what killed processes left of `archive` and its files. Call it only where no other process is at work."""
    for place in (archive.path, *(file.path for file in archive.files)):
        for left in (root / place).parent.glob(f"{TEMPORARY}{(root / place).name}-*"):
            durable.remove(left)


def _refuse_elsewhere(archive: Archive, members: Iterable[tarfile.TarInfo]) -> None:
    """What `tarfile.data_filter` would refuse, and all links and devices: a data set has none."""
    for member in members:
        path = PurePosixPath(member.name)
        if not (member.isreg() or member.isdir()) or path.is_absolute() or ".." in path.parts:
            raise Failure(
                f"{archive.name} holds an entry that leads out of its folder, or is no plain file",
                found=member.name + (f" -> {member.linkname}" if member.linkname else ""),
                expected="plain files and folders",
                fix="remove this file, and fetch the published one",
                code=ExitCode.SECURITY,
            )


def _broken(archive: Archive, found: str) -> Failure:
    return Failure(
        f"{archive.name} cannot be unpacked",
        found=found,
        expected="the published files",
        fix=f"remove {archive.name} below data.root, and start again: it is fetched anew",
        code=ExitCode.DATA,
    )
