"""Places that cannot be written, and those that can."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from entrypoint.doctor import paths
from entrypoint.doctor.context import CheckContext

STRANGER = 54_321  # no account has this uid


def as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("machine: mounts and other users need root")


def read_only(folder: Path, expression: str) -> str:
    """What an expression prints where `folder` is a file system that is mounted read-only."""
    as_root()
    code = f"from entrypoint.doctor import context, paths; from pathlib import Path; print({expression})"
    script = 'mount -t tmpfs -o ro none "$0" && exec "$1" -c "$2"'
    command = ["unshare", "--mount", "sh", "-c", script, str(folder), sys.executable, code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if "unshare" in done.stderr:
        pytest.skip(f"machine: {done.stderr.strip()}")
    return done.stdout + done.stderr


def test_a_good_home_is_ok(tmp_path: Path) -> None:
    (finding,) = paths.check_home({"HOME": str(tmp_path)})
    assert (finding.state, str(tmp_path) in finding.text) == ("ok", True)


def test_a_home_that_is_not_there_names_the_stand_in(tmp_path: Path) -> None:
    (finding,) = paths.check_home({"HOME": "/nonexistent", "TMPDIR": str(tmp_path)})
    assert (finding.state, str(tmp_path) in finding.text, "HOME" in finding.fix) == ("warn", True, True)


def test_a_tmpdir_that_is_not_there_is_told(tmp_path: Path) -> None:
    (finding,) = paths.check_home({"HOME": str(tmp_path), "TMPDIR": "/nonexistent"})
    assert (finding.state, "TMPDIR (/nonexistent)" in finding.text) == ("warn", True)


def test_no_place_for_temporary_files_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("entrypoint.environment.is_writable", lambda folder: False)
    (finding,) = paths.check_home({"HOME": str(tmp_path)})
    assert (finding.state, "TMPDIR" in finding.fix) == ("fail", True)


def test_a_chosen_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (finding,) = paths.check_caches({"TORCH_HOME": "/proc/nothing", "HF_HOME": str(tmp_path / "new")})
    assert (finding.state, "TORCH_HOME=/proc/nothing" in finding.text) == ("warn", True)
    assert "unset TORCH_HOME" in finding.fix


def test_a_uid_without_an_account_gets_a_name() -> None:
    finding = paths.check_user(STRANGER)
    assert (finding.state, "uid54321" in finding.text) == ("ok", True)


def test_an_output_folder_that_can_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    (finding,) = paths.check_output(CheckContext(environ={}, output=tmp_path / "runs"))
    assert str(tmp_path / "runs") in finding.text
    assert finding.state != "fail"
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_output_folder_is_a_failure_where_it_was_named(tmp_path: Path) -> None:
    expression = f"paths.check_output(context.CheckContext(environ={{}}, output=Path({str(tmp_path)!r})))[0]"
    text = read_only(tmp_path, expression)
    assert "state='fail'" in text
    assert "Read-only file system" in text


def test_a_read_only_default_folder_gives_way(tmp_path: Path) -> None:
    output = "paths.check_output(context.CheckContext(environ={}))[0]"
    expression = f"__import__('os').chdir({str(tmp_path)!r}) or {output}"
    text = read_only(tmp_path, expression)
    assert "state='warn'" in text
    assert "temporary folder" in text


def test_a_default_folder_that_is_a_link_to_nothing_does_not_give_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").symlink_to("/scratch/me/runs")
    (finding,) = paths.check_output(CheckContext(environ={}))
    assert (finding.state, str(tmp_path / "runs") in finding.text) == ("fail", True)


@pytest.mark.parametrize(("free_mib", "state"), [(10**5, "warn"), (64, "fail")])
def test_an_output_folder_that_ends_with_the_container_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_mib: int, state: str
) -> None:
    monkeypatch.setattr(paths, "is_ephemeral_path", lambda place, root: place == tmp_path)
    monkeypatch.setattr(paths, "read_free_space", lambda place: (free_mib, None))
    (finding,) = paths.check_output(CheckContext(environ={}, output=tmp_path / "runs"))
    assert (finding.state, "in the container" in finding.text, "mount" in finding.fix) == (state, True, True)


def test_a_folder_of_another_user_is_a_failure(tmp_path: Path) -> None:
    as_root()
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o755)
    # The user is changed late: another one may not be able to read this Python.
    code = f"import os; os.chdir({str(folder)!r}); os.setuid({STRANGER}); print(find_write_error(Path('.')))"
    command = [
        sys.executable,
        "-c",
        f"from entrypoint.doctor.paths import find_write_error; from pathlib import Path; {code}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "Permission denied" in done.stdout


def test_a_rename_that_is_refused_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(old: object, new: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "replace", refuse)
    assert paths.find_write_error(tmp_path) == "does not rename a file over another one: Operation not supported"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("free_mib", "inodes", "state"),
    [(50, 10**6, "fail"), (2048, 10**6, "warn"), (10**5, 7, "fail"), (10**5, None, "ok")],
)
def test_space_and_files_left_are_judged(tmp_path: Path, free_mib: int, inodes: int | None, state: str) -> None:
    finding = paths.free_space_finding(tmp_path, free_mib, inodes, "nfs4")
    assert (finding.state, "nfs4" in finding.text) == (state, True)


def test_a_full_file_system_is_seen_for_real(tmp_path: Path) -> None:
    as_root()
    code = (
        "from entrypoint.doctor import paths; from pathlib import Path; "
        f"print(paths.read_free_space(Path({str(tmp_path)!r})))"
    )
    script = 'mount -t tmpfs -o size=1m,nr_inodes=20 none "$0" && exec "$1" -c "$2"'
    command = ["unshare", "--mount", "sh", "-c", script, str(tmp_path), sys.executable, code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if "unshare" in done.stderr:
        pytest.skip(f"machine: {done.stderr.strip()}")
    assert done.stdout.strip() == "(1, 19)"
