"""What a run writes stays in its folder: a link in it is refused, one that leads to it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from entrypoint import ExitCode, Failure
from train.run import folder

LINKS = (
    *("checkpoints", "errors", "logs", "report", "tensorboard", "trackers"),
    *("metrics.jsonl", "config.yaml", "run.json", "best.json", "confusion.json", "confusion-best.json"),
    *(".lease.1", "before-1"),
    *("logs/rank-0000.log", "errors/exit.json", "checkpoints/step-00000010", "tensorboard/events.out.tfevents.000000"),
)


@pytest.mark.parametrize("name", LINKS)
def test_a_link_where_a_run_writes_is_refused_by_name(tmp_path: Path, name: str) -> None:
    link = tmp_path / "run" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Failure) as caught:
        folder.refuse_symlinks(tmp_path / "run")
    assert caught.value.code == ExitCode.SECURITY
    assert caught.value.found == f"{link} -> {tmp_path / 'elsewhere'}"


def test_the_way_to_the_run_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "scratch" / "run" / "logs").mkdir(parents=True)
    (tmp_path / "runs").symlink_to("scratch")
    (tmp_path / "one").symlink_to("scratch/run")
    folder.refuse_symlinks(tmp_path / "runs" / "run")
    folder.refuse_symlinks(tmp_path / "one")


def test_a_users_own_link_beside_the_results_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to("/somewhere")
    folder.refuse_symlinks(tmp_path)


@pytest.mark.parametrize("name", ["none", "file"])
def test_a_folder_that_is_not_there_holds_no_links(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    folder.refuse_symlinks(tmp_path / name)
