"""A data set is fetched once and whole, or not at all, and the message says what to do."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import servers
from disks import mounted
from publishing import everything, left, stand_in
from servers import Behaviour, serving

from entrypoint import ExitCode, Failure
from train import file_lock
from train.config.schema import DataConfig
from train.data import download
from train.data.download import StatusLine

NAMES = ("cifar10", "cifar100", "mnist", "fashion_mnist")
MADE = {name: stand_in(name) for name in NAMES}
CIFAR, CIFAR_FILES = MADE["cifar10"]
(TAR,) = CIFAR


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "PUBLISHED_ARCHIVES", {name: table for name, (table, _) in MADE.items()})
    monkeypatch.setattr(file_lock, "POLL_S", 0.001)
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


def ensure(root: Path, name: str = "cifar10", mirror: str | None = None) -> str:
    """What was told."""
    stream = io.StringIO()
    download.ensure_downloaded(DataConfig(name=name, root=str(root), mirror=mirror), StatusLine(stream))
    return stream.getvalue()


def refused(root: Path, name: str = "cifar10", mirror: str | None = None) -> Failure:
    with pytest.raises(Failure) as caught:
        ensure(root, name, mirror)
    return caught.value


@pytest.mark.parametrize("name", NAMES)
def test_each_file_is_asked_for_once_and_nothing_else_is_left(root: Path, name: str) -> None:
    table, files = MADE[name]
    with serving(files, servers.whole) as server:
        ensure(root, name, server.url)
        ensure(root, name, server.url)
    assert server.asked == [f"/pub/{archive.name}" for archive in table]
    assert left(root) == everything(table)


def test_what_is_there_needs_no_network_no_writing_and_no_word(root: Path) -> None:
    with serving(CIFAR_FILES, servers.whole) as server:
        ensure(root, mirror=server.url)
    (root / TAR.path).unlink()
    before = root.stat().st_mtime_ns
    assert ensure(root, mirror="http://127.0.0.1:9") == ""
    assert root.stat().st_mtime_ns == before


@pytest.mark.parametrize("name", NAMES)
def test_a_file_put_there_by_hand_is_verified_and_unpacked_without_a_network(root: Path, name: str) -> None:
    table, files = MADE[name]
    for archive in table:
        (root / archive.path).parent.mkdir(parents=True, exist_ok=True)
        (root / archive.path).write_bytes(files[archive.name])
    assert "verified" in ensure(root, name)
    assert left(root) == everything(table)


def test_a_wrong_file_put_there_by_hand_is_named_and_fetched(root: Path) -> None:
    root.mkdir()
    (root / TAR.path).write_bytes(b"half")
    with serving(CIFAR_FILES, servers.whole) as server:
        assert "is there, but with md5" in ensure(root, mirror=server.url)
    assert left(root) == everything(CIFAR)


def test_without_a_network_a_wrong_file_put_there_by_hand_stays(root: Path) -> None:
    root.mkdir()
    (root / TAR.path).write_bytes(b"half")
    assert refused(root).code == ExitCode.NO_INPUT
    assert (root / TAR.path).read_bytes() == b"half"


def test_a_damaged_file_is_unpacked_again_without_a_network(root: Path) -> None:
    with serving(CIFAR_FILES, servers.whole) as server:
        ensure(root, mirror=server.url)
    (root / TAR.files[2].path).write_bytes(b"half")
    (root / TAR.files[3].path).unlink()
    ensure(root)
    assert left(root) == everything(CIFAR)


def test_without_a_network_the_message_says_what_to_type_where_there_is_one(root: Path) -> None:
    assert f"`train data fetch data.name=mnist data.root={root.absolute()}`" in refused(root, "mnist").fix


def test_without_a_network_the_message_says_which_files_to_put_where(root: Path) -> None:
    told = refused(root, "mnist")
    assert told.code == ExitCode.NO_INPUT
    for archive in download.PUBLISHED_ARCHIVES["mnist"]:
        assert f"{archive.name} (md5 {archive.md5}, from {archive.folders[0]}/{archive.name})" in told.fix
    assert f"into {root}/MNIST/raw and start again" in told.fix
    assert "Connection refused" in str(told.found)


BAD: dict[str, tuple[Behaviour, ExitCode]] = {
    "stops-half-way": (servers.stops_half_way, ExitCode.NO_INPUT),
    "stalls": (servers.stalls, ExitCode.NO_INPUT),
    "never-answers": (servers.never_answers, ExitCode.NO_INPUT),
    "closes-at-once": (servers.closes_at_once, ExitCode.NO_INPUT),
    "promises-more": (servers.promises_more, ExitCode.NO_INPUT),
    "error-500": (servers.server_error, ExitCode.NO_INPUT),
    "error-403": (servers.forbidden, ExitCode.NO_INPUT),
    "goes-in-circles": (servers.goes_in_circles, ExitCode.NO_INPUT),
    "promises-less": (servers.promises_less, ExitCode.DATA),
    "wrong-file": (servers.wrong_file, ExitCode.DATA),
    "login-page": (servers.login_page, ExitCode.DATA),
    "empty": (servers.nothing, ExitCode.DATA),
    "endless": (servers.endless, ExitCode.DATA),
}


@pytest.mark.parametrize(("behaviour", "code"), BAD.values(), ids=BAD.keys())
def test_a_bad_server_is_one_clear_error_and_nothing_half_is_accepted(
    root: Path, monkeypatch: pytest.MonkeyPatch, behaviour: Behaviour, code: ExitCode
) -> None:
    if behaviour in (servers.stalls, servers.never_answers):
        monkeypatch.setattr(download, "STALL_TIMEOUT_S", 0.2)
    with serving(CIFAR_FILES, behaviour) as server:
        told = refused(root, mirror=server.url)
    assert told.code == code
    assert f"{server.url}/{TAR.name}: " in str(told.found)
    assert TAR.md5 in str(told.expected)
    assert left(root) == {".fetch-cifar10.failed"}


def test_after_a_failure_the_next_start_succeeds_and_tidies_up(root: Path) -> None:
    assert refused(root, mirror="http://127.0.0.1:9").code == ExitCode.NO_INPUT
    with serving(CIFAR_FILES, servers.whole) as server:
        ensure(root, mirror=server.url)
    assert left(root) == everything(CIFAR)


def test_the_next_address_is_asked_where_the_first_gives_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, files = MADE["mnist"]
    with serving(files, servers.whole) as good, serving(files, servers.wrong_file) as bad:
        two = tuple(replace(archive, folders=(bad.url, good.url)) for archive in table)
        monkeypatch.setitem(download.PUBLISHED_ARCHIVES, "mnist", two)
        ensure(root, "mnist")
    assert len(bad.asked) == len(good.asked) == 4
    assert left(root) == everything(table)


@pytest.mark.parametrize("name", ["synthetic", "folder", "npz", "tensor", "my.data:factory"])
def test_what_is_not_published_is_refused(root: Path, name: str) -> None:
    assert refused(root, name).code == ExitCode.USAGE
    assert not root.exists()


def test_a_root_behind_a_link_is_filled_behind_the_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with serving(CIFAR_FILES, servers.whole) as server:
        ensure(tmp_path / "link", mirror=server.url)
    assert left(tmp_path / "real") == everything(CIFAR)
    assert (tmp_path / "link").is_symlink()


def file_for_root(root: Path) -> None:
    root.touch()


def dangling_link(root: Path) -> None:
    root.symlink_to("nowhere")


def file_for_its_parent(root: Path) -> None:
    root.parent.rmdir()
    root.parent.touch()


def folder_for_the_archive(root: Path) -> None:
    (root / TAR.path).mkdir(parents=True)


def folder_for_a_file(root: Path) -> None:
    (root / TAR.files[0].path).mkdir(parents=True)
    (root / TAR.path).write_bytes(CIFAR_FILES[TAR.name])


@pytest.mark.parametrize("make", [file_for_root, dangling_link, folder_for_the_archive, folder_for_a_file])
def test_a_root_that_cannot_hold_the_data_is_named(root: Path, make: Callable[[Path], None]) -> None:
    make(root)
    told = refused(root)
    assert told.code == ExitCode.OUTPUT
    assert "data.root" in told.fix


def test_a_read_only_root_is_named(root: Path) -> None:
    with mounted(root, "ro"):
        told = refused(root)
    assert told.code == ExitCode.OUTPUT
    assert "data.root" in told.fix


def test_a_small_disk_is_named_and_left_empty(root: Path) -> None:
    with serving(CIFAR_FILES, servers.whole) as server, mounted(root, "size=1m"):
        told = refused(root, mirror=server.url)
        assert left(root) <= {".fetch-cifar10.failed"}
    assert (told.code, server.asked) == (ExitCode.IO, [f"/pub/{TAR.name}"])
    assert "No space left" in str(told.found)
    assert "data.root" in told.fix


REFUSALS = {
    errno.ENOSPC: ExitCode.IO,
    errno.EDQUOT: ExitCode.IO,
    errno.EIO: ExitCode.IO,
    errno.EROFS: ExitCode.OUTPUT,
    errno.EACCES: ExitCode.OUTPUT,
    errno.EFBIG: ExitCode.RESOURCE,
}


@pytest.mark.parametrize(("number", "code"), REFUSALS.items())
def test_a_disk_that_refuses_to_the_end_leaves_nothing_half(
    root: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: ExitCode
) -> None:
    def refuse(_: int) -> None:
        raise OSError(number, os.strerror(number))

    with serving(CIFAR_FILES, servers.whole) as server, monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        told = refused(root, mirror=server.url)
    assert told.code == code
    assert "run.output_dir" not in told.fix
    assert left(root) == set()


def test_what_a_killed_process_left_is_swept(root: Path) -> None:
    (root / "cifar-10-batches-py").mkdir(parents=True)
    for name in (".tmp-fetch-cifar-10-python.tar.gz-0123", "cifar-10-batches-py/.tmp-fetch-test_batch-4567"):
        (root / name).write_bytes(b"half")
    with serving(CIFAR_FILES, servers.whole) as server:
        ensure(root, mirror=server.url)
    assert left(root) == everything(CIFAR)


@pytest.fixture
def another(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[], None]], list[str]]]:
    """Another process holds the lock until this one looked three times; then it does something, and ends."""
    root.mkdir()
    held = file_lock.acquire_lock(root / ".fetch-cifar10")
    assert held is not None
    told: list[str] = []

    def then(action: Callable[[], None]) -> list[str]:
        def passing(_: StatusLine, text: str) -> None:
            told.append(text)
            if len(told) == 3:
                action()
                held.release()

        monkeypatch.setattr(StatusLine, "passing", passing)
        return told

    yield then
    held.release()


def test_who_waits_says_for_whom_and_finds_it_done(root: Path, another: Callable[..., list[str]]) -> None:
    def done() -> None:
        (root / TAR.path).write_bytes(CIFAR_FILES[TAR.name])
        download.unpack_archive(TAR, root)

    told = another(done)
    ensure(root, mirror="http://127.0.0.1:9")
    host = file_lock.this_process_as_holder().host
    assert told == [f"waiting for process {os.getpid()} on {host}, which fetches cifar10 into {root}"] * 3


def note(root: Path, **changes: object) -> None:
    held = file_lock.read_holder(root / ".fetch-cifar10", 1)
    assert held is not None
    failure = {"code": 66, "what": "cannot", "fix": "do", "found": "nothing"}
    told = {"token": held.token, "mirror": "http://127.0.0.1:9", "by": "process 1", "failure": failure, **changes}
    (root / ".fetch-cifar10.failed").write_text(json.dumps(told))


def test_who_waited_for_a_failure_fails_alike_without_trying(root: Path, another: Callable[..., list[str]]) -> None:
    another(lambda: note(root))
    told = refused(root, mirror="http://127.0.0.1:9")
    assert (told.what, told.fix, told.found) == ("cannot (process 1 tried)", "do", "nothing")


OTHERS: dict[str, dict[str, object]] = {
    "of-another": {"token": "x"},
    "of-another-mirror": {"mirror": None},
    "without-failure": {"failure": None},
    "of-an-unknown-code": {"failure": {"code": 1, "what": "", "fix": ""}},
    "without-a-fix": {"failure": {"code": 66, "what": ""}},
}


@pytest.mark.parametrize("changes", OTHERS.values(), ids=OTHERS.keys())
def test_who_waited_for_something_else_tries_again(
    root: Path, another: Callable[..., list[str]], changes: dict[str, object]
) -> None:
    with serving(CIFAR_FILES, servers.whole) as server:
        another(lambda: note(root, **{"mirror": server.url, **changes}))
        ensure(root, mirror=server.url)
    assert left(root) == everything(CIFAR)


# The signal may come between opening the file and entering its `with`: Python closes it then, and warns.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_leaves_neither_lock_nor_half_a_file(root: Path) -> None:
    def stop(*_: object) -> None:
        raise Failure("stopped", fix="again", code=ExitCode.STOPPED)

    def half_then_signal(handler: servers.Handler, body: bytes) -> None:
        handler.head(Content_Length=len(body))
        handler.wfile.write(body[: len(body) // 2])
        os.kill(os.getpid(), signal.SIGUSR1)
        handler.server.over.wait(60)

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        with serving(CIFAR_FILES, half_then_signal) as server:
            assert refused(root, mirror=server.url).code == ExitCode.STOPPED
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert left(root) == set()
