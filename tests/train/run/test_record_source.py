"""The commit and the image are found without git and without a container engine."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from train.run import record

ONE, TWO = "1" * 40, "2" * 40


def checkout(folder: Path, files: dict[str, str]) -> Path:
    """A project folder whose `.git` holds these files."""
    for name, text in files.items():
        path = folder / ".git" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return folder


CHECKOUTS = {
    "detached": {"HEAD": ONE},
    "a branch": {"HEAD": "ref: refs/heads/main", "refs/heads/main": ONE},
    "a packed branch": {
        "HEAD": "ref: refs/heads/a/b",
        "packed-refs": f"# pack-refs\n{TWO} refs/b\n{ONE} refs/heads/a/b",
    },
    "loose before packed": {
        "HEAD": "ref: refs/heads/main",
        "refs/heads/main": ONE,
        "packed-refs": f"{TWO} refs/heads/main",
    },
}


@pytest.mark.parametrize("files", CHECKOUTS.values(), ids=CHECKOUTS.keys())
def test_the_commit_is_read_from_the_files_of_git(tmp_path: Path, files: dict[str, str]) -> None:
    assert record.git_commit(checkout(tmp_path, files)) == ONE


NOTHING: dict[str, dict[str, str]] = {
    "no .git": {},
    "an empty repository": {"HEAD": "ref: refs/heads/main"},
    "nonsense": {"HEAD": "ref: refs/heads/main", "refs/heads/main": "hello"},
    "an unknown branch": {"HEAD": "ref: refs/heads/main", "packed-refs": f"{TWO} refs/heads/other"},
}


@pytest.mark.parametrize("files", NOTHING.values(), ids=NOTHING.keys())
def test_without_a_commit_there_is_none(tmp_path: Path, files: dict[str, str]) -> None:
    assert record.git_commit(checkout(tmp_path, files)) is None


def test_a_worktree_s_commit_is_that_of_its_own_branch(tmp_path: Path) -> None:
    shared = {"HEAD": "ref: refs/heads/main", "refs/heads/main": TWO, "refs/heads/side": ONE}
    own = {"worktrees/side/HEAD": "ref: refs/heads/side", "worktrees/side/commondir": "../.."}
    checkout(tmp_path / "main", shared | own)
    (tmp_path / "side").mkdir()
    (tmp_path / "side" / ".git").write_text("gitdir: ../main/.git/worktrees/side\n")
    assert record.git_commit(tmp_path / "side") == ONE


@pytest.mark.skipif(shutil.which("git") is None, reason="machine: no git")
def test_git_says_the_same(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()

    git("init")
    git("commit", "--allow-empty", "--message", "first")
    assert record.git_commit(tmp_path) == git("rev-parse", "HEAD")
    git("pack-refs", "--all")
    assert record.git_commit(tmp_path) == git("rev-parse", "HEAD")


def test_the_image_says_what_it_is_and_where_it_was_started_from(tmp_path: Path) -> None:
    (tmp_path / "image.json").write_text(json.dumps({"version": "1.0"}))
    environ = {"APPTAINER_CONTAINER": "/images/train.sif", "ENTRYPOINT_IMAGE_DIGEST": "sha256:ab"}
    expected = {"version": "1.0", "started_from": "/images/train.sif", "digest": "sha256:ab"}
    assert record.image_facts(environ, tmp_path / "image.json") == expected


def test_outside_an_image_there_is_none(tmp_path: Path) -> None:
    assert record.image_facts({}, tmp_path / "image.json") is None


@pytest.mark.parametrize("text", ["", "[1]", "{", "3", "\xff"])
def test_an_unreadable_image_file_is_passed_over(tmp_path: Path, text: str) -> None:
    (tmp_path / "image.json").write_text(text, encoding="latin-1")
    found = record.image_facts({"ENTRYPOINT_IMAGE": "train@sha256:ab"}, tmp_path / "image.json")
    assert found == {"started_from": "train@sha256:ab"}
