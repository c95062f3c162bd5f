"""A file comes whole and with its hash, or not at all, whatever the server does."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import shutil
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import servers
from servers import Behaviour, serving

from train.data import download
from train.data.download import DownloadError, PublishedArchive

BODY = random.Random(0).randbytes(300_000)
ARCHIVE = PublishedArchive(path="a.gz", md5=hashlib.md5(BODY).hexdigest(), size=len(BODY), folders=(), files=())
FILES = {"a.gz": BODY}


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


def bring(address: str, folder: Path, progress: Callable[[int], None] = lambda _: None) -> None:
    download.download_archive(address, ARCHIVE, folder / "a.gz", progress)


GOOD = [servers.whole, servers.without_length, servers.chunked, servers.slowly]


@pytest.mark.parametrize("behaviour", GOOD)
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


BAD: dict[str, tuple[Behaviour, str | None, bool]] = {
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


@pytest.mark.parametrize(("behaviour", "said", "wrong"), BAD.values(), ids=BAD.keys())
def test_anything_else_is_named_and_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behaviour: Behaviour, said: str | None, wrong: bool
) -> None:
    if behaviour is servers.never_answers:
        monkeypatch.setattr(download, "STALL_TIMEOUT_S", 0.2)
    if behaviour is servers.stalls:
        impatient_once_it_answers(monkeypatch)
    (tmp_path / "a.gz").write_bytes(b"before")
    with serving(FILES, behaviour) as server, pytest.raises(DownloadError, match=said) as refused:
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


@pytest.mark.parametrize(("address", "said"), ADDRESSES.values(), ids=ADDRESSES.keys())
def test_an_address_that_gives_nothing_is_named_and_leaves_nothing(
    tmp_path: Path, address: str, said: str | None
) -> None:
    with pytest.raises(DownloadError, match=said):
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
