"""Archives become whole files, and an unpacking that fails leaves nothing."""

from __future__ import annotations

import errno
import gzip
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from calls import fail, intercepted
from publishing import tar_gz

from entrypoint import ExitCode, Failure, file_writer
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
    with pytest.raises((Failure, KeyboardInterrupt, SystemExit)), file_writer.replace_file(tmp_path / "a") as stream:  # noqa: PT012
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
