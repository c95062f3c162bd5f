"""A published data set comes with its hashes, once and unpacked, or not at all, and the message says what to do."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import os
import random
import shutil
import signal
import ssl
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import servers
from calls import fail, intercepted
from disks import mounted
from publishing import everything, left, stand_in, tar_gz
from servers import Behaviour, serving
from torchvision import datasets

from entrypoint import ExitCode, Failure, file_writer
from train import file_lock
from train.config.schema import DataConfig
from train.data import download
from train.data.download import PUBLISHED_ARCHIVES, DownloadError, PublishedArchive, PublishedFile, StatusLine

BODY = random.Random(0).randbytes(300_000)
ARCHIVE = PublishedArchive(path="a.gz", md5=hashlib.md5(BODY).hexdigest(), size=len(BODY), folders=(), files=())
FILES = {"a.gz": BODY}


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


def bring(address: str, folder: Path, progress: Callable[[int], None] = lambda _: None) -> None:
    download.download_archive(address, ARCHIVE, folder / "a.gz", progress)


GOOD_ANSWERS = [servers.whole, servers.without_length, servers.chunked, servers.slowly]


@pytest.mark.parametrize("behaviour", GOOD_ANSWERS)
def test_a_whole_file_comes_with_one_request(tmp_path: Path, behaviour: Behaviour) -> None:
    with serving(FILES, behaviour) as server:
        bring(f"{server.url}/a.gz", tmp_path)
    assert server.asked == ["/pub/a.gz"]
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a.gz", BODY)]


def test_a_slow_server_has_its_time_as_long_as_bytes_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Ten pauses of 0.25 s: longer than the limit together, each of them shorter.
    monkeypatch.setattr(download, "STALL_TIMEOUT_S", 2.0)
    with serving(FILES, servers.very_slowly) as server:
        bring(f"{server.url}/a.gz", tmp_path)
    assert (tmp_path / "a.gz").exists()


def test_progress_counts_to_the_end(tmp_path: Path) -> None:
    seen: list[int] = []
    with serving(FILES, servers.slowly) as server:
        bring(f"{server.url}/a.gz", tmp_path, seen.append)
    assert len(seen) > 1
    assert seen == sorted(seen)
    assert seen[-1] == len(BODY)


BAD_ANSWERS: dict[str, tuple[Behaviour, str | None, bool]] = {
    "stops-half-way": (servers.stops_half_way, "ended after 150000 of 300000 bytes", False),
    "stalls": (servers.stalls, r"no answer within 0.2 s, after", False),
    "never-answers": (servers.never_answers, "no answer within 0.2 s", False),
    "closes-at-once": (servers.closes_at_once, "closed connection without response", False),
    "talks-rubbish": (servers.talks_rubbish, None, False),
    "chunked-half": (servers.chunked_half, "after 150000 bytes", False),
    "promises-more": (servers.promises_more, "of 600000 bytes", False),
    "error-500": (servers.server_error, "answers 500", False),
    "error-403": (servers.forbidden, "answers 403", False),
    "goes-in-circles": (servers.goes_in_circles, "302", False),
    "sends-on-to-a-file": (servers.sends_on("file:///etc"), "302", False),
    "sends-on-to-nowhere": (servers.sends_on("http://127.0.0.1:9"), "refused", False),
    "wrong-file": (servers.wrong_file, "300000 bytes with md5", True),
    "promises-less": (servers.promises_less, "150000 bytes with md5", True),
    "empty": (servers.nothing, "0 bytes with md5", True),
    "login-page": (servers.login_page, "a web page", True),
    "endless": (servers.endless, "not the published file", True),
}


@pytest.mark.parametrize(("behaviour", "reason", "wrong"), BAD_ANSWERS.values(), ids=BAD_ANSWERS.keys())
def test_anything_else_is_named_and_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behaviour: Behaviour, reason: str | None, wrong: bool
) -> None:
    if behaviour is servers.never_answers:
        monkeypatch.setattr(download, "STALL_TIMEOUT_S", 0.2)
    if behaviour is servers.stalls:
        impatient_once_it_answers(monkeypatch)
    (tmp_path / "a.gz").write_bytes(b"before")
    with serving(FILES, behaviour) as server, pytest.raises(DownloadError, match=reason) as refused:
        bring(f"{server.url}/a.gz", tmp_path)
    assert refused.value.wrong == wrong
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a.gz", b"before")]


def impatient_once_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = download.open_url

    def then_soon(address: str) -> Any:
        response = opened(address)
        response.fp.raw._sock.settimeout(0.2)
        monkeypatch.setattr(download, "STALL_TIMEOUT_S", 0.2)
        return response

    monkeypatch.setattr(download, "open_url", then_soon)


ADDRESSES = {
    "nobody-listens": ("http://127.0.0.1:9/a.gz", "Connection refused"),
    "no-such-host": ("http://no-such-host.invalid/a.gz", "cannot be resolved"),
    "no-host": ("http:///a.gz", "no host"),
    "no-port": ("http://127.0.0.1:port/a.gz", "port"),
    "port-too-large": ("http://127.0.0.1:99999/a.gz", None),
    "control-character": ("http://127.0.0.1/a\n.gz", None),
    "letters": ("http://127.0.0.1:9/ü/a.gz", None),
    "label-too-long": (f"http://{'x' * 70}.invalid/a.gz", None),
    "unknown-scheme": ("gopher://127.0.0.1/a.gz", "unknown url type"),
    "no-such-file": ("file:///none/a.gz", "No such file"),
    "a-folder": ("file:///etc", None),
    "half-an-address": ("http://[::1/a.gz", None),
}


@pytest.mark.parametrize(("address", "reason"), ADDRESSES.values(), ids=ADDRESSES.keys())
def test_an_address_that_gives_nothing_is_named_and_leaves_nothing(
    tmp_path: Path, address: str, reason: str | None
) -> None:
    with pytest.raises(DownloadError, match=reason):
        bring(address, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_is_404(tmp_path: Path) -> None:
    with serving({}, servers.whole) as server, pytest.raises(DownloadError, match="answers 404"):
        bring(f"{server.url}/a.gz", tmp_path)


def test_a_redirect_is_followed(tmp_path: Path) -> None:
    with serving(FILES, servers.whole) as server, serving(FILES, servers.sends_on(server.url)) as first:
        bring(f"{first.url}/a.gz", tmp_path)
    assert server.asked == first.asked == ["/pub/a.gz"]


def test_a_folder_serves_as_well_as_a_server(tmp_path: Path) -> None:
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror/a.gz").write_bytes(BODY)
    (tmp_path / "here").mkdir()
    bring((tmp_path / "mirror/a.gz").as_uri(), tmp_path / "here")
    assert (tmp_path / "here/a.gz").read_bytes() == BODY


def test_a_proxy_is_asked_where_a_variable_names_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(FILES, servers.whole) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/pub"))
        bring("http://published.invalid/a.gz", tmp_path)
    assert proxy.asked == ["http://published.invalid/a.gz"]


def test_a_certificate_that_nobody_signed_is_refused(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own_certificate(tmp_path))
    with (
        serving(FILES, servers.whole, context) as server,
        pytest.raises(DownloadError, match="self-signed certificate"),
    ):
        bring(f"{server.url}/a.gz", tmp_path)
    assert server.asked == []


def test_a_certificate_of_the_users_own_authority_is_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate := own_certificate(tmp_path))
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with serving(FILES, servers.whole, context) as server:
        bring(f"{server.url}/a.gz", tmp_path)
    assert (tmp_path / "a.gz").read_bytes() == BODY


def own_certificate(folder: Path) -> Path:
    """A key, and a certificate for loopback that only its owner vouches for."""
    if shutil.which("openssl") is None:
        pytest.skip("machine: no openssl to make a certificate with")
    files = ["-keyout", str(folder / "key"), "-out", str(folder / "certificate")]
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names, *files]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    both = folder / "both"
    both.write_bytes((folder / "key").read_bytes() + (folder / "certificate").read_bytes())
    return both


def test_a_full_disk_is_not_the_servers_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with serving(FILES, servers.whole) as server, pytest.raises(OSError, match="No space"):
        bring(f"{server.url}/a.gz", tmp_path, full)
    assert list(tmp_path.iterdir()) == []


TORCHVISION_CIFAR = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}
TORCHVISION_MNIST = {"mnist": datasets.MNIST, "fashion_mnist": datasets.FashionMNIST}
DATA = b"what is published"
MD5 = hashlib.md5(DATA).hexdigest()


def test_every_published_data_set_has_its_files() -> None:
    assert set(PUBLISHED_ARCHIVES) == {*TORCHVISION_CIFAR, *TORCHVISION_MNIST}


@pytest.mark.parametrize("name", TORCHVISION_CIFAR)
def test_cifar_has_the_address_and_hashes_that_torchvision_publishes(name: str) -> None:
    dataset, (archive,) = TORCHVISION_CIFAR[name], PUBLISHED_ARCHIVES[name]
    assert archive.addresses(None) == (dataset.url,)
    assert (archive.path, archive.md5) == (dataset.filename, dataset.tgz_md5)
    listed = [*dataset.train_list, *dataset.test_list, [dataset.meta["filename"], dataset.meta["md5"]]]
    assert [(file.path, file.md5) for file in archive.files] == [
        (f"{dataset.base_folder}/{file}", md5) for file, md5 in listed
    ]


@pytest.mark.parametrize("name", TORCHVISION_MNIST)
def test_mnist_has_the_addresses_and_hashes_that_torchvision_publishes(name: str) -> None:
    dataset, archives = TORCHVISION_MNIST[name], PUBLISHED_ARCHIVES[name]
    assert [(archive.name, archive.md5) for archive in archives] == list(dataset.resources)
    for archive in archives:
        assert archive.addresses(None) == tuple(f"{mirror}{archive.name}" for mirror in dataset.mirrors)
        assert archive.path == f"{dataset.__name__}/raw/{archive.name}"
        assert archive.files[0].path == archive.path.removesuffix(".gz")


@pytest.mark.parametrize("mirror", ["http://h/some/where", "http://h/some/where/", "http://h/some/where//"])
def test_a_mirror_replaces_the_folder_of_the_address(mirror: str) -> None:
    (archive,) = PUBLISHED_ARCHIVES["cifar10"]
    assert archive.addresses(mirror) == ("http://h/some/where/cifar-10-python.tar.gz",)


def archive_of(file: PublishedFile) -> PublishedArchive:
    return PublishedArchive(path="a.gz", md5=MD5, size=1, folders=(), files=(file,))


BY_HASH, BY_SIZE = PublishedFile(path="d/f", md5=MD5), PublishedFile(path="d/f", size=len(DATA))


@pytest.mark.parametrize("file", [BY_HASH, BY_SIZE], ids=["by-hash", "by-size"])
def test_a_whole_file_is_known(tmp_path: Path, file: PublishedFile) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_bytes(DATA)
    assert download.is_unpacked(archive_of(file), tmp_path)


@pytest.mark.parametrize("file", [BY_HASH, BY_SIZE], ids=["by-hash", "by-size"])
@pytest.mark.parametrize("left", [b"", DATA[:-1], DATA + b"!"], ids=["empty", "half", "longer"])
def test_a_broken_file_is_not_whole(tmp_path: Path, file: PublishedFile, left: bytes) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_bytes(left)
    assert not download.is_unpacked(archive_of(file), tmp_path)


@pytest.mark.parametrize("file", [BY_HASH, BY_SIZE], ids=["by-hash", "by-size"])
def test_what_is_not_a_readable_file_is_not_whole(tmp_path: Path, file: PublishedFile) -> None:
    assert not download.is_unpacked(archive_of(file), tmp_path / "none")
    (tmp_path / "d/f").mkdir(parents=True)
    assert not download.is_unpacked(archive_of(file), tmp_path)
    (tmp_path / "r").symlink_to("r")
    assert not download.is_unpacked(archive_of(file), tmp_path / "r")


def test_one_changed_bit_is_not_whole(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_bytes(b"X" + DATA[1:])
    assert not download.is_unpacked(archive_of(BY_HASH), tmp_path)


def test_names_alone_say_whether_data_seems_there(tmp_path: Path) -> None:
    assert not download.files_exist("cifar100", tmp_path)
    (tmp_path / "cifar-100-python").mkdir()
    for name in ("train", "test", "meta"):
        (tmp_path / "cifar-100-python" / name).touch()
    assert download.files_exist("cifar100", tmp_path)


BAD_DATA = {
    "synthetic": (DataConfig(), "data.name synthetic"),
    "folder": (DataConfig(name="folder"), "data.name folder"),
    "arrays": (DataConfig(name="npz"), "data.name npz"),
    "plugin": (DataConfig(name="my.data:factory"), "data.name my.data:factory"),
}


@pytest.mark.parametrize(("data", "reason"), BAD_DATA.values(), ids=BAD_DATA.keys())
def test_what_cannot_be_downloaded_is_refused(data: DataConfig, reason: str) -> None:
    with pytest.raises(Failure, match=reason) as refused:
        download.refuse_unpublished(data)
    assert refused.value.code == ExitCode.USAGE


@pytest.mark.parametrize("mirror", [None, "http://host/a@b", "file:///srv/a@b", "https://host:8443"])
def test_a_published_data_set_may_be_downloaded(mirror: str | None) -> None:
    download.refuse_unpublished(DataConfig(name="mnist", mirror=mirror))


def test_the_first_missing_file_is_named_with_the_command_that_brings_it(tmp_path: Path) -> None:
    (tmp_path / "MNIST/raw").mkdir(parents=True)
    (tmp_path / "MNIST/raw/train-images-idx3-ubyte").touch()
    with pytest.raises(Failure, match="its files are not") as refused:
        download.refuse_missing_files(DataConfig(name="mnist", root=str(tmp_path)))
    assert refused.value.code == ExitCode.NO_INPUT
    assert refused.value.found == f"no {tmp_path}/MNIST/raw/train-labels-idx1-ubyte"
    assert f"`train data fetch data.name=mnist data.root={tmp_path}`" in refused.value.fix
    assert f"put train-labels-idx1-ubyte.gz at {tmp_path}/MNIST/raw/train-labels-idx1-ubyte.gz" in refused.value.fix


def test_what_is_there_is_not_missing(tmp_path: Path) -> None:
    for archive in PUBLISHED_ARCHIVES["cifar10"]:
        for file in archive.files:
            (tmp_path / file.path).parent.mkdir(exist_ok=True)
            (tmp_path / file.path).touch()
    download.refuse_missing_files(DataConfig(name="cifar10", root=str(tmp_path)))


def test_a_root_that_cannot_be_looked_into_is_missing_input(tmp_path: Path) -> None:
    (tmp_path / "r").symlink_to("r")
    with pytest.raises(Failure) as refused:
        download.refuse_missing_files(DataConfig(name="cifar100", root=str(tmp_path / "r")))
    assert refused.value.code == ExitCode.NO_INPUT


INSIDE = {"d/one": b"1" * 3_000_000, "d/two": b"22"}


def md5(body: bytes) -> str:
    return hashlib.md5(body).hexdigest()


TAR = PublishedArchive(
    path="a.tar.gz",
    md5="",
    size=0,
    folders=(),
    files=tuple(PublishedFile(path=path, md5=md5(body)) for path, body in INSIDE.items()),
)
GZ = PublishedArchive(path="raw/a.gz", md5="", size=0, folders=(), files=(PublishedFile(path="raw/a", size=1000),))


def files_in(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def put(root: Path, archive: PublishedArchive, body: bytes) -> None:
    (root / archive.path).parent.mkdir(exist_ok=True)
    (root / archive.path).write_bytes(body)


def test_a_tar_gives_the_files_of_the_table_and_no_others(tmp_path: Path) -> None:
    body = tar_gz({**INSIDE, "d/readme.html": b"<p>"})
    put(tmp_path, TAR, body)
    download.unpack_archive(TAR, tmp_path)
    assert files_in(tmp_path) == {"a.tar.gz": body, **INSIDE}


def test_a_gz_gives_its_file(tmp_path: Path) -> None:
    body = gzip.compress(b"x" * 1000)
    put(tmp_path, GZ, body)
    download.unpack_archive(GZ, tmp_path)
    assert files_in(tmp_path) == {"raw/a.gz": body, "raw/a": b"x" * 1000}


def test_a_half_unpacked_folder_is_completed_and_the_users_own_files_in_it_stay(tmp_path: Path) -> None:
    put(tmp_path, TAR, tar_gz(INSIDE))
    (tmp_path / "d").mkdir()
    (tmp_path / "d/one").write_bytes(b"1")
    (tmp_path / "d/mine").write_bytes(b"mine")
    download.unpack_archive(TAR, tmp_path)
    assert {**INSIDE, "d/mine": b"mine"}.items() <= files_in(tmp_path).items()


@pytest.mark.parametrize("call", ["fsync"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_what_the_disk_refuses_leaves_nothing(tmp_path: Path, call: str, number: int) -> None:
    put(tmp_path, GZ, body := gzip.compress(b"x" * 1000))
    with intercepted(fail(1, number, name=call)), pytest.raises(OSError):
        download.unpack_archive(GZ, tmp_path)
    assert files_in(tmp_path) == {"raw/a.gz": body}


@pytest.mark.parametrize("ending", [KeyboardInterrupt, SystemExit, Failure("stop", fix="", code=ExitCode.STOPPED)])
def test_an_interrupted_file_does_not_appear(
    tmp_path: Path, ending: BaseException | Callable[[], BaseException]
) -> None:
    (tmp_path / "a").write_bytes(b"before")
    with pytest.raises((Failure, KeyboardInterrupt, SystemExit)), file_writer.replace_file(tmp_path / "a") as stream:  # noqa: PT012
        stream.write(b"half")
        raise ending  # type: ignore[misc]
    assert files_in(tmp_path) == {"a": b"before"}


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    put(tmp_path, TAR, b"")
    (tmp_path / "d").mkdir()
    others = [".tmp-fetch-b.tar.gz-0123", ".tmp-a.tar.gz-0123", "a.tar.gz.part", "d/one"]
    for name in (".tmp-fetch-a.tar.gz-0123", "d/.tmp-fetch-one-4567", *others):
        (tmp_path / name).touch()
    download.remove_partial_files(TAR, tmp_path)
    assert set(files_in(tmp_path)) == {"a.tar.gz", *others}


def test_nothing_is_swept_where_nothing_is(tmp_path: Path) -> None:
    download.remove_partial_files(GZ, tmp_path)
    download.remove_partial_files(GZ, tmp_path / "none")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_elsewhere_a_passing_line_is_written_every_ten_seconds() -> None:
    stream, clock = io.StringIO(), Clock()
    teller = StatusLine(stream, clock)
    for second in range(25):
        clock.now = second
        teller.passing(f"at {second}")
    assert stream.getvalue() == "at 10\nat 20\n"


def test_a_fact_is_always_written_and_puts_off_what_passes() -> None:
    stream, clock = io.StringIO(), Clock()
    teller = StatusLine(stream, clock)
    clock.now = 11
    teller.line("a fact")
    teller.passing("left out")
    teller.line("another")
    assert stream.getvalue() == "a fact\nanother\n"


def test_on_a_terminal_the_next_line_replaces_what_passed() -> None:
    stream, clock = Terminal(), Clock()
    teller = StatusLine(stream, clock)
    for second in (1, 2):
        clock.now = second
        teller.passing(f"at {second}")
    teller.line("done")
    assert stream.getvalue() == "at 1\r\x1b[Kat 2\r\x1b[Kdone\n"


def test_at_its_end_a_terminal_is_clean() -> None:
    stream, clock = Terminal(), Clock()
    teller = StatusLine(stream, clock)
    clock.now = 1
    teller.passing("at 1")
    teller.end()
    teller.end()
    assert stream.getvalue() == "at 1\r\x1b[K"


def test_nothing_is_written_where_nothing_is_told() -> None:
    stream = Terminal()
    StatusLine(stream, Clock()).end()
    assert stream.getvalue() == ""


NAMES = ("cifar10", "cifar100", "mnist", "fashion_mnist")
STAND_INS = {name: stand_in(name) for name in NAMES}
CIFAR_TABLE, CIFAR_FILES = STAND_INS["cifar10"]
(CIFAR_TAR,) = CIFAR_TABLE


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "PUBLISHED_ARCHIVES", {name: table for name, (table, _) in STAND_INS.items()})
    monkeypatch.setattr(file_lock, "POLL_S", 0.001)


@pytest.fixture
def root(tmp_path: Path, stand_ins: None) -> Path:
    return tmp_path / "data"


def ensure(root: Path, name: str = "cifar10", mirror: str | None = None) -> str:
    """What was told."""
    stream = io.StringIO()
    download.ensure_downloaded(DataConfig(name=name, root=str(root), mirror=mirror), StatusLine(stream))
    return stream.getvalue()


def refusal(root: Path, name: str = "cifar10", mirror: str | None = None) -> Failure:
    with pytest.raises(Failure) as caught:
        ensure(root, name, mirror)
    return caught.value


@pytest.mark.parametrize("name", NAMES)
def test_each_file_is_asked_for_once_and_nothing_else_is_left(root: Path, name: str) -> None:
    table, files = STAND_INS[name]
    with serving(files, servers.whole) as server:
        ensure(root, name, server.url)
        ensure(root, name, server.url)
    assert server.asked == [f"/pub/{archive.name}" for archive in table]
    assert left(root) == everything(table)


def test_what_is_there_needs_no_network_no_writing_and_no_word(root: Path) -> None:
    with serving(CIFAR_FILES, servers.whole) as server:
        ensure(root, mirror=server.url)
    (root / CIFAR_TAR.path).unlink()
    before = root.stat().st_mtime_ns
    assert ensure(root, mirror="http://127.0.0.1:9") == ""
    assert root.stat().st_mtime_ns == before


@pytest.mark.parametrize("name", NAMES)
def test_a_file_put_there_by_hand_is_verified_and_unpacked_without_a_network(root: Path, name: str) -> None:
    table, files = STAND_INS[name]
    for archive in table:
        (root / archive.path).parent.mkdir(parents=True, exist_ok=True)
        (root / archive.path).write_bytes(files[archive.name])
    assert "verified" in ensure(root, name)
    assert left(root) == everything(table)


def test_a_wrong_file_put_there_by_hand_is_named_and_fetched(root: Path) -> None:
    root.mkdir()
    (root / CIFAR_TAR.path).write_bytes(b"half")
    with serving(CIFAR_FILES, servers.whole) as server:
        assert "is there, but with md5" in ensure(root, mirror=server.url)
    assert left(root) == everything(CIFAR_TABLE)


def test_without_a_network_a_wrong_file_put_there_by_hand_stays(root: Path) -> None:
    root.mkdir()
    (root / CIFAR_TAR.path).write_bytes(b"half")
    assert refusal(root).code == ExitCode.NO_INPUT
    assert (root / CIFAR_TAR.path).read_bytes() == b"half"


def test_a_damaged_file_is_unpacked_again_without_a_network(root: Path) -> None:
    with serving(CIFAR_FILES, servers.whole) as server:
        ensure(root, mirror=server.url)
    (root / CIFAR_TAR.files[2].path).write_bytes(b"half")
    (root / CIFAR_TAR.files[3].path).unlink()
    ensure(root)
    assert left(root) == everything(CIFAR_TABLE)


def test_without_a_network_the_message_says_what_to_type_where_there_is_one(root: Path) -> None:
    assert f"`train data fetch data.name=mnist data.root={root.absolute()}`" in refusal(root, "mnist").fix


def test_without_a_network_the_message_says_which_files_to_put_where(root: Path) -> None:
    failure = refusal(root, "mnist")
    assert failure.code == ExitCode.NO_INPUT
    for archive in download.PUBLISHED_ARCHIVES["mnist"]:
        assert f"{archive.name} (md5 {archive.md5}, from {archive.folders[0]}/{archive.name})" in failure.fix
    assert f"into {root}/MNIST/raw and start again" in failure.fix
    assert "Connection refused" in str(failure.found)


BAD_SERVERS: dict[str, tuple[Behaviour, ExitCode]] = {
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


@pytest.mark.parametrize(("behaviour", "code"), BAD_SERVERS.values(), ids=BAD_SERVERS.keys())
def test_a_bad_server_is_one_clear_error_and_nothing_half_is_accepted(
    root: Path, monkeypatch: pytest.MonkeyPatch, behaviour: Behaviour, code: ExitCode
) -> None:
    if behaviour in (servers.stalls, servers.never_answers):
        monkeypatch.setattr(download, "STALL_TIMEOUT_S", 0.2)
    with serving(CIFAR_FILES, behaviour) as server:
        failure = refusal(root, mirror=server.url)
    assert failure.code == code
    assert f"{server.url}/{CIFAR_TAR.name}: " in str(failure.found)
    assert CIFAR_TAR.md5 in str(failure.expected)
    assert left(root) == {".fetch-cifar10.failed"}


def test_after_a_failure_the_next_start_succeeds_and_tidies_up(root: Path) -> None:
    assert refusal(root, mirror="http://127.0.0.1:9").code == ExitCode.NO_INPUT
    with serving(CIFAR_FILES, servers.whole) as server:
        ensure(root, mirror=server.url)
    assert left(root) == everything(CIFAR_TABLE)


def test_the_next_address_is_asked_where_the_first_gives_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, files = STAND_INS["mnist"]
    with serving(files, servers.whole) as good, serving(files, servers.wrong_file) as bad:
        two = tuple(replace(archive, folders=(bad.url, good.url)) for archive in table)
        monkeypatch.setitem(download.PUBLISHED_ARCHIVES, "mnist", two)
        ensure(root, "mnist")
    assert len(bad.asked) == len(good.asked) == 4
    assert left(root) == everything(table)


@pytest.mark.parametrize("name", ["synthetic", "folder", "npz", "tensor", "my.data:factory"])
def test_what_is_not_published_is_refused(root: Path, name: str) -> None:
    assert refusal(root, name).code == ExitCode.USAGE
    assert not root.exists()


@pytest.mark.usefixtures("stand_ins")
def test_a_root_behind_a_link_is_filled_behind_the_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with serving(CIFAR_FILES, servers.whole) as server:
        ensure(tmp_path / "link", mirror=server.url)
    assert left(tmp_path / "real") == everything(CIFAR_TABLE)
    assert (tmp_path / "link").is_symlink()


def file_for_root(root: Path) -> None:
    root.touch()


def dangling_link(root: Path) -> None:
    root.symlink_to("nowhere")


def file_for_its_parent(root: Path) -> None:
    root.parent.rmdir()
    root.parent.touch()


def folder_for_the_archive(root: Path) -> None:
    (root / CIFAR_TAR.path).mkdir(parents=True)


def folder_for_a_file(root: Path) -> None:
    (root / CIFAR_TAR.files[0].path).mkdir(parents=True)
    (root / CIFAR_TAR.path).write_bytes(CIFAR_FILES[CIFAR_TAR.name])


@pytest.mark.parametrize("make", [file_for_root, dangling_link, folder_for_the_archive, folder_for_a_file])
def test_a_root_that_cannot_hold_the_data_is_named(root: Path, make: Callable[[Path], None]) -> None:
    make(root)
    failure = refusal(root)
    assert failure.code == ExitCode.OUTPUT
    assert "data.root" in failure.fix


def test_a_read_only_root_is_named(root: Path) -> None:
    with mounted(root, "ro"):
        failure = refusal(root)
    assert failure.code == ExitCode.OUTPUT
    assert "data.root" in failure.fix


def test_a_small_disk_is_named_and_left_empty(root: Path) -> None:
    with serving(CIFAR_FILES, servers.whole) as server, mounted(root, "size=1m"):
        failure = refusal(root, mirror=server.url)
        assert left(root) <= {".fetch-cifar10.failed"}
    assert (failure.code, server.asked) == (ExitCode.IO, [f"/pub/{CIFAR_TAR.name}"])
    assert "No space left" in str(failure.found)
    assert "data.root" in failure.fix


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
        failure = refusal(root, mirror=server.url)
    assert failure.code == code
    assert "run.output_dir" not in failure.fix
    assert left(root) == set()


def test_what_a_killed_process_left_is_swept(root: Path) -> None:
    (root / "cifar-10-batches-py").mkdir(parents=True)
    for name in (".tmp-fetch-cifar-10-python.tar.gz-0123", "cifar-10-batches-py/.tmp-fetch-test_batch-4567"):
        (root / name).write_bytes(b"half")
    with serving(CIFAR_FILES, servers.whole) as server:
        ensure(root, mirror=server.url)
    assert left(root) == everything(CIFAR_TABLE)


@pytest.fixture
def other_process(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[], None]], list[str]]]:
    """Another process holds the lock until this one looked three times; then it does something, and ends."""
    root.mkdir()
    held = file_lock.acquire_lock(root / ".fetch-cifar10")
    assert held is not None
    printed: list[str] = []

    def then(action: Callable[[], None]) -> list[str]:
        def passing(_: StatusLine, text: str) -> None:
            printed.append(text)
            if len(printed) == 3:
                action()
                held.release()

        monkeypatch.setattr(StatusLine, "passing", passing)
        return printed

    yield then
    held.release()


def test_who_waits_says_for_whom_and_finds_it_done(root: Path, other_process: Callable[..., list[str]]) -> None:
    def done() -> None:
        (root / CIFAR_TAR.path).write_bytes(CIFAR_FILES[CIFAR_TAR.name])
        download.unpack_archive(CIFAR_TAR, root)

    printed = other_process(done)
    ensure(root, mirror="http://127.0.0.1:9")
    host = file_lock.this_process_as_holder().host
    assert printed == [f"waiting for process {os.getpid()} on {host}, which fetches cifar10 into {root}"] * 3


def write_failure(root: Path, **changes: object) -> None:
    held = file_lock.read_holder(root / ".fetch-cifar10", 1)
    assert held is not None
    failure = {"code": 66, "what": "cannot", "fix": "do", "found": "nothing"}
    content = {"token": held.token, "mirror": "http://127.0.0.1:9", "by": "process 1", "failure": failure, **changes}
    (root / ".fetch-cifar10.failed").write_text(json.dumps(content))


def test_who_waited_for_a_failure_fails_alike_without_trying(
    root: Path, other_process: Callable[..., list[str]]
) -> None:
    other_process(lambda: write_failure(root))
    failure = refusal(root, mirror="http://127.0.0.1:9")
    assert (failure.what, failure.fix, failure.found) == ("cannot (process 1 tried)", "do", "nothing")


OTHER_FAILURES: dict[str, dict[str, object]] = {
    "of-another": {"token": "x"},
    "of-another-mirror": {"mirror": None},
    "without-failure": {"failure": None},
    "of-an-unknown-code": {"failure": {"code": 1, "what": "", "fix": ""}},
    "without-a-fix": {"failure": {"code": 66, "what": ""}},
}


@pytest.mark.parametrize("changes", OTHER_FAILURES.values(), ids=OTHER_FAILURES.keys())
def test_who_waited_for_something_else_tries_again(
    root: Path, other_process: Callable[..., list[str]], changes: dict[str, object]
) -> None:
    with serving(CIFAR_FILES, servers.whole) as server:
        other_process(lambda: write_failure(root, **{"mirror": server.url, **changes}))
        ensure(root, mirror=server.url)
    assert left(root) == everything(CIFAR_TABLE)


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
            assert refusal(root, mirror=server.url).code == ExitCode.STOPPED
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert left(root) == set()
