"""Archives become whole files, and nothing that is broken or leads elsewhere leaves a trace."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from calls import fail, intercepted
from publishing import tar_gz

from entrypoint import ExitCode, Failure
from train.data import download
from train.data.download import PublishedArchive, PublishedFile

INSIDE = {"d/one": b"1" * 3_000_000, "d/two": b"22"}


def md5(body: bytes) -> str:
    return hashlib.md5(body).hexdigest()


TAR = PublishedArchive(
    path="a.tar.gz",
    md5="",
    size=0,
    folders=(),
    files=tuple(PublishedFile(path=path, md5=md5(body)) for path, body in INSIDE.items()),
)
GZ = PublishedArchive(path="raw/a.gz", md5="", size=0, folders=(), files=(PublishedFile(path="raw/a", size=1000),))


def left(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def put(root: Path, archive: PublishedArchive, body: bytes) -> None:
    (root / archive.path).parent.mkdir(exist_ok=True)
    (root / archive.path).write_bytes(body)


def test_a_tar_gives_the_files_of_the_table_and_no_others(tmp_path: Path) -> None:
    body = tar_gz({**INSIDE, "d/readme.html": b"<p>"})
    put(tmp_path, TAR, body)
    download.unpack_archive(TAR, tmp_path)
    assert left(tmp_path) == {"a.tar.gz": body, **INSIDE}


def test_a_gz_gives_its_file(tmp_path: Path) -> None:
    body = gzip.compress(b"x" * 1000)
    put(tmp_path, GZ, body)
    download.unpack_archive(GZ, tmp_path)
    assert left(tmp_path) == {"raw/a.gz": body, "raw/a": b"x" * 1000}


def test_a_half_unpacked_folder_is_completed_and_the_users_own_files_in_it_stay(tmp_path: Path) -> None:
    put(tmp_path, TAR, tar_gz(INSIDE))
    (tmp_path / "d").mkdir()
    (tmp_path / "d/one").write_bytes(b"1")
    (tmp_path / "d/mine").write_bytes(b"mine")
    download.unpack_archive(TAR, tmp_path)
    assert {**INSIDE, "d/mine": b"mine"}.items() <= left(tmp_path).items()


def entry(name: str, kind: bytes, target: str = "") -> bytes:
    """INSIDE, and one entry more."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for path, body in INSIDE.items():
            member = tarfile.TarInfo(path)
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, target
        tar.addfile(member)
    return stream.getvalue()


ELSEWHERE = {
    "symbolic-link": entry("d/link", tarfile.SYMTYPE, "/etc/passwd"),
    "link-inside": entry("d/link", tarfile.SYMTYPE, "one"),
    "link-for-a-listed-file": entry("d/two", tarfile.SYMTYPE, "/etc/passwd"),
    "hard-link": entry("d/link", tarfile.LNKTYPE, "d/one"),
    "folder-link": entry("d", tarfile.SYMTYPE, "/tmp"),
    "absolute": entry("/tmp/file", tarfile.REGTYPE),
    "above": entry("../file", tarfile.REGTYPE),
    "above-inside": entry("d/../../file", tarfile.REGTYPE),
    "pipe": entry("d/pipe", tarfile.FIFOTYPE),
    "device": entry("d/device", tarfile.CHRTYPE),
    "disk": entry("d/disk", tarfile.BLKTYPE),
}


@pytest.mark.parametrize("body", ELSEWHERE.values(), ids=ELSEWHERE.keys())
def test_what_leads_elsewhere_is_refused_before_anything_is_unpacked(tmp_path: Path, body: bytes) -> None:
    put(tmp_path, TAR, body)
    with pytest.raises(Failure, match="leads out of its folder") as refused:
        download.unpack_archive(TAR, tmp_path)
    assert refused.value.code == ExitCode.SECURITY
    assert list(left(tmp_path)) == ["a.tar.gz"]


WHOLE = tar_gz(INSIDE)
BROKEN: dict[str, tuple[PublishedArchive, bytes]] = {
    "empty": (TAR, b""),
    "no-tar": (TAR, b"<html>"),
    "gz-of-no-tar": (TAR, gzip.compress(b"text")),
    "plain-tar": (TAR, gzip.decompress(WHOLE)),
    "half": (TAR, WHOLE[: len(WHOLE) // 2]),
    "changed-byte": (TAR, WHOLE[:200] + bytes([WHOLE[200] ^ 255]) + WHOLE[201:]),
    "file-missing": (TAR, tar_gz({"d/one": INSIDE["d/one"]})),
    "folder-for-a-file": (TAR, entry("d/two", tarfile.DIRTYPE)),
    "file-changed": (TAR, tar_gz({"d/one": b"else", "d/two": b"22"})),
    "in-another-folder": (TAR, tar_gz({f"e/{path}": body for path, body in INSIDE.items()})),
    "gz-empty": (GZ, b""),
    "gz-plain": (GZ, b"x" * 1000),
    "gz-half": (GZ, gzip.compress(bytes(range(250)) * 4)[:-20]),
    "gz-without-its-end": (GZ, gzip.compress(b"x" * 1000)[:-1]),
    "gz-wrong-sum": (GZ, gzip.compress(b"x" * 1000)[:-8] + bytes(8)),
    "gz-shorter": (GZ, gzip.compress(b"x" * 999)),
    "gz-longer": (GZ, gzip.compress(b"x" * 1001)),
}


@pytest.mark.parametrize(("archive", "body"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_archive_is_an_error_and_no_broken_file_is_left(
    tmp_path: Path, archive: PublishedArchive, body: bytes
) -> None:
    put(tmp_path, archive, body)
    with pytest.raises(Failure, match="cannot be unpacked") as refused:
        download.unpack_archive(archive, tmp_path)
    assert refused.value.code == ExitCode.DATA
    wanted = {archive.path: body, **INSIDE}
    assert left(tmp_path).items() <= wanted.items()


@pytest.mark.parametrize("call", ["fsync"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_what_the_disk_refuses_leaves_nothing(tmp_path: Path, call: str, number: int) -> None:
    put(tmp_path, GZ, body := gzip.compress(b"x" * 1000))
    with intercepted(fail(1, number, name=call)), pytest.raises(OSError):
        download.unpack_archive(GZ, tmp_path)
    assert left(tmp_path) == {"raw/a.gz": body}


@pytest.mark.parametrize("ending", [KeyboardInterrupt, SystemExit, Failure("stop", fix="", code=ExitCode.STOPPED)])
def test_an_interrupted_file_does_not_appear(
    tmp_path: Path, ending: BaseException | Callable[[], BaseException]
) -> None:
    (tmp_path / "a").write_bytes(b"before")
    with pytest.raises((Failure, KeyboardInterrupt, SystemExit)), download.write_atomically(tmp_path / "a") as stream:  # noqa: PT012
        stream.write(b"half")
        raise ending  # type: ignore[misc]
    assert left(tmp_path) == {"a": b"before"}


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    put(tmp_path, TAR, b"")
    (tmp_path / "d").mkdir()
    others = [".tmp-fetch-b.tar.gz-0123", ".tmp-a.tar.gz-0123", "a.tar.gz.part", "d/one"]
    for name in (".tmp-fetch-a.tar.gz-0123", "d/.tmp-fetch-one-4567", *others):
        (tmp_path / name).touch()
    download.remove_partial_files(TAR, tmp_path)
    assert set(left(tmp_path)) == {"a.tar.gz", *others}


def test_nothing_is_swept_where_nothing_is(tmp_path: Path) -> None:
    download.remove_partial_files(GZ, tmp_path)
    download.remove_partial_files(GZ, tmp_path / "none")
