"""Where what is dear to make again is kept."""

from __future__ import annotations

from pathlib import Path

from train.files import caches


def test_the_caller_s_word_counts_before_the_home(tmp_path: Path) -> None:
    assert caches.folder({"XDG_CACHE_HOME": "/c", "HOME": str(tmp_path)}) == Path("/c/train-image")
    assert caches.folder({"HOME": str(tmp_path)}) == tmp_path / ".cache/train-image"


def test_without_a_home_there_is_none() -> None:
    assert caches.folder({"HOME": "/nonexistent"}) is None
    assert caches.folder({}) is None
