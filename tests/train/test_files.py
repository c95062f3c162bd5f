"""Files appear whole or not at all, and what the operating system refuses has a code and a fix."""

from __future__ import annotations

import errno
import fcntl
import json
import mmap
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from calls import fail, intercepted
from disks import fill, mounted

from entrypoint import ExitCode, Failure, file_writer
from train import files
from train.config.schema import DataConfig
from train.data import registry
from train.files import one_line, shorten_name

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


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_writer, "RETRY_PAUSE_S", 0.0)


def test_a_written_file_holds_what_was_given(tmp_path: Path) -> None:
    files.write_atomic(tmp_path / "a", b"\0one\n")
    files.write_atomic(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"two"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_json_is_written_for_people(tmp_path: Path) -> None:
    files.write_json(tmp_path / "a.json", {"name": "Zoë"})
    assert (tmp_path / "a.json").read_text() == '{\n  "name": "Zoë"\n}\n'


def test_a_path_of_bytes_that_are_no_text_is_written_too(tmp_path: Path) -> None:
    files.write_json(tmp_path / "a.json", {"found": "caf\udce9.png"})
    assert json.loads((tmp_path / "a.json").read_bytes()) == {"found": "caf\udce9.png"}


def test_a_file_and_its_name_are_fsynced_before_and_after_the_rename(tmp_path: Path) -> None:
    with intercepted(lambda *_: None) as made:
        files.write_atomic(tmp_path / "a", b"new")
    assert [name for name in made if name in ("write", "fsync", "rename")] == ["write", "fsync", "rename", "fsync"]


@pytest.mark.parametrize("call", ["open", "write", "fsync", "close", "rename"])
def test_a_refused_write_keeps_the_old_file_and_leaves_nothing_else(tmp_path: Path, call: str) -> None:
    files.write_atomic(tmp_path / "a", b"old")
    with intercepted(fail(1, errno.ENOSPC, name=call)), pytest.raises(Failure):
        files.write_atomic(tmp_path / "a", b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"old"}


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO])
def test_a_file_server_may_refuse_a_rename_twice(tmp_path: Path, number: int) -> None:
    with intercepted(fail(1, number, name="rename", times=2)):
        files.write_atomic(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"


def test_a_file_server_may_not_refuse_a_rename_three_times(tmp_path: Path) -> None:
    with intercepted(fail(1, errno.ESTALE, name="rename", times=3)), pytest.raises(Failure, match="cannot write"):
        files.write_atomic(tmp_path / "a", b"new")


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_mount_that_cannot_fsync_a_folder_is_accepted(tmp_path: Path, number: int) -> None:
    with intercepted(fail(2, number, name="fsync")):
        files.write_atomic(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"


def test_a_read_only_disk_is_an_unusable_output(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "ro") as disk, pytest.raises(Failure) as caught:
        files.prepare_folder(disk / "runs")
    assert caught.value.code == ExitCode.OUTPUT
    assert "Read-only file system" in str(caught.value.found)


def test_a_file_is_not_created_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="exists"):
        files.create_file(tmp_path / "link", b"new")
    assert not (tmp_path / "elsewhere").exists()


def test_a_link_is_replaced_and_what_it_points_to_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"theirs")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    files.write_atomic(tmp_path / "link", b"ours")
    assert (tmp_path / "elsewhere").read_bytes() == b"theirs"
    assert not (tmp_path / "link").is_symlink()


def test_what_killed_writers_left_is_swept(tmp_path: Path) -> None:
    (tmp_path / ".tmp-a").write_bytes(b"half")
    (tmp_path / ".tmp-folder").mkdir()
    (tmp_path / ".tmp-folder" / "b").write_bytes(b"half")
    (tmp_path / "kept").write_bytes(b"whole")
    assert files.remove_temporary_files(tmp_path) == [".tmp-a", ".tmp-folder"]
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_the_next_writer_removes_what_a_killed_one_left_an_hour_ago(tmp_path: Path) -> None:
    old, new = (file_writer.temporary_path(tmp_path / "a") for _ in range(2))
    for path in (old, new, other := file_writer.temporary_path(tmp_path / "b")):
        path.write_bytes(b"half")
    for path in (old, other):
        os.utime(path, (0, 0))
    files.write_atomic(tmp_path / "a", b"new")
    assert {path.name for path in tmp_path.iterdir()} == {"a", new.name, other.name}


def test_sweeping_does_not_follow_links(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "file").write_bytes(b"theirs")
    (tmp_path / ".tmp-link").symlink_to(tmp_path / "theirs")
    files.remove_temporary_files(tmp_path)
    assert (tmp_path / "theirs" / "file").exists()


def test_a_folder_is_made_and_shown_to_be_writable(tmp_path: Path) -> None:
    files.prepare_folder(tmp_path / "a" / "b")
    assert os.listdir(tmp_path / "a" / "b") == []


def test_a_file_in_the_place_of_the_folder_is_an_unusable_output(tmp_path: Path) -> None:
    (tmp_path / "runs").write_bytes(b"")
    with pytest.raises(Failure) as caught:
        files.prepare_folder(tmp_path / "runs" / "quickstart")
    assert caught.value.code == ExitCode.OUTPUT


def test_too_little_space_is_told_before_it_is_used(tmp_path: Path) -> None:
    with pytest.raises(Failure) as caught:
        files.prepare_folder(tmp_path, need=1 << 60)
    assert caught.value.code == ExitCode.IO
    assert caught.value.expected == "1152921504606.8 MB free"


def memory_of(size: int, offset: int = 0) -> memoryview:
    """`size` bytes that repeat only after 251, from `offset` bytes after the start of a page."""
    memory = memoryview(mmap.mmap(-1, size + offset))[offset:]
    memory[:] = (bytes(range(251)) * (size // 251 + 1))[:size]
    return memory


@pytest.mark.parametrize("offset", [0, 8, 512])
@pytest.mark.parametrize(
    "size",
    [
        files.MIN_DIRECT_BYTES - 1,
        files.MIN_DIRECT_BYTES,
        files.MIN_DIRECT_BYTES + 1,
        files.DIRECT_CHUNK_BYTES + files.DIRECT_BLOCK_BYTES + 7,
    ],
)
def test_a_file_of_any_size_from_any_address_has_the_given_content(tmp_path: Path, size: int, offset: int) -> None:
    data = memory_of(size, offset)
    files.create_file(tmp_path / "a", data)
    assert (tmp_path / "a").read_bytes() == data


def test_complete_blocks_are_written_with_o_direct_and_the_rest_without(tmp_path: Path) -> None:
    data, writes = memory_of(files.MIN_DIRECT_BYTES + 7), []

    def record(_: int, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "write":
            writes.append((bool(fcntl.fcntl(arguments[0], fcntl.F_GETFL) & os.O_DIRECT), len(arguments[1])))

    with intercepted(record):
        files.create_file(tmp_path / "a", data)
    assert writes == [(True, files.MIN_DIRECT_BYTES), (False, 7)]


@pytest.mark.parametrize("error", sorted(files.DIRECT_UNSUPPORTED_ERRNOS), ids=errno.errorcode.get)
def test_without_o_direct_the_file_is_written_as_usual(tmp_path: Path, error: int) -> None:
    data = memory_of(files.DIRECT_CHUNK_BYTES * 2)
    with intercepted(fail(2, error, name="write")):
        files.create_file(tmp_path / "a", data)
    assert (tmp_path / "a").read_bytes() == data


def test_a_full_disk_raises_its_error(tmp_path: Path) -> None:
    with intercepted(fail(2, errno.ENOSPC, name="write")), pytest.raises(OSError, match="No space left"):
        files.create_file(tmp_path / "a", memory_of(files.DIRECT_CHUNK_BYTES * 2))


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


def test_a_file_of_json_gives_its_value(tmp_path: Path) -> None:
    (tmp_path / "a").write_text('{"step": 3}')
    assert files.read_json(tmp_path / "a") == {"step": 3}


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "9" * 5000, '"\xff'])
def test_what_is_no_json_is_a_value_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "a").write_text(text, "latin-1")
    with pytest.raises(ValueError):
        files.read_json(tmp_path / "a")


def test_nobody_waits_for_the_other_end_of_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a")
    with pytest.raises(OSError, match="not a regular file"):
        files.read_json(tmp_path / "a")


@pytest.mark.parametrize("location", ["/dev/zero", ".", "nowhere", "a"])
def test_a_link_to_what_is_no_file_is_refused(tmp_path: Path, location: str) -> None:
    (tmp_path / "a").symlink_to(location)
    with pytest.raises(OSError):
        files.read_json(tmp_path / "a")


def test_reading_a_short_file_takes_little_memory(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"short")
    tracemalloc.start()
    try:
        files.read_regular_file(tmp_path / "a")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_a_file_that_is_too_long_is_not_read_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 11)
    with pytest.raises(OSError, match="longer than 10 bytes"):
        files.read_regular_file(tmp_path / "a", limit=10)


def test_the_caller_s_word_counts_before_the_home(tmp_path: Path) -> None:
    assert files.cache_folder({"XDG_CACHE_HOME": "/c", "HOME": str(tmp_path)}) == Path("/c/train-image")
    assert files.cache_folder({"HOME": str(tmp_path)}) == tmp_path / ".cache/train-image"


def test_without_a_home_there_is_none() -> None:
    assert files.cache_folder({"HOME": "/nonexistent"}) is None
    assert files.cache_folder({}) is None


def test_a_private_folder_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    folder = files.private_cache_folder({"XDG_CACHE_HOME": str(tmp_path)}, "compiled")
    assert folder == tmp_path / "train-image/compiled"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert files.private_cache_folder({"XDG_CACHE_HOME": str(tmp_path)}, "compiled") == folder


def test_a_folder_that_others_can_write_is_not_trusted(tmp_path: Path) -> None:
    folder = tmp_path / "train-image/compiled"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert files.private_cache_folder({"XDG_CACHE_HOME": str(tmp_path)}, "compiled") is None


def test_a_link_or_a_file_in_its_place_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "train-image").mkdir()
    (tmp_path / "train-image/compiled").symlink_to(tmp_path)
    (tmp_path / "train-image/other").write_text("")
    assert files.private_cache_folder({"XDG_CACHE_HOME": str(tmp_path)}, "compiled") is None
    assert files.private_cache_folder({"XDG_CACHE_HOME": str(tmp_path)}, "other") is None


@pytest.mark.parametrize("name", ["a\nb", "a\tb", "a\r\nb", "\x1b[31mred", "\u2028", "\x85", "\u202egnp.exe", "\udcff"])
def test_what_ends_a_line_or_is_obeyed_by_a_terminal_is_written_as_python_does(name: str) -> None:
    assert one_line(name).isprintable()
    assert one_line(name).encode().decode("unicode_escape").encode(errors="surrogatepass") == name.encode(
        errors="surrogatepass"
    )


def test_umlauts_stay_as_they_are_and_what_is_escaped_can_be_told_apart() -> None:
    assert one_line("Äpfel 苹果") == "Äpfel 苹果"
    assert one_line("a\n") != one_line("a\\n")


def test_a_long_name_is_shown_by_its_beginning_and_a_name_that_fits_whole() -> None:
    assert shorten_name("a" * 6, 6) == "a" * 6
    assert shorten_name("a" * 7, 6) == "aaaaa…"
    assert shorten_name("a\nb", 3) == "a\\nb"


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
