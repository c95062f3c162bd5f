"""Files appear whole or not at all, and refusals have a code and a fix."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from calls import fail, intercepted
from disks import mounted

from entrypoint import ExitCode, Failure, file_writer
from train import files


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_writer, "RETRY_PAUSE_S", 0.0)


def test_a_written_file_holds_what_was_given(tmp_path: Path) -> None:
    files.write_atomic(tmp_path / "a", b"\0one\n")
    files.write_atomic(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"two"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_json_is_written_for_people(tmp_path: Path) -> None:
    files.write_json(tmp_path / "a.json", {"name": "Zoë"})
    assert (tmp_path / "a.json").read_text() == '{\n  "name": "Zoë"\n}\n'


def test_a_path_of_bytes_that_are_no_text_is_written_too(tmp_path: Path) -> None:
    files.write_json(tmp_path / "a.json", {"found": "caf\udce9.png"})
    assert json.loads((tmp_path / "a.json").read_bytes()) == {"found": "caf\udce9.png"}


def test_a_file_and_its_name_are_fsynced_before_and_after_the_rename(tmp_path: Path) -> None:
    with intercepted(lambda *_: None) as made:
        files.write_atomic(tmp_path / "a", b"new")
    assert [name for name in made if name in ("write", "fsync", "rename")] == ["write", "fsync", "rename", "fsync"]


@pytest.mark.parametrize("call", ["open", "write", "fsync", "close", "rename"])
def test_a_refused_write_keeps_the_old_file_and_leaves_nothing_else(tmp_path: Path, call: str) -> None:
    files.write_atomic(tmp_path / "a", b"old")
    with intercepted(fail(1, errno.ENOSPC, name=call)), pytest.raises(Failure):
        files.write_atomic(tmp_path / "a", b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"old"}


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO])
def test_a_file_server_may_refuse_a_rename_twice(tmp_path: Path, number: int) -> None:
    with intercepted(fail(1, number, name="rename", times=2)):
        files.write_atomic(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"


def test_a_file_server_may_not_refuse_a_rename_three_times(tmp_path: Path) -> None:
    with intercepted(fail(1, errno.ESTALE, name="rename", times=3)), pytest.raises(Failure, match="cannot write"):
        files.write_atomic(tmp_path / "a", b"new")


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_mount_that_cannot_fsync_a_folder_is_accepted(tmp_path: Path, number: int) -> None:
    with intercepted(fail(2, number, name="fsync")):
        files.write_atomic(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"


def test_a_read_only_disk_is_an_unusable_output(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "ro") as disk, pytest.raises(Failure) as caught:
        files.prepare_folder(disk / "runs")
    assert caught.value.code == ExitCode.OUTPUT
    assert "Read-only file system" in str(caught.value.found)


def test_a_file_is_not_created_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="exists"):
        files.create_file(tmp_path / "link", b"new")
    assert not (tmp_path / "elsewhere").exists()


def test_a_link_is_replaced_and_what_it_points_to_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"theirs")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    files.write_atomic(tmp_path / "link", b"ours")
    assert (tmp_path / "elsewhere").read_bytes() == b"theirs"
    assert not (tmp_path / "link").is_symlink()


def test_what_killed_writers_left_is_swept(tmp_path: Path) -> None:
    (tmp_path / ".tmp-a").write_bytes(b"half")
    (tmp_path / ".tmp-folder").mkdir()
    (tmp_path / ".tmp-folder" / "b").write_bytes(b"half")
    (tmp_path / "kept").write_bytes(b"whole")
    assert files.remove_temporary_files(tmp_path) == [".tmp-a", ".tmp-folder"]
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_the_next_writer_removes_what_a_killed_one_left_an_hour_ago(tmp_path: Path) -> None:
    old, new = (file_writer.temporary_path(tmp_path / "a") for _ in range(2))
    for path in (old, new, other := file_writer.temporary_path(tmp_path / "b")):
        path.write_bytes(b"half")
    for path in (old, other):
        os.utime(path, (0, 0))
    files.write_atomic(tmp_path / "a", b"new")
    assert {path.name for path in tmp_path.iterdir()} == {"a", new.name, other.name}


def test_sweeping_does_not_follow_links(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "file").write_bytes(b"theirs")
    (tmp_path / ".tmp-link").symlink_to(tmp_path / "theirs")
    files.remove_temporary_files(tmp_path)
    assert (tmp_path / "theirs" / "file").exists()


def test_a_folder_is_made_and_shown_to_be_writable(tmp_path: Path) -> None:
    files.prepare_folder(tmp_path / "a" / "b")
    assert os.listdir(tmp_path / "a" / "b") == []


def test_a_file_in_the_place_of_the_folder_is_an_unusable_output(tmp_path: Path) -> None:
    (tmp_path / "runs").write_bytes(b"")
    with pytest.raises(Failure) as caught:
        files.prepare_folder(tmp_path / "runs" / "quickstart")
    assert caught.value.code == ExitCode.OUTPUT


def test_too_little_space_is_told_before_it_is_used(tmp_path: Path) -> None:
    with pytest.raises(Failure) as caught:
        files.prepare_folder(tmp_path, need=1 << 60)
    assert caught.value.code == ExitCode.IO
    assert caught.value.expected == "1152921504606.8 MB free"
