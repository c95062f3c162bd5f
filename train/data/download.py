"""Downloads, verifies and unpacks the published data sets, once for all processes that need them.

A file appears complete and with its published hash, or not at all. The table of archives gives the
URLs, hashes and the place of each file below `data.root`; it is torchvision's, and a test compares.

Proxies: urllib's rules (http_proxy, https_proxy, no_proxy). TLS certificates are always verified
(SSL_CERT_FILE and SSL_CERT_DIR name other authorities). This module does not import torch.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import http.client
import json
import os
import shlex
import shutil
import socket
import tarfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, TextIO

from entrypoint import ExitCode, Failure
from train import file_lock, files
from train import files as file_io
from train.config.schema import DataConfig
from train.file_lock import LockHolder, WaitOutcome

TERMINAL_INTERVAL_S, LINE_INTERVAL_S = 0.2, 10.0


class StatusLine:
    """Writes to `stream`: facts with `line`, and with `passing` what the next moment replaces."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._terminal = stream.isatty()
        self._pause = TERMINAL_INTERVAL_S if self._terminal else LINE_INTERVAL_S
        self._last = clock()
        self._open = False  # a line that is not ended

    def line(self, text: str) -> None:
        """A line that stays."""
        self._write(f"{text}\n", open_after=False)
        self._last = self._clock()

    def passing(self, text: str) -> None:
        """A line that need not stay: left out where the last one is too near."""
        if self._clock() - self._last >= self._pause:
            self._last = self._clock()
            self._write(text if self._terminal else f"{text}\n", open_after=self._terminal)

    def end(self) -> None:
        """Leave the console clean for others."""
        self._write("", open_after=False)

    def _write(self, text: str, *, open_after: bool) -> None:
        self._stream.write(("\r\x1b[K" if self._open else "") + text)
        self._stream.flush()
        self._open = open_after


CHUNK_BYTES = 1 << 20  # bytes at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFile:
    """A file that torchvision reads. path: below data.root; inside a .tar.gz it has the same name.

    What is published of it: its md5 (CIFAR), or its size in bytes (MNIST: a header and so many images).
    """

    path: str
    md5: str | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedArchive:
    """A published file, which holds `files`: a .tar.gz several, a .gz one. It stays beside them.

    path: where it is kept, below data.root. folders: addresses whose `/NAME` is this file, the best first.
    size: in bytes.
    """

    path: str
    md5: str
    size: int
    folders: tuple[str, ...]
    files: tuple[PublishedFile, ...]

    @property
    def name(self) -> str:
        """Its file name, here and at its address."""
        return self.path.rpartition("/")[2]

    def addresses(self, mirror: str | None) -> tuple[str, ...]:
        """Where it is found: below data.mirror where there is one, else where it is published."""
        folders = self.folders if mirror is None else (mirror,)
        return tuple(f"{folder.rstrip('/')}/{self.name}" for folder in folders)


def _cifar_archives(name: str, md5: str, size: int, folder: str, files: dict[str, str]) -> tuple[PublishedArchive, ...]:
    inside = tuple(PublishedFile(path=f"{folder}/{name}", md5=md5) for name, md5 in files.items())
    return (
        PublishedArchive(path=name, md5=md5, size=size, folders=("https://www.cs.toronto.edu/~kriz",), files=inside),
    )


# Bytes once unpacked: images are a header of 16 bytes and 28 x 28 pixels each, labels one of 8 bytes and one byte each.
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
    """Raises Failure (USAGE), where there is nothing to download."""
    if data.name not in PUBLISHED_ARCHIVES:
        raise Failure(
            f"data.name {data.name} is not a published data set: there is nothing to download",
            expected=f"data.name: one of {', '.join(PUBLISHED_ARCHIVES)}",
            fix="set data.name to one of these, or leave data.download out",
            code=ExitCode.USAGE,
        )


def is_unpacked(archive: PublishedArchive, root: Path) -> bool:
    """Whether all that `archive` holds lies unpacked below `root`: the published hashes (all is read) or sizes."""
    return all(is_intact(file, root) for file in archive.files)


def is_intact(file: PublishedFile, root: Path) -> bool:
    """Whether this file is there with its published hash or size; False where it cannot be read."""
    path = root / file.path
    try:
        return path.is_file() and path.stat().st_size == file.size if file.md5 is None else file_md5(path) == file.md5
    except OSError:
        return False


def files_exist(name: str, root: Path) -> bool:
    """Whether every file of data set `name` has its name below `root`; nothing is read, for `train check`."""
    return all(_archive_files_exist(archive, root) for archive in PUBLISHED_ARCHIVES[name])


def refuse_missing_files(data: DataConfig) -> None:
    """Raises Failure (NO_INPUT), naming the first file that is not below data.root and two ways to bring it there."""
    if files_exist(data.name, root := Path(data.root)):
        return
    first = next(
        (archive for archive in PUBLISHED_ARCHIVES[data.name] if not _archive_files_exist(archive, root)),
        PUBLISHED_ARCHIVES[data.name][0],
    )
    path = next((root / file.path for file in first.files if not os.path.isfile(root / file.path)), root)
    command = fetch_command(data.name, root)
    raise Failure(
        f"data.name {data.name}: its files are not in data.root",
        found=f"no {path.absolute()}",
        expected=f"what torchvision unpacks from {first.name} (md5 {first.md5})",
        fix=f"run `{command}` where there is a network; without one, put {first.name} at {root / first.path} first",
        code=ExitCode.NO_INPUT,
    )


def fetch_command(name: str, root: Path) -> str:
    """What a user types to bring data set `name` into `root`."""
    return f"train data fetch data.name={name} data.root={shlex.quote(str(root))}"


def _archive_files_exist(archive: PublishedArchive, root: Path) -> bool:
    return all(os.path.isfile(root / file.path) for file in archive.files)


def file_md5(path: Path) -> str:
    """In hexadecimal. Raises OSError."""
    digest = hashlib.md5(usedforsecurity=False)  # what is published; against accidents, and FIPS systems allow it so
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


TEMPORARY_PREFIX = f"{files.TEMPORARY_PREFIX}fetch-"


def unpack_archive(archive: PublishedArchive, root: Path) -> None:
    """Put the files that `archive` holds in their places below `root`. Only they are read out of it, by name.

    Raises:
        Failure: DATA, where it does not hold them whole; SECURITY, where a name or a link in it leads elsewhere.
        OSError: where the disk refuses.
    """
    try:
        if archive.name.endswith(".tar.gz"):
            _untar(archive, root)
        else:
            _gunzip(archive, root)
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise _damaged_archive_failure(archive, f"{type(error).__name__}: {error}") from error


def _untar(archive: PublishedArchive, root: Path) -> None:
    with tarfile.open(root / archive.path, "r:gz") as tar:
        members = {member.name: member for member in tar}
        _refuse_unsafe_members(archive, members.values())
        for file in archive.files:
            member = members.get(file.path)
            source = tar.extractfile(member) if member and member.isreg() else None
            if source is None:
                raise _damaged_archive_failure(archive, f"there is no file {file.path} in it")
            with source:
                _extract_file(archive, file, source, root)


def _gunzip(archive: PublishedArchive, root: Path) -> None:
    (file,) = archive.files
    with gzip.open(root / archive.path) as source:
        _extract_file(archive, file, source, root)


def _extract_file(
    archive: PublishedArchive, file: PublishedFile, source: IO[bytes] | gzip.GzipFile, root: Path
) -> None:
    """Copy one file out, and let it appear if it is the published one."""
    digest, size = hashlib.md5(usedforsecurity=False), 0
    place = root / file.path
    place.parent.mkdir(parents=True, exist_ok=True)
    with write_atomically(place) as stream:
        while chunk := source.read(CHUNK_BYTES):
            stream.write(chunk)
            digest.update(chunk)
            size += len(chunk)
        if file.md5 not in (None, digest.hexdigest()) or file.size not in (None, size):
            raise _damaged_archive_failure(archive, f"{file.path} in it has {size} bytes and md5 {digest.hexdigest()}")


@contextmanager
def write_atomically(place: Path) -> Iterator[IO[bytes]]:
    """A stream whose file appears at `place` once the block has ended well, and is fsynced; else nothing is left.

    Raises:
        OSError: where the disk refuses.
    """
    temporary = place.with_name(f"{TEMPORARY_PREFIX}{place.name}-{os.urandom(4).hex()}")
    try:
        with temporary.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        files.retry_transient_errors(lambda: os.replace(temporary, place))
        files.fsync_folder(place.parent)
    finally:
        files.remove(temporary)


def remove_partial_files(archive: PublishedArchive, root: Path) -> None:
    """Remove what killed processes left of `archive` and its files. Call it only where no other process is at work."""
    for place in (archive.path, *(file.path for file in archive.files)):
        for left in (root / place).parent.glob(f"{TEMPORARY_PREFIX}{(root / place).name}-*"):
            files.remove(left)


def _refuse_unsafe_members(archive: PublishedArchive, members: Iterable[tarfile.TarInfo]) -> None:
    """What `tarfile.data_filter` would refuse, and all links and devices: a data set has none."""
    for member in members:
        path = PurePosixPath(member.name)
        if not (member.isreg() or member.isdir()) or path.is_absolute() or ".." in path.parts:
            raise Failure(
                f"{archive.name} holds an entry that leads out of its folder, or is no plain file",
                found=member.name + (f" -> {member.linkname}" if member.linkname else ""),
                expected="plain files and folders",
                fix="remove this file, and fetch the published one",
                code=ExitCode.SECURITY,
            )


def _damaged_archive_failure(archive: PublishedArchive, found: str) -> Failure:
    return Failure(
        f"{archive.name} cannot be unpacked",
        found=found,
        expected="the published files",
        fix=f"remove {archive.name} below data.root, and start again: it is fetched anew",
        code=ExitCode.DATA,
    )


STALL_TIMEOUT_S = 60.0  # without one byte


class DownloadError(Exception):
    """Why an address gives nothing, in words. wrong: it gave something else than what is published."""

    def __init__(self, what: str, *, wrong: bool = False) -> None:
        super().__init__(what)
        self.wrong = wrong


def download_archive(address: str, archive: PublishedArchive, place: Path, progress: Callable[[int], None]) -> None:
    """Put what `address` has at `place`, if it is `archive`; otherwise leave nothing, and what was there as it was.

    Args:
        progress: called with the bytes that arrived so far, at every piece.

    Raises:
        Unusable: where the address does not give the published file.
        OSError: where the disk, not the network, refuses.
    """
    with write_atomically(place) as stream:
        digest, size, beginning = hashlib.md5(usedforsecurity=False), 0, b""
        with closing(download_chunks(address, most=2 * archive.size)) as arriving:
            for chunk in arriving:
                stream.write(chunk)
                digest.update(chunk)
                size, beginning = size + len(chunk), beginning or chunk[:64]
                progress(size)
        if digest.hexdigest() != archive.md5:
            page = " (a web page: of a proxy, or of a login?)" if beginning.lstrip().startswith(b"<") else ""
            what = f"not the published file: {size} bytes with md5 {digest.hexdigest()}{page}"
            raise DownloadError(what, wrong=True)


def download_chunks(address: str, *, most: int) -> Generator[bytes, None, None]:
    """The bytes at `address`, as they arrive. Raises Unusable, where they do not come, or not to their end."""
    received = 0
    with _open_url(address) as response:
        promised = response.headers.get("Content-Length")
        while chunk := _read_chunk(response, received):
            received += len(chunk)
            if received > most:
                raise DownloadError(f"more than {most} bytes: not the published file", wrong=True)
            yield chunk
    if promised is not None and promised.isdecimal() and received < int(promised):
        raise DownloadError(f"the connection ended after {received} of {promised} bytes")


def _open_url(address: str) -> Any:
    try:
        request = urllib.request.Request(address, headers={"User-Agent": "train-image"})
        return urllib.request.build_opener(SafeRedirectHandler).open(request, timeout=STALL_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        error.close()
        raise DownloadError(f"the server answers {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DownloadError(_describe_error(error)) from error


def _read_chunk(response: Any, received: int) -> bytes:
    """What has arrived, without waiting for a whole chunk: so that a slow server is seen to be at work."""
    try:
        arrived: bytes = response.read1(CHUNK_BYTES) if hasattr(response, "read1") else response.read(CHUNK_BYTES)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DownloadError(f"{_describe_error(error)}, after {received} bytes") from error
    return arrived


def _describe_error(error: Exception) -> str:
    """What a person says of it: urllib wraps the reason, and a time-out says only that it timed out."""
    reason = getattr(error, "reason", None)
    inner = reason if isinstance(reason, Exception) else error
    if isinstance(inner, TimeoutError):
        return f"no answer within {STALL_TIMEOUT_S:g} s"
    if isinstance(inner, socket.gaierror):
        return "its name cannot be resolved: no network, or no such host"
    return str(getattr(inner, "strerror", None) or inner or type(inner).__name__)


class SafeRedirectHandler(urllib.request.HTTPRedirectHandler):
    """Redirects are followed, but neither from https to http nor to anything else."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """Refuse by Unusable."""
        if not newurl.startswith("https://" if req.type == "https" else ("http://", "https://")):
            fp.close()
            raise DownloadError(f"the server sends on to {newurl}, which is not safe")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_FIX_NOT_WRITABLE = "set data.root to a folder that you may write (in a container: mount one with -v or --bind)"
_FIX_DISK_FULL = "free space there, or set data.root to another file system"
_FIX_IO_ERROR = "look at the file system (dmesg, mount), then start again: nothing half was kept"


def ensure_downloaded(data: DataConfig, teller: StatusLine) -> None:
    """Return once data set `data.name` lies whole below `data.root`; at once, and without a word, where it does.

    Of all processes that ask, on all nodes that see the folder, one fetches and the others wait for it.

    Raises:
        Failure: USAGE for a data set that is not published, NO_INPUT where no address answers, DATA for other files
            than the published ones, OUTPUT or IO where data.root cannot be written.
    """
    refuse_unpublished(data)
    root, waited = Path(data.root), None
    place = root / f".fetch-{data.name}"
    while missing := [archive for archive in PUBLISHED_ARCHIVES[data.name] if not is_unpacked(archive, root)]:
        _raise_recorded_failure(place, waited, data)
        with _translate_os_errors(root):
            root.mkdir(parents=True, exist_ok=True)
            held = file_lock.acquire_lock(place, waited)
        if held is None:
            waited = file_lock.wait_for_release(place, lambda holder: teller.passing(_waiting_message(data, holder)))
            continue
        with held.held(), _record_failure(place, held.holder, data):
            for archive in missing:
                with _translate_os_errors(root):
                    _fetch_archive(archive, missing, data, teller)
    teller.end()


def _fetch_archive(
    archive: PublishedArchive, missing: list[PublishedArchive], data: DataConfig, teller: StatusLine
) -> None:
    """Under the lease: fetch one archive, unless it is there, and unpack it."""
    root = Path(data.root)
    place = root / archive.path
    place.parent.mkdir(parents=True, exist_ok=True)
    remove_partial_files(archive, root)
    if is_unpacked(archive, root):  # while this process was asking for the lease
        return
    _refuse_full_disk(archive, root)
    found = file_md5(place) if place.exists() else None
    if found != archive.md5:
        if found:
            teller.line(f"{place} is there, but with md5 {found} instead of {archive.md5}: it is fetched again")
        _download_from_mirrors(archive, missing, data, teller)
    teller.line(f"{archive.name}: verified, unpacking into {root}")
    unpack_archive(archive, root)


def _download_from_mirrors(
    archive: PublishedArchive, missing: list[PublishedArchive], data: DataConfig, teller: StatusLine
) -> None:
    """From the first address that has it."""

    def progress(received: int) -> None:
        teller.passing(f"{archive.name}: {received / 1e6:.1f} of {archive.size / 1e6:.1f} MB")

    failed, wrong = [], False
    for address in archive.addresses(data.mirror):
        teller.line(f"fetching {address} ({archive.size / 1e6:.1f} MB)")
        try:
            return download_archive(address, archive, Path(data.root) / archive.path, progress)
        except DownloadError as why:
            failed.append(f"{address}: {why}")
            wrong = wrong or why.wrong
    code = ExitCode.DATA if wrong else ExitCode.NO_INPUT
    what = f"{archive.name} cannot be fetched for data.name={data.name}"
    expected = f"{archive.size} bytes with md5 {archive.md5}"
    raise Failure(what, found="; ".join(failed), expected=expected, fix=manual_download_fix(missing, data), code=code)


def manual_download_fix(missing: list[PublishedArchive], data: DataConfig) -> str:
    """What to do without a network: the command for where there is one, or which files to put where."""
    command = fetch_command(data.name, Path(data.root).absolute())
    folder = (Path(data.root) / missing[0].path).parent.absolute()
    files = ", ".join(f"{archive.name} (md5 {archive.md5}, from {archive.addresses(None)[0]})" for archive in missing)
    return (
        f"where there is a network (on a cluster: its login node) run `{command}`; or put {files} into {folder} and "
        "start again: what is there is verified and unpacked; or set data.mirror to the address of a folder that has it"
    )


def _waiting_message(data: DataConfig, holder: LockHolder | None) -> str:
    return f"waiting for {holder or 'another process'}, which fetches {data.name} into {data.root}"


def _refuse_full_disk(archive: PublishedArchive, root: Path) -> None:
    """Raises Failure (IO) before an hour of downloading, instead of after it."""
    need = archive.size + sum(file.size or archive.size // len(archive.files) for file in archive.files)
    if shutil.disk_usage(root).free < need:
        short = _os_error_failure(OSError(errno.ENOSPC, "too little"), root)
        short.expected = f"{file_io.format_bytes(need)} free for {archive.name} and what it holds"
        raise short


@contextmanager
def _translate_os_errors(root: Path) -> Iterator[None]:
    """Turn an OSError below data.root into its Failure."""
    try:
        yield
    except OSError as error:
        raise _os_error_failure(error, Path(error.filename or root)) from error


def _os_error_failure(error: OSError, path: Path) -> Failure:
    failure = file_io.os_error_failure(error, path)
    if failure.code == ExitCode.OUTPUT:
        failure.fix = _FIX_NOT_WRITABLE
    elif failure.code == ExitCode.IO:
        failure.fix = _FIX_DISK_FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else _FIX_IO_ERROR
    return failure


@contextmanager
def _record_failure(place: Path, holder: LockHolder, data: DataConfig) -> Iterator[None]:
    """Leave word of a failure for those who wait: they need not try the same again, one after the other."""
    note = place.with_name(f"{place.name}.failed")
    file_io.remove(note)
    try:
        yield
    except Failure as failure:
        if failure.code != ExitCode.STOPPED:
            with suppress(Failure, OSError):
                told = {"token": holder.token, "mirror": data.mirror, "by": str(holder)}
                file_io.write_json(note, told | {"failure": failure.as_json()})
        raise


def _raise_recorded_failure(place: Path, waited: WaitOutcome | None, data: DataConfig) -> None:
    """Raises the Failure of the process that was waited for, where it asked the same addresses."""
    if waited is None or waited.token is None:
        return
    try:
        note = json.loads(place.with_name(f"{place.name}.failed").read_bytes())
        same = (note["token"], note["mirror"]) == (waited.token, data.mirror)
        failure, by = note["failure"], note["by"]
        again = Failure(
            f"{failure['what']} ({by} tried)",
            fix=failure["fix"],
            code=ExitCode(failure["code"]),
            found=failure.get("found"),
            expected=failure.get("expected"),
        )
    except (OSError, ValueError, TypeError, KeyError):
        return
    if same:
        raise again
