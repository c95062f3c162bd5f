"""What the file system is asked for an image: one open and one read, wherever a request takes milliseconds."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from entrypoint import Failure
from train.data import decode


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.jpg", quality=95)
    return tmp_path / "photo.jpg"


def box(height: int, width: int) -> tuple[int, int, int, int]:
    return 0, 0, height, width


def test_a_photo_that_is_cut_at_random_is_opened_once_and_read_at_once(
    photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, read, open_file = list[str](), os.read, os.open

    def count_read(handle: int, length: int) -> bytes:
        calls.append(f"read {length}")
        return read(handle, length)

    def count_open(path: Path, flags: int) -> int:
        calls.append("open")
        return open_file(path, flags)

    monkeypatch.setattr(decode.os, "read", count_read)
    monkeypatch.setattr(decode.os, "open", count_open)
    monkeypatch.setattr("builtins.open", lambda *_, **__: pytest.fail("opened again"))
    decode.decode_crop(photo, 32, 0, box)
    assert calls == ["open", f"read {photo.stat().st_size}"]


def test_a_file_that_is_read_in_parts_is_read_to_its_end(photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = os.read
    monkeypatch.setattr(decode.os, "read", lambda handle, length: read(handle, min(length, 1000)))
    assert decode.read_image(photo).data == photo.read_bytes()


@pytest.mark.timeout(30)
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.raises(Failure, match="no regular file") as caught:
        decode.decode_crop(tmp_path / "pipe.jpg", 32, 0, box)
    assert caught.value.code == 65


def test_a_file_that_is_gone_and_an_empty_one_are_said(tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").touch()
    for name, reason in (("gone.jpg", "it is gone"), ("empty.jpg", "an empty file")):
        with pytest.raises(Failure, match=reason):
            decode.decode_crop(tmp_path / name, 32, 0, box)
