"""A file that the user names on the command line is checked before the work, and written whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from entrypoint import ExitCode, Failure
from train import files
from train.config.schema import DataConfig
from train.data import registry


def test_a_new_file_and_an_older_table_may_be_written(tmp_path: Path) -> None:
    files.refuse_unusable_file(tmp_path / "new.csv", "--csv", ".csv")
    (tmp_path / "old.CSV").write_text("old")
    files.refuse_unusable_file(tmp_path / "old.CSV", "--csv", ".csv")


def test_an_image_taken_for_the_table_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"takes the name of a \.csv file") as caught:
        files.refuse_unusable_file(tmp_path / "cat.png", "--csv", ".csv")
    assert caught.value.code == ExitCode.USAGE
    assert "--csv cat.png.csv" in str(caught.value.fix)


def folder(path: Path) -> None:
    path.mkdir()


def link(path: Path) -> None:
    path.symlink_to("elsewhere")


@pytest.mark.parametrize("make", [folder, link, os.mkfifo])
def test_what_is_no_plain_file_is_not_replaced(tmp_path: Path, make: object) -> None:
    assert callable(make)
    make(tmp_path / "out.csv")
    with pytest.raises(Failure, match="cannot write") as caught:
        files.refuse_unusable_file(tmp_path / "out.csv", "--csv", ".csv")
    assert caught.value.code == ExitCode.OUTPUT


def test_a_folder_that_is_not_there_is_refused_with_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="cannot write") as caught:
        files.refuse_unusable_file(tmp_path / "none" / "out.csv", "--csv", ".csv")
    assert (caught.value.code, caught.value.fix) == (ExitCode.OUTPUT, f"mkdir -p {tmp_path / 'none'}")


def test_a_failed_write_keeps_the_older_table_and_names_the_option(tmp_path: Path) -> None:
    (tmp_path / "old.csv").write_text("old")
    name = f"{'x' * 252}.csv"  # one byte more than a name may have
    with pytest.raises(Failure) as caught:
        files.write_named_file(tmp_path / name, b"new", "--csv", ".csv")
    assert "--csv DIR/NAME.csv" in str(caught.value.fix)
    assert [path.name for path in tmp_path.iterdir()] == ["old.csv"]


def test_a_path_that_is_there_is_not_offered_instead_of_itself(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert files.did_you_mean(tmp_path / "run") == ""
    assert str(tmp_path / "run") in files.did_you_mean(tmp_path / "rum")


@pytest.mark.parametrize("name", ["folder", "table"])
def test_a_data_root_that_is_nearly_right_is_named_as_it_is_on_the_disk(tmp_path: Path, name: str) -> None:
    (tmp_path / "photos.csv").mkdir()
    with pytest.raises(Failure) as refused:
        registry.open_splits(DataConfig(name=name, root=str(tmp_path / "fotos.csv")))
    assert str(refused.value.fix).startswith(f"write {tmp_path}/photos.csv; or ")
