"""What the operating system refuses has a code and a fix."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from calls import fail, intercepted
from disks import fill, mounted

from entrypoint import ExitCode, Failure
from train import files

CODES = {
    "disk full": (errno.ENOSPC, ExitCode.IO, "free space"),
    "quota": (errno.EDQUOT, ExitCode.IO, "quota"),
    "input/output error": (errno.EIO, ExitCode.IO, "dmesg"),
    "stale handle": (errno.ESTALE, ExitCode.IO, "dmesg"),
    "read-only": (errno.EROFS, ExitCode.OUTPUT, "run.output_dir"),
    "read-only since": (errno.EROFS, ExitCode.OUTPUT, "until now has failed: see dmesg"),
    "not allowed": (errno.EACCES, ExitCode.OUTPUT, "run.output_dir"),
    "through a link": (errno.ELOOP, ExitCode.SECURITY, "link"),
    "file too large": (errno.EFBIG, ExitCode.RESOURCE, "ulimit -f"),
    "too many files": (errno.EMFILE, ExitCode.RESOURCE, "ulimit -n"),
}


@pytest.mark.parametrize(("number", "code", "fix"), CODES.values(), ids=CODES.keys())
def test_a_refusal_has_its_code_and_names_a_fix(tmp_path: Path, number: int, code: ExitCode, fix: str) -> None:
    with intercepted(fail(1, number, name="write")), pytest.raises(Failure) as caught:
        files.write_atomic(tmp_path / "a", b"new")
    assert caught.value.code == code
    assert fix in caught.value.fix
    assert f"errno {number}, {errno.errorcode[number]}" in str(caught.value.found)


def test_a_full_disk_is_told_with_the_space_that_is_left(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=64k") as disk:
        files.write_atomic(disk / "a", b"old")
        fill(disk)
        with pytest.raises(Failure, match="cannot write") as caught:
            files.write_atomic(disk / "a", b"x" * 8192)
        assert (disk / "a").read_bytes() == b"old"
    assert caught.value.code == ExitCode.IO
    assert caught.value.found == "No space left on device (errno 28, ENOSPC); 0.0 kB free of 65.5 kB"


def test_a_path_that_is_not_there_is_told_with_the_space_around_it(tmp_path: Path) -> None:
    failure = files.os_error_failure(OSError(errno.EDQUOT, ""), tmp_path / "a" / "b")
    assert "MB free of" in str(failure.found)
    assert failure.what == f"cannot write {tmp_path / 'a' / 'b'}"


def test_an_error_without_a_number_is_an_input_output_error(tmp_path: Path) -> None:
    assert files.os_error_failure(OSError("odd"), tmp_path, "read").code == ExitCode.IO
