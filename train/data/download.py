"""Downloads, verifies and unpacks the published data sets, once for all processes that need them.

A file appears complete and with its published hash, or not at all. The table of archives gives the
URLs, hashes and the path of each file below `data.root`. A test compares it with torchvision's.

Proxies: urllib's rules (http_proxy, https_proxy, no_proxy). TLS certificates are always verified
(SSL_CERT_FILE and SSL_CERT_DIR name other authorities).

torchvision's own download is not used: it waits without a time limit, repeats a failed https request
as plain http, and needs torch, which the process that starts the ranks never imports.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import http.client
import os
import shutil
import socket
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TextIO

from entrypoint import ExitCode, Failure, file_writer, redact, shell_command, to_printable, write_styled
from train import file_lock, files
from train.config.schema import DataConfig
from train.file_lock import LockHolder, WaitOutcome

TERMINAL_INTERVAL_S, LINE_INTERVAL_S = 0.2, 10.0


class StatusLine:
    """Writes lines to `stream`: `line` writes one that stays, `passing` one that the next replaces."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._terminal = stream.isatty()
        self._pause = TERMINAL_INTERVAL_S if self._terminal else LINE_INTERVAL_S
        self._last = clock()
        self._open = False  # the last line has no newline yet

    def line(self, text: str) -> None:
        """Write a line that stays."""
        self._write(f"{to_printable(text)}\n", open_after=False)
        self._last = self._clock()

    def passing(self, text: str) -> None:
        """Write a line that need not stay; skipped if the last one is too recent."""
        if self._clock() - self._last >= self._pause:
            self._last = self._clock()
            self._write(to_printable(text) + "\n" * (not self._terminal), open_after=self._terminal)

    def end(self) -> None:
        """Erase a line that need not stay."""
        self._write("", open_after=False)

    def _write(self, text: str, *, open_after: bool) -> None:
        write_styled(("\r\x1b[K" if self._open else "") + redact(text), self._stream)
        self._open = open_after


CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFile:
    """A file that torchvision reads. path: below data.root; inside a .tar.gz it has the same name.

    Either its md5 is published (CIFAR), or its size in bytes is known (MNIST: a header and a number of images).
    """

    path: str
    md5: str | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedArchive:
    """A published archive of `files`: a .tar.gz holds several, a .gz one. It is kept after unpacking.

    path: where it is kept, below data.root. folders: URLs of folders that hold it, the best first. size: in bytes.
    """

    path: str
    md5: str
    size: int
    folders: tuple[str, ...]
    files: tuple[PublishedFile, ...]

    @property
    def name(self) -> str:
        """Its file name, below data.root and in its URLs."""
        return self.path.rpartition("/")[2]

    def addresses(self, mirror: str | None) -> tuple[str, ...]:
        """Its URL below data.mirror if that is set, else the URLs where it is published."""
        folders = self.folders if mirror is None else (mirror,)
        return tuple(f"{folder.rstrip('/')}/{self.name}" for folder in folders)


def _cifar_archives(name: str, md5: str, size: int, folder: str, files: dict[str, str]) -> tuple[PublishedArchive, ...]:
    inside = tuple(PublishedFile(path=f"{folder}/{name}", md5=md5) for name, md5 in files.items())
    return (
        PublishedArchive(path=name, md5=md5, size=size, folders=("https://www.cs.toronto.edu/~kriz",), files=inside),
    )


# Unpacked bytes: images have a header of 16 bytes and 28 x 28 bytes each, labels a header of 8 and 1 byte each.
_IDX_FILE_BYTES = {
    "train-images-idx3-ubyte": 16 + 60_000 * 28 * 28,
    "train-labels-idx1-ubyte": 8 + 60_000,
    "t10k-images-idx3-ubyte": 16 + 10_000 * 28 * 28,
    "t10k-labels-idx1-ubyte": 8 + 10_000,
}


def _mnist_archives(
    folder: str, folders: tuple[str, ...], published: Sequence[tuple[str, int]]
) -> tuple[PublishedArchive, ...]:
    return tuple(
        PublishedArchive(
            path=f"{folder}/raw/{name}.gz",
            md5=md5,
            size=size,
            folders=folders,
            files=(PublishedFile(path=f"{folder}/raw/{name}", size=_IDX_FILE_BYTES[name]),),
        )
        for name, (md5, size) in zip(_IDX_FILE_BYTES, published, strict=True)
    )


# Hashes and addresses as torchvision.datasets has them: a test compares.
PUBLISHED_ARCHIVES: dict[str, tuple[PublishedArchive, ...]] = {
    "cifar10": _cifar_archives(
        "cifar-10-python.tar.gz",
        "c58f30108f718f92721af3b95e74349a",
        170_498_071,
        "cifar-10-batches-py",
        {
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
            "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
        },
    ),
    "cifar100": _cifar_archives(
        "cifar-100-python.tar.gz",
        "eb9058c3a382ffc7106e4002c42a8d85",
        169_001_437,
        "cifar-100-python",
        {
            "train": "16019d7e3df5f24257cddd939b257f8d",
            "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
            "meta": "7973b15100ade9c7d40fb424638fde48",
        },
    ),
    "mnist": _mnist_archives(
        "MNIST",
        ("https://ossci-datasets.s3.amazonaws.com/mnist", "http://yann.lecun.com/exdb/mnist"),
        (
            ("f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
            ("d53e105ee54ea40749a09fcbcd1e9432", 28_881),
            ("9fb629c4189551a2d022fa330f9573f3", 1_648_877),
            ("ec29112dd5afa0611ce80d1b7f02629c", 4_542),
        ),
    ),
    "fashion_mnist": _mnist_archives(
        "FashionMNIST",
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",),
        (
            ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
            ("25c81989df183df01b3e8a0aad5dffbe", 29_515),
            ("bef4ecab320f06d8554ea6380940ec79", 4_422_102),
            ("bb300cfdad3c16e7a12a480ee83cd310", 5_148),
        ),
    ),
}


def refuse_unpublished(data: DataConfig) -> None:
    """Raises Failure (USAGE) for a data set that is not published."""
    if data.name not in PUBLISHED_ARCHIVES:
        raise Failure(
            f"data.name {data.name} is not a published data set: there is nothing to download",
            expected=f"data.name: one of {', '.join(PUBLISHED_ARCHIVES)}",
            fix="set data.name to one of these, or leave data.download out",
            code=ExitCode.USAGE,
        )


def is_unpacked(archive: PublishedArchive, root: Path) -> bool:
    """Whether all files of `archive` lie unpacked below `root`, with their published hashes or sizes."""
    return all(is_intact(file, root) for file in archive.files)


def is_intact(file: PublishedFile, root: Path) -> bool:
    """Whether this file exists with its published hash or size; False if it cannot be read."""
    path = root / file.path
    try:
        return path.is_file() and path.stat().st_size == file.size if file.md5 is None else file_md5(path) == file.md5
    except OSError:
        return False


def files_exist(name: str, root: Path) -> bool:
    """Whether every file of data set `name` exists below `root`. Nothing is read: `train check` calls this."""
    return all(_archive_files_exist(archive, root) for archive in PUBLISHED_ARCHIVES[name])


def refuse_missing_files(data: DataConfig) -> None:
    """Raises Failure (NO_INPUT) with the first file that is missing below data.root, and two ways to get it."""
    root = Path(data.root)
    archives = PUBLISHED_ARCHIVES[data.name]
    first = next((archive for archive in archives if not _archive_files_exist(archive, root)), None)
    if first is None:
        return
    command = fetch_command(data.name, root)
    path = next((root / file.path for file in first.files if not os.path.isfile(root / file.path)), root)
    raise Failure(
        f"data.name {data.name}: its files are not in data.root",
        found=f"no {path.absolute()}",
        expected=f"what torchvision unpacks from {first.name} (md5 {first.md5})",
        fix=f"run `{command}` where there is a network; without one, put {first.name} at {root / first.path} first",
        code=ExitCode.NO_INPUT,
    )


def fetch_command(name: str, root: Path) -> str:
    """The command that downloads data set `name` into `root`."""
    return shell_command("train data fetch", f"data.name={name}", f"data.root={root}")


def _archive_files_exist(archive: PublishedArchive, root: Path) -> bool:
    return all(os.path.isfile(root / file.path) for file in archive.files)


def file_md5(path: Path) -> str:
    """The md5 of a file, in hexadecimal. Raises OSError."""
    with files.open_regular_file(path) as stream:
        return hashlib.file_digest(stream, _new_md5).hexdigest()


def _new_md5() -> Any:
    return hashlib.md5(usedforsecurity=False)  # detects accidents only; without the flag FIPS systems refuse md5


LABEL = "fetch-"  # of temporary files


def unpack_archive(archive: PublishedArchive, root: Path) -> None:
    """Unpack the published files of an archive whose hash was verified; other entries are not extracted.

    Raises:
        OSError: from the disk.
    """
    for path, source in _read_archive(archive, root):
        path.parent.mkdir(parents=True, exist_ok=True)
        with file_writer.replace_file(path, label=LABEL) as stream:
            shutil.copyfileobj(source, stream, CHUNK_BYTES)


def _read_archive(archive: PublishedArchive, root: Path) -> Iterator[tuple[Path, Any]]:
    """The path and the content of each file."""
    paths = {file.path: root / file.path for file in archive.files}
    if not archive.name.endswith(".tar.gz"):
        with gzip.open(root / archive.path) as stream:
            yield from ((path, stream) for path in paths.values())
        return
    with tarfile.open(root / archive.path) as tar:
        for member in tar:
            if member.name in paths:
                yield paths[member.name], tar.extractfile(member)


def remove_partial_files(archive: PublishedArchive, root: Path) -> None:
    """Remove the partial files of killed processes. Call this only under the lock, when no other process writes."""
    for relative_path in (archive.path, *(file.path for file in archive.files)):
        path = root / relative_path
        for partial in file_writer.left_files(path.parent, [path.name], label=LABEL):
            files.remove(partial)


STALL_TIMEOUT_S = 60.0  # without one byte


class DownloadError(Exception):
    """A download failed. wrong: the URL gave another file than the published one."""

    def __init__(self, what: str, *, wrong: bool = False) -> None:
        super().__init__(what)
        self.wrong = wrong


def download_archive(address: str, archive: PublishedArchive, path: Path, progress: Callable[[int], None]) -> None:
    """Download `archive` from `address` to `path`. If it is another file, `path` stays unchanged.

    Args:
        progress: called after every chunk with the bytes received so far.

    Raises:
        DownloadError: if the address does not give the published file.
        OSError: from the disk, not from the network.
    """
    with open_url(address) as response, file_writer.replace_file(path, label=LABEL) as stream:
        receive_file(response, stream, _new_md5(), archive.md5, limit=archive.size, progress=progress)


def receive_file(
    response: Any, stream: IO[bytes], digest: Any, expected: str | None, *, limit: int, progress: Callable[[int], None]
) -> None:
    """Copy an answer of `open_url` into a file, and compare the hash of what came with the published one.

    Args:
        digest: a new one of hashlib. expected: the published hash, or its beginning; None: it is not known.
        limit: a file with more bytes is another one: a server may send without end.
        progress: called after every chunk with the bytes received so far.

    Raises:
        DownloadError: if it is not the published file.
        OSError: from the disk, not from the network.
    """
    promised, received, beginning = getattr(response, "length", None) or 0, 0, b""
    while received <= limit and (chunk := read_chunk(response, received)):
        stream.write(chunk)
        digest.update(chunk)
        received, beginning = received + len(chunk), beginning or chunk[:64]
        progress(received)
    if received < promised and received <= limit:
        raise DownloadError(f"the connection ended after {received} of {promised} bytes")
    if received > limit or (expected is not None and not digest.hexdigest().startswith(expected)):
        page = " (a web page: of a proxy, or of a login?)" if beginning.lstrip().startswith(b"<") else ""
        content = f"{received} bytes with {digest.name} {digest.hexdigest()}"
        raise DownloadError(
            f"not the published file: {content}, not {expected or f'at most {limit} bytes'}{page}", wrong=True
        )


def open_url(address: str, *handlers: urllib.request.BaseHandler) -> Any:
    """Open a URL for reading. handlers: of urllib, besides its own. Raises DownloadError."""
    try:
        request = urllib.request.Request(address, headers={"User-Agent": "train-image"})
        return urllib.request.build_opener(*handlers).open(request, timeout=STALL_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        error.close()
        raise DownloadError(f"the server answers {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DownloadError(_describe_error(error)) from error


def read_chunk(response: Any, received: int) -> bytes:
    """The bytes that have arrived, without waiting for a full chunk, so that a slow server shows progress."""
    try:
        arrived: bytes = response.read1(CHUNK_BYTES) if hasattr(response, "read1") else response.read(CHUNK_BYTES)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DownloadError(f"{_describe_error(error)}, after {received} bytes") from error
    return arrived


def _describe_error(error: Exception) -> str:
    """The reason in plain words: urllib wraps it, and a time-out does not name its limit."""
    reason = getattr(error, "reason", None)
    inner = reason if isinstance(reason, Exception) else error
    if isinstance(inner, TimeoutError):
        return f"no answer within {STALL_TIMEOUT_S:g} s"
    if isinstance(inner, socket.gaierror):
        return "its name cannot be resolved: no network, or no such host"
    return str(getattr(inner, "strerror", None) or inner or type(inner).__name__)


_FIX_NOT_WRITABLE = "set data.root to a folder that you may write (in a container: mount one with -v or --bind)"
_FIX_DISK_FULL = "free space there, or set data.root to another file system"
_FIX_IO_ERROR = "look at the file system (dmesg, mount), then start again: nothing half was kept"


def ensure_downloaded(data: DataConfig, status: StatusLine) -> None:
    """Return when data set `data.name` is complete below `data.root`; silently if it is complete already.

    One of all processes on all nodes that share the folder downloads it, and the others wait.

    Raises:
        Failure: USAGE for a data set that is not published, NO_INPUT if no address answers, DATA for other files
            than the published ones, OUTPUT or IO if data.root cannot be written.
    """
    refuse_unpublished(data)
    root, waited = Path(data.root), None
    lock_path = root / f".fetch-{data.name}"
    while missing := [archive for archive in PUBLISHED_ARCHIVES[data.name] if not is_unpacked(archive, root)]:
        _raise_recorded_failure(lock_path, waited, data)
        with _translate_os_errors(root):
            root.mkdir(parents=True, exist_ok=True)
            held = file_lock.acquire_lock(lock_path, waited)
        if held is None:
            waited = file_lock.wait_for_release(
                lock_path, lambda holder: status.passing(_waiting_message(data, holder))
            )
            continue
        with held.held(), _record_failure(lock_path, held.holder, data):
            for archive in missing:
                with _translate_os_errors(root):
                    _fetch_archive(archive, missing, data, status)
    status.end()


def _fetch_archive(
    archive: PublishedArchive, missing: list[PublishedArchive], data: DataConfig, status: StatusLine
) -> None:
    """Under the lock: download one archive unless it exists, and unpack it."""
    root = Path(data.root)
    path = root / archive.path
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_partial_files(archive, root)
    if is_unpacked(archive, root):  # unpacked while this process acquired the lock
        return
    md5 = file_md5(path) if path.exists() else None
    if md5 != archive.md5:
        if md5:
            status.line(f"{path} is there, but with md5 {md5} instead of {archive.md5}: it is fetched again")
        _download_from_mirrors(archive, missing, data, status)
    status.line(f"{archive.name}: verified, unpacking into {root}")
    unpack_archive(archive, root)


def _download_from_mirrors(
    archive: PublishedArchive, missing: list[PublishedArchive], data: DataConfig, status: StatusLine
) -> None:
    """Download from the first address that has the published file."""

    def progress(received: int) -> None:
        status.passing(f"{archive.name}: {received / 1e6:.1f} of {archive.size / 1e6:.1f} MB")

    failed, wrong = [], False
    for address in archive.addresses(data.mirror):
        status.line(f"fetching {address} ({archive.size / 1e6:.1f} MB)")
        try:
            return download_archive(address, archive, Path(data.root) / archive.path, progress)
        except DownloadError as error:
            failed.append(f"{address}: {error}")
            wrong = wrong or error.wrong
    code = ExitCode.DATA if wrong else ExitCode.NO_INPUT
    what = f"{archive.name} cannot be fetched for data.name={data.name}"
    expected = f"{archive.size} bytes with md5 {archive.md5}"
    raise Failure(what, found="; ".join(failed), expected=expected, fix=manual_download_fix(missing, data), code=code)


def manual_download_fix(missing: list[PublishedArchive], data: DataConfig) -> str:
    """What to do without a network: the command for a machine that has one, or which files to put where."""
    command = fetch_command(data.name, Path(data.root).absolute())
    folder = (Path(data.root) / missing[0].path).parent.absolute()
    files = ", ".join(f"{archive.name} (md5 {archive.md5}, from {archive.addresses(None)[0]})" for archive in missing)
    return (
        f"where there is a network (on a cluster: its login node) run `{command}`; or put {files} into {folder} and "
        "start again: what is there is verified and unpacked; or set data.mirror to the address of a folder that has it"
    )


def _waiting_message(data: DataConfig, holder: LockHolder | None) -> str:
    return f"waiting for {holder or 'another process'}, which fetches {data.name} into {data.root}"


@contextmanager
def _translate_os_errors(root: Path) -> Iterator[None]:
    """Translate an OSError below data.root into its Failure."""
    try:
        yield
    except OSError as error:
        failure = files.os_error_failure(error, Path(error.filename or root))
        if failure.code == ExitCode.OUTPUT:
            failure.fix = _FIX_NOT_WRITABLE
        elif failure.code == ExitCode.IO:
            failure.fix = _FIX_DISK_FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else _FIX_IO_ERROR
        raise failure from error


@contextmanager
def _record_failure(lock_path: Path, holder: LockHolder, data: DataConfig) -> Iterator[None]:
    """Record a failure for the waiting processes, so that they do not retry one after the other."""
    note_path = lock_path.with_name(f"{lock_path.name}.failed")
    files.remove(note_path)
    try:
        yield
    except Failure as failure:
        if failure.code != ExitCode.STOPPED:
            with suppress(Failure, OSError):
                record = {"token": holder.token, "mirror": data.mirror, "by": str(holder)}
                files.write_json(note_path, record | {"failure": failure.as_json()})
        raise


def _raise_recorded_failure(lock_path: Path, waited: WaitOutcome | None, data: DataConfig) -> None:
    """Raises the Failure of the process that was waited for, if it used the same addresses."""
    if waited is None or waited.token is None:
        return
    try:
        record = files.read_json(lock_path.with_name(f"{lock_path.name}.failed"))
        same = (record["token"], record["mirror"]) == (waited.token, data.mirror)
        failure, by = record["failure"], record["by"]
        repeated = Failure(
            f"{failure['what']} ({by} tried)",
            fix=failure["fix"],
            code=ExitCode(failure["code"]),
            found=failure.get("found"),
            expected=failure.get("expected"),
        )
    except (OSError, *files.MALFORMED_ERRORS):
        return
    if same:
        raise repeated
