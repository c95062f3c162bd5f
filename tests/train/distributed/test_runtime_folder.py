"""Ranks on several nodes keep one folder, not one each."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from entrypoint import ExitCode, Failure
from train.distributed import runtime
from train.distributed.runtime import Runtime


@dataclass
class Second:
    """A stand-in for what the second of two ranks sees; the first one's folder is `first`."""

    first: Path
    cpu_group: object = "a group"
    is_main: bool = False

    def run_on_rank_zero(self, action: Callable[[], Any]) -> Any:
        return runtime._write_marker(self.first)

    def all_gather(self, value: Any) -> list[Any]:
        return [("node01", True), ("node02", value[1])]


def refuse(first: Path, second: Path) -> None:
    runtime.refuse_unshared_folder(cast(Runtime, Second(first)), second)


def test_one_folder_is_accepted(tmp_path: Path) -> None:
    refuse(tmp_path, tmp_path)


def test_a_folder_of_each_nodes_own_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "VISIBILITY_TIMEOUT_S", 0.0)
    with pytest.raises(Failure, match="not the same one on all nodes") as caught:
        refuse(tmp_path / "a", tmp_path / "b")
    assert caught.value.code == ExitCode.OUTPUT
    assert caught.value.found == f"what node01 writes in {tmp_path / 'b'} is not there on node02"


def test_a_stale_handle_of_nfs_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stale, stat = [OSError(errno.ESTALE, "Stale file handle")], os.stat

    def first_stale(path: Any, **options: Any) -> os.stat_result:
        if stale and "seen-" in str(path):
            raise stale.pop()
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", first_stale)
    refuse(tmp_path, tmp_path)
    assert not stale


def test_one_rank_asks_nothing(tmp_path: Path) -> None:
    alone = Second(tmp_path, cpu_group=None)
    runtime.refuse_unshared_folder(cast(Runtime, alone), tmp_path)
    assert list(tmp_path.iterdir()) == []
