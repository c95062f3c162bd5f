"""A save that fails anywhere leaves a valid checkpoint. Killed ones: tests/reliability/crashpoints.py."""

from __future__ import annotations

import errno
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from calls import fail, intercepted
from checkpoints import flip, hidden, saved, weight
from disks import fill, mounted

from entrypoint import ExitCode, Failure
from train.checkpoint import format


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE])
def test_an_error_in_any_system_call_of_a_save_leaves_a_valid_checkpoint(tmp_path: Path, number: int) -> None:
    for call in count(1):
        folder = tmp_path / str(call)
        saved(folder, 10)
        with intercepted(fail(call, number)) as made:
            failure = caught(lambda folder=folder: saved(folder, 20, keep=1))
        if len(made) < call:
            break
        assert weight(folder) in ([(20, 20.0)] if failure is None else [(10, 10.0), (20, 20.0)])
        assert failure is None or (failure.code, failure.kept) == (ExitCode.IO, str(folder / "step-00000010"))
        format.prepare_folder(folder)
        assert hidden(folder) == []
    assert call > 20


def caught(action: Callable[[], Any]) -> Failure | None:
    try:
        action()
    except Failure as failure:
        return failure
    return None


# The first open only asks whether the step is there already.
@pytest.mark.parametrize(("call", "at"), [("mkdir", 1), ("open", 2), ("write", 1), ("fsync", 1), ("rename", 1)])
def test_a_save_that_fails_before_its_commit_leaves_no_trace(tmp_path: Path, call: str, at: int) -> None:
    saved(tmp_path, 10)
    with intercepted(fail(at, errno.ENOSPC, name=call)), pytest.raises(Failure):
        saved(tmp_path, 20)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010"]


def test_everything_is_on_the_disk_before_the_folder_gets_its_name_and_the_name_after(tmp_path: Path) -> None:
    order: list[str] = []

    def note(_: int, name: str, arguments: tuple[Any, ...]) -> None:
        order.extend([name] if name in ("write", "fsync", "rename") else [])

    with intercepted(note):
        saved(tmp_path, 10)
    files = ["write", "fsync"] * 3  # model, state, manifest
    assert order == [*files, "rename", "fsync", "rename", "fsync"]  # manifest and its folder, folder and its parent


def test_an_fsync_error_of_the_last_folder_is_told(tmp_path: Path) -> None:
    saved(tmp_path, 10)
    with intercepted(lambda *_: None) as made:
        saved(tmp_path, 20)
    with intercepted(fail(made.count("fsync"), errno.EIO, name="fsync")), pytest.raises(Failure) as told:
        saved(tmp_path, 30)
    assert told.value.code == ExitCode.IO


def test_a_file_server_that_renamed_but_lost_its_answer_is_believed_after_a_look(tmp_path: Path) -> None:
    folders = []

    def rename_then_fail(_: int, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "rename" and Path(arguments[0]).is_dir() and not folders:
            folders.append(Path(arguments[0]).replace(arguments[1]))
            raise OSError(errno.ESTALE, "stale")

    with intercepted(rename_then_fail):
        saved(tmp_path, 10)
    assert folders
    assert weight(tmp_path) == (10, 10.0)


def test_a_full_disk_keeps_the_last_checkpoint_and_names_it(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=256k") as disk:
        saved(disk / "checkpoints", 10)
        fill(disk, leave=8192)
        with pytest.raises(Failure) as told:
            saved(disk / "checkpoints", 20)
        assert weight(disk / "checkpoints") == (10, 10.0)
        assert hidden(disk) == []
    assert told.value.code == ExitCode.IO
    assert "No space left on device" in str(told.value.found)
    assert told.value.kept == str(disk / "checkpoints" / "step-00000010")


def test_a_save_that_does_not_fit_fails_before_it_writes_anything(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=256k") as disk:
        saved(disk / "checkpoints", 10)
        fill(disk)
        with intercepted(lambda *_: None) as made, pytest.raises(Failure, match="cannot write") as told:
            saved(disk / "checkpoints", 20)
    assert "mkdir" not in made
    assert told.value.expected == "0.1 kB free"


def test_a_failed_save_names_the_newest_checkpoint_that_is_valid(tmp_path: Path) -> None:
    saved(tmp_path, 10, 20)
    flip(tmp_path / "step-00000020" / "model.safetensors")
    with intercepted(fail(1, errno.ENOSPC, name="mkdir")), pytest.raises(Failure) as told:
        saved(tmp_path, 30)
    assert told.value.kept == str(tmp_path / "step-00000010")
