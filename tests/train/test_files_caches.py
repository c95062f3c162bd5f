"""Where what is dear to make again is kept."""

from __future__ import annotations

from pathlib import Path

from train import files


def test_the_caller_s_word_counts_before_the_home(tmp_path: Path) -> None:
    assert files.cache_folder({"XDG_CACHE_HOME": "/c", "HOME": str(tmp_path)}) == Path("/c/train-image")
    assert files.cache_folder({"HOME": str(tmp_path)}) == tmp_path / ".cache/train-image"


def test_without_a_home_there_is_none() -> None:
    assert files.cache_folder({"HOME": "/nonexistent"}) is None
    assert files.cache_folder({}) is None


def test_a_private_folder_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    found = files.private_cache_folder({"XDG_CACHE_HOME": str(tmp_path)}, "compiled")
    assert found == tmp_path / "train-image/compiled"
    assert found.stat().st_mode & 0o777 == 0o700
    assert files.private_cache_folder({"XDG_CACHE_HOME": str(tmp_path)}, "compiled") == found


def test_a_folder_that_others_can_write_is_not_trusted(tmp_path: Path) -> None:
    place = tmp_path / "train-image/compiled"
    place.mkdir(parents=True)
    place.chmod(0o777)
    assert files.private_cache_folder({"XDG_CACHE_HOME": str(tmp_path)}, "compiled") is None


def test_a_link_or_a_file_in_its_place_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "train-image").mkdir()
    (tmp_path / "train-image/compiled").symlink_to(tmp_path)
    (tmp_path / "train-image/other").write_text("")
    assert files.private_cache_folder({"XDG_CACHE_HOME": str(tmp_path)}, "compiled") is None
    assert files.private_cache_folder({"XDG_CACHE_HOME": str(tmp_path)}, "other") is None
