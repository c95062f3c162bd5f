"""How a run ended can be read by a batch script, and writing it never makes things worse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from disks import fill, mounted

from entrypoint import ExitCode, Failure
from train.run import exit_file
from train.run.exit_file import ExitRecord

FAILURE = Failure("the disk is full", fix="free space", found="0 MB", code=ExitCode.IO)

ENDLESS = '{"code": 1e999, "step": 1, "cause": ""}'


def test_the_ending_is_the_json_that_batch_scripts_read(tmp_path: Path) -> None:
    assert exit_file.write_exit(tmp_path, code=ExitCode.STOPPED, step=812, cause="SIGUSR1")
    found = json.loads((tmp_path / "errors" / "exit.json").read_text())
    assert found == {"code": 75, "step": 812, "cause": "SIGUSR1"}


def test_the_ending_comes_back(tmp_path: Path) -> None:
    exit_file.write_exit(tmp_path, code=0, step=None, cause="done")
    assert exit_file.read_exit(tmp_path) == ExitRecord(code=0, step=None, cause="done")


@pytest.mark.parametrize(
    "text", [None, "", "{", "[]", '{"code": 75}', '{"code": "x", "step": 1, "cause": ""}', ENDLESS]
)
def test_an_unreadable_ending_is_none(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "errors").mkdir()
        (tmp_path / "errors" / "exit.json").write_text(text)
    assert exit_file.read_exit(tmp_path) is None


def test_a_failure_is_kept_with_its_rank_and_host(tmp_path: Path) -> None:
    assert exit_file.write_rank_failure(tmp_path, FAILURE, rank=3, host="node02")
    found = json.loads((tmp_path / "errors" / "rank-0003.json").read_text())
    assert found == FAILURE.as_json() | {"rank": 3, "host": "node02"}


def test_a_full_disk_is_no_further_failure(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=64k") as disk:
        (disk / "errors").mkdir()
        fill(disk)
        assert not exit_file.write_exit(disk, code=74, step=3, cause="disk full")
        assert not exit_file.write_rank_failure(disk, FAILURE, rank=0, host="node01")


def test_a_folder_that_cannot_be_made_is_no_further_failure(tmp_path: Path) -> None:
    (tmp_path / "errors").write_text("")
    assert not exit_file.write_exit(tmp_path, code=74, step=3, cause="disk full")


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "errors").iterdir())


def test_rank_0_clears_the_ending_its_own_failure_and_those_of_ranks_that_are_no_more(tmp_path: Path) -> None:
    exit_file.write_exit(tmp_path, code=74, step=3, cause="disk full")
    for rank in range(4):
        exit_file.write_rank_failure(tmp_path, FAILURE, rank=rank, host="node01")
    exit_file.clear_rank(tmp_path, rank=0, world_size=2)
    assert files(tmp_path) == ["rank-0001.json"]


def test_another_rank_clears_its_own_failure_only(tmp_path: Path) -> None:
    exit_file.write_exit(tmp_path, code=74, step=3, cause="disk full")
    for rank in range(3):
        exit_file.write_rank_failure(tmp_path, FAILURE, rank=rank, host="node01")
    exit_file.clear_rank(tmp_path, rank=1, world_size=2)
    assert files(tmp_path) == ["exit.json", "rank-0000.json", "rank-0002.json"]


def test_clearing_a_new_run_is_nothing(tmp_path: Path) -> None:
    exit_file.clear_rank(tmp_path, rank=0, world_size=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("takes", "ahead"), [(0.2, 60), (8.0, 60), (25.0, 120), (100.0, 360)])
def test_a_note_of_a_stop_without_an_ending_says_how_much_earlier_to_ask(
    tmp_path: Path, takes: float, ahead: int
) -> None:
    assert exit_file.write_stopping(tmp_path, by="SIGUSR1", save_s=takes, clock=lambda: 5.0)
    said = exit_file.describe_unfinished_save(tmp_path)
    assert said is not None
    assert "asked to stop by SIGUSR1" in said
    assert f"a save may take {takes} s: set #SBATCH --signal=USR1@{ahead}," in said


def test_who_pressed_ctrl_c_twice_is_given_no_advice_about_schedulers(tmp_path: Path) -> None:
    exit_file.write_stopping(tmp_path, by="SIGINT", save_s=1.0)
    assert "SBATCH" not in (exit_file.describe_unfinished_save(tmp_path) or "SBATCH")


def test_an_ending_takes_the_note_away(tmp_path: Path) -> None:
    exit_file.write_stopping(tmp_path, by="SIGUSR1", save_s=1.0)
    exit_file.write_exit(tmp_path, code=75, step=3, cause="SIGUSR1")
    assert exit_file.describe_unfinished_save(tmp_path) is None


def test_the_note_is_said_once(tmp_path: Path) -> None:
    exit_file.write_stopping(tmp_path, by="SIGUSR1", save_s=1.0)
    exit_file.clear_rank(tmp_path, rank=0, world_size=1)
    assert exit_file.describe_unfinished_save(tmp_path) is None


STRANGE = ["", "{", "[]", '{"by": "x"}', '{"by": "x", "save_s": "y"}', '{"by": "x", "save_s": Infinity}']


@pytest.mark.parametrize("text", STRANGE)
def test_a_note_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "errors").mkdir()
    (tmp_path / "errors" / "stopping.json").write_text(text)
    assert exit_file.describe_unfinished_save(tmp_path) is None


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "errors").symlink_to(tmp_path / "elsewhere")
    assert not exit_file.write_exit(tmp_path / "run", code=69, step=3, cause="a rank is gone")
    assert list((tmp_path / "elsewhere").iterdir()) == []
