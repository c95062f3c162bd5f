"""Which image files the words of a command line mean."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from images import write_image

from entrypoint import Failure
from train.cli import predict


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name in ("b.png", "a.JPG", "deep/er/c.png"):
        write_image(tmp_path / "photos" / name)
    (tmp_path / "photos" / "notes.txt").write_text("no image")
    return tmp_path / "photos"


def names(*words: Path) -> list[str]:
    return [path.name for path in predict.find_images([str(word) for word in words])]


def test_a_folder_is_all_images_in_it_and_below(photos: Path) -> None:
    assert names(photos) == ["a.JPG", "b.png", "c.png"]


def test_hidden_images_are_taken_where_they_are_named(photos: Path) -> None:
    copy, strange = (write_image(photos / name) for name in (".checkpoints/b.png", "._b.png"))
    assert names(photos) == ["a.JPG", "b.png", "c.png"]
    assert names(copy.parent, strange) == ["b.png", "._b.png"]


def test_a_file_is_taken_whatever_its_name_in_the_order_of_the_words(photos: Path) -> None:
    assert names(photos / "notes.txt", photos / "b.png", photos / "b.png") == ["notes.txt", "b.png", "b.png"]


def test_a_name_with_bytes_that_are_no_text_is_found(tmp_path: Path) -> None:
    write_image(tmp_path / "x.png").rename(os.fsdecode(os.fsencode(tmp_path) + b"/odd\xff.png"))
    assert [os.fsencode(path.name) for path in predict.find_images([str(tmp_path)])] == [b"odd\xff.png"]


def test_no_word_is_a_wrong_use() -> None:
    with pytest.raises(Failure, match="no image to look at") as caught:
        predict.find_images([])
    assert caught.value.code == 64


def nothing(place: Path) -> None: ...
def empty(place: Path) -> None: place.mkdir()  # fmt: skip


def without_images(place: Path) -> None: (empty(place), (place / "a.txt").write_text("a"))  # fmt: skip


def dead_link(place: Path) -> None: place.symlink_to("gone")  # fmt: skip


def circle(place: Path) -> None: (empty(place), (place / "again").symlink_to(place))  # fmt: skip


@pytest.mark.parametrize("make", [nothing, empty, without_images, dead_link, circle])
def test_what_leads_to_no_image_is_missing(make: object, tmp_path: Path) -> None:
    make(tmp_path / "place")  # type: ignore[operator]
    with pytest.raises(Failure) as caught:
        predict.find_images([str(tmp_path / "place")])
    assert caught.value.code == 66
    assert "place" in str(caught.value)


def test_settings_are_told_from_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data.root=x").touch()
    words = ["a.png", "data.root=x", "data.root=y", "a=b.png"]
    assert predict.split_images_and_settings(words) == (["a.png", "data.root=x", "a=b.png"], ["data.root=y"])
