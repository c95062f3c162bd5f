"""A file appears complete or not at all, and neither through a link nor into another writer's file."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from processes import TIMEOUT_S

from entrypoint import file_writer
from entrypoint.exchange import _write_json
from entrypoint.file_writer import left_files, replace_file, temporary_path


def test_the_old_content_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with replace_file(tmp_path / "a") as stream:
        stream.write(b"new")
        stream.flush()
        assert (tmp_path / "a").read_bytes() == b"old"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"new"}


@pytest.mark.parametrize("ending", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a_writer_that_ends_early_leaves_nothing(tmp_path: Path, ending: type[BaseException]) -> None:
    with pytest.raises(ending), replace_file(tmp_path / "a") as stream:  # noqa: PT012
        stream.write(b"half")
        raise ending
    assert list(tmp_path.iterdir()) == []


def test_two_writers_of_one_name_do_not_meet(tmp_path: Path) -> None:
    with replace_file(tmp_path / "a") as first:
        with replace_file(tmp_path / "a") as second:
            first.write(b"1" * 10)
            second.write(b"2")
        assert (tmp_path / "a").read_bytes() == b"2"
    assert (tmp_path / "a").read_bytes() == b"1" * 10


def test_a_name_that_is_taken_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if somebody guesses the random name."""
    monkeypatch.setattr(file_writer.os, "urandom", lambda count: bytes(count))
    (tmp_path / "other").write_bytes(b"another user's")
    temporary_path(tmp_path / "a").symlink_to(tmp_path / "other")
    with pytest.raises(FileExistsError), replace_file(tmp_path / "a"):
        pass
    assert (tmp_path / "other").read_bytes() == b"another user's"


def test_the_umask_decides_who_may_read(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with replace_file(tmp_path / "a") as stream:
            stream.write(b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


@pytest.mark.parametrize("name", ["n" * 255, "ä" * 127, os.fsdecode(b"\xff" * 255), "a\nb"], ids=repr)
def test_a_name_as_long_as_the_system_allows_is_written(tmp_path: Path, name: str) -> None:
    with replace_file(tmp_path / name) as stream:
        stream.write(b"x")
    assert os.listdir(tmp_path) == [name]


def test_what_a_killed_writer_left_is_listed_by_its_name_and_age(tmp_path: Path) -> None:
    command = "import os; from pathlib import Path; from entrypoint.file_writer import replace_file\n"
    command += "with replace_file(Path('a' * 150)): os.kill(os.getpid(), 9)"
    killed = subprocess.run([sys.executable, "-c", command], cwd=tmp_path, timeout=TIMEOUT_S, check=False)
    (left,) = tmp_path.iterdir()
    (tmp_path / ".tmp-b-0123").touch()
    assert killed.returncode == -9
    assert left_files(tmp_path, ["a" * 150]) == [left]
    assert left_files(tmp_path, ["a" * 150], min_age_s=3600) == []
    os.utime(left, (0, 0))
    assert left_files(tmp_path, ["a" * 150], min_age_s=3600) == [left]
    assert left_files(tmp_path, ["a", "b-0"]) == []


def test_a_task_tells_its_host_through_no_link(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("another user's")
    for name in (f"task-0.{os.getpid()}.partial", ".tmp-task-0.json", "task-0.json"):
        (tmp_path / name).symlink_to(tmp_path / "other")
    _write_json(tmp_path / "task-0.json", {"host": "a"})
    assert ((tmp_path / "other").read_text(), (tmp_path / "task-0.json").read_text()) == (
        "another user's",
        '{"host": "a"}',
    )


def write_new(path: Path, content: bytes) -> None:
    with replace_file(path, replace=False) as stream:
        stream.write(content)


def test_a_transient_error_does_not_make_a_new_file_replace_that_of_another_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([OSError(errno.ESTALE, "stale"), FileExistsError(errno.EEXIST, "there")])

    def link(*_: object) -> None:
        raise next(answers)  # an NFS client whose cache does not show yet what the server has

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(FileExistsError):
        write_new(tmp_path / "exit.json", b"later")
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_links_still_keeps_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", link)
    write_new(tmp_path / "exit.json", b"first")
    with pytest.raises(PermissionError):
        write_new(tmp_path / "exit.json", b"later")
    assert (tmp_path / "exit.json").read_bytes() == b"first"
