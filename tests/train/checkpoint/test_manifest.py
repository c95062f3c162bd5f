"""A manifest tells a whole checkpoint from a damaged one, and names only plain files."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from entrypoint import ExitCode, Failure
from train.checkpoint import manifest
from train.checkpoint.manifest import DamagedCheckpointError, Manifest

GOOD = Manifest(format=1, step=30, torch="2.15.0", files={"model.safetensors": manifest.make_file_entry(b"weights")})


def sealed(inner: Any) -> bytes:
    """A manifest's file with any content and the right hash: what an attacker can make."""
    digest = hashlib.sha256(json.dumps(inner, sort_keys=True).encode()).hexdigest()
    return json.dumps({"manifest": inner, "sha256": digest}).encode()


def naming(name: str) -> bytes:
    files = {name: {"size": 1, "sha256": "0"}}
    return sealed({"format": 1, "step": 30, "torch": "2.15.0", "files": files})


def test_a_manifest_comes_back_as_it_was_written() -> None:
    assert manifest.from_bytes(manifest.to_bytes(GOOD)) == GOOD


def test_the_same_content_gives_the_same_bytes() -> None:
    assert manifest.to_bytes(GOOD) == manifest.to_bytes(manifest.from_bytes(manifest.to_bytes(GOOD)))


def test_every_single_bit_flip_is_noticed() -> None:
    data = manifest.to_bytes(GOOD)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            read = manifest.from_bytes(bytes(flipped))
        except DamagedCheckpointError:
            continue
        assert read == GOOD, f"bit {bit}"  # such as a space that became another


STRANGE = {
    "nothing": b"",
    "half of one": manifest.to_bytes(GOOD)[:50],
    "all but its end": manifest.to_bytes(GOOD)[:-2],
    "a list": b"[]",
    "a number": b"1",
    "not text": b"\xff\xfe",
    "deeply nested": b"[" * 100_000,
    "no files": sealed({"format": 1, "step": 1, "torch": "2"}),
    "files in a list": sealed({"format": 1, "step": 1, "torch": "2", "files": [{}]}),
    "an endless size": sealed({"format": 1, "step": 1, "torch": "2", "files": {"a": {"size": 1e999, "sha256": ""}}}),
    "an inner list": sealed([]),
}


@pytest.mark.parametrize("data", STRANGE.values(), ids=STRANGE.keys())
def test_what_is_not_a_manifest_is_damaged(data: bytes) -> None:
    with pytest.raises(DamagedCheckpointError):
        manifest.from_bytes(data)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/b", "..", ".", "", ".hidden", "a\0b", "manifest.json"])
def test_a_name_that_is_not_a_plain_file_is_a_security_refusal(name: str) -> None:
    with pytest.raises(Failure, match="not a plain file name") as caught:
        manifest.from_bytes(naming(name))
    assert caught.value.code == ExitCode.SECURITY


def test_a_manifest_edited_to_a_newer_format_says_so() -> None:
    edited = manifest.to_bytes(GOOD).replace(b'"format": 1', b'"format": 9')
    with pytest.raises(DamagedCheckpointError, match="claims format 9; this version reads 1"):
        manifest.from_bytes(edited)


def test_a_file_is_measured_as_it_was_meant(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"weights")
    assert manifest.hash_file(tmp_path, "a") == manifest.make_file_entry(b"weights")


def test_a_missing_file_is_damage_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(DamagedCheckpointError, match=r"model\.safetensors: No such file"):
        manifest.hash_file(tmp_path, "model.safetensors")


def test_a_file_longer_than_expected_is_not_read_whole(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    with pytest.raises(DamagedCheckpointError, match="longer than 4 bytes"):
        manifest.read_file(tmp_path, "a", limit=4)


def test_a_linked_file_is_a_security_refusal(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"theirs")
    (tmp_path / "a").symlink_to(tmp_path / "secret")
    with pytest.raises(Failure, match="symbolic link") as caught:
        manifest.read_file(tmp_path, "a", limit=99)
    assert caught.value.code == ExitCode.SECURITY


def test_a_linked_folder_is_a_security_refusal(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a").write_bytes(b"theirs")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(Failure, match="symbolic link"):
        manifest.read_file(tmp_path / "link", "a", limit=99)


def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a")
    with pytest.raises(Failure, match="not a regular file"):
        manifest.read_file(tmp_path, "a", limit=99)


@pytest.mark.parametrize(("data", "text"), [(b"weightS", "match its hash"), (b"weight", "has 6 bytes, not 7")])
def test_a_changed_file_is_named(data: bytes, text: str) -> None:
    with pytest.raises(DamagedCheckpointError, match=rf"model\.safetensors .*{text}"):
        manifest.refuse_changed_file(
            "model.safetensors", manifest.make_file_entry(b"weights"), manifest.make_file_entry(data)
        )


def test_a_name_that_is_too_long_for_any_disk_is_damage(tmp_path: Path) -> None:
    with pytest.raises(DamagedCheckpointError, match="File name too long"):
        manifest.read_file(tmp_path, "a" * 300, limit=99)
