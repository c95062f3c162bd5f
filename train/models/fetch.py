"""Downloads published weights, compares their hash, and keeps them as a .safetensors file with their record."""

from __future__ import annotations

import email.message
import hashlib
import re
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import safetensors.torch

from entrypoint import ExitCode, Failure, file_writer, shell_command
from train import files
from train.data.download import DownloadError, StatusLine, open_url, receive_file
from train.models import weights
from train.models.pretrained import HASH_IN_NAME, PublishedWeights, WeightsRecord, read_record

MAX_BYTES: Final = 64 << 30  # a server may send without end; timm's largest file has 30 GB
# The hub answers with a redirect, and names the sha256 of a large file in this header of the answer.
SHA256_HEADER: Final = "X-Linked-Etag"
SHA256: Final = re.compile(r'"?([0-9a-f]{64})"?')


def fetch_weights(published: PublishedWeights, folder: Path, *, mirror: str | None, status: StatusLine) -> Path:
    """Bring published weights into `folder`, unless they are there and can be read; returns their file.

    The file appears complete, or not at all. mirror: the address of a folder that has the published files.

    Raises:
        Failure: NO_INPUT if no address answers, DATA for another file than the published one, OUTPUT or IO if the
            folder cannot be written.
    """
    path = folder / published.file_name
    if path.is_file():
        problem = _find_problem(path, published.record)
        status.line(f"{path} is there" + (f", but {problem}: it is fetched again" if problem else ""))
        if not problem:
            return path
    try:
        files.prepare_folder(folder)
        with tempfile.TemporaryDirectory(prefix=file_writer.TEMPORARY_PREFIX, dir=folder) as temporary:
            file, source, sha256 = _download(published, Path(temporary), folder, mirror, status)
            tensors = {name: tensor.contiguous() for name, tensor in weights.read_weights(file).tensors.items()}
            content = safetensors.torch.save(tensors, published.record.to_metadata(source, sha256))
        with file_writer.replace_file(path) as stream:
            stream.write(content)
    except OSError as error:
        raise files.os_error_failure(error, path) from error
    return path


def _find_problem(path: Path, expected: WeightsRecord) -> str | None:
    """Why the file is not that of these weights, as far as it tells; None if nothing speaks against it."""
    try:
        weights.read_weights(path)
        record = read_record(path, expected.model) or expected
    except Failure as failure:
        if failure.code != ExitCode.DATA:
            raise
        return f"damaged ({failure.found})"
    return None if record.name == expected.name else f"it holds {record.name}"


def _download(
    published: PublishedWeights, temporary: Path, folder: Path, mirror: str | None, status: StatusLine
) -> tuple[Path, str, str]:
    """(file, address, sha256) from the first address that has the published file."""
    names = dict.fromkeys(address.rpartition("/")[2] for address in published.addresses)
    addresses = published.addresses if mirror is None else [f"{mirror.rstrip('/')}/{name}" for name in names]
    failed, wrong = [], False
    for address in addresses:
        status.line(f"fetching {address}")
        file = temporary / address.rpartition("/")[2]
        try:
            expected, sha256 = _download_file(address, file, status.passing)
            status.end()
            described = f"compared with {expected}..." if expected else "nothing published to compare it with"
            status.line(f"{files.format_bytes(file.stat().st_size)}, sha256 {sha256} ({described})")
            return file, address, sha256
        except DownloadError as error:
            failed.append(f"{address}: {error}")
            wrong = wrong or error.wrong
    raise _unreachable_failure(published, folder, failed, ExitCode.DATA if wrong else ExitCode.NO_INPUT)


def _unreachable_failure(published: PublishedWeights, folder: Path, failed: list[str], code: ExitCode) -> Failure:
    name, copy = published.record.name, f"{Path(published.file_name).stem}.pth"
    return Failure(
        f"the weights {name} cannot be fetched",
        found="; ".join(failed),
        expected=f"the file that is published at {published.addresses[-1]}",
        fix=f"on a machine with a network run `{shell_command('train weights fetch', name)}`, or "
        f"`{published.command}`; copy the file that it writes ({published.file_name}, or {copy}) into "
        f"{folder.absolute()}, where model.weights={name} finds it; or give the address of a folder that has the "
        "published file with --mirror",
        code=code,
    )


def _download_file(address: str, file: Path, progress: Callable[[str], None]) -> tuple[str | None, str]:
    """Download one file; returns the published hash (or its beginning) if there is one, and the file's sha256.

    Raises:
        DownloadError: if the address does not give the published file.
        OSError: from the disk.
    """
    redirect, digest, in_name = _RememberHash(), hashlib.sha256(), HASH_IN_NAME.search(address)
    with open_url(address, redirect) as response, file.open("wb") as stream:
        expected = redirect.sha256 or (in_name[1] if in_name else None)
        report = lambda received: progress(f"{file.name}: {received / 1e6:.1f} MB")  # noqa: E731
        receive_file(response, stream, digest, expected, limit=MAX_BYTES, progress=report)
    return expected, digest.hexdigest()


class _RememberHash(urllib.request.HTTPRedirectHandler):
    """Follows redirects, and remembers the sha256 that the first answer names."""

    def __init__(self) -> None:
        self.sha256: str | None = None

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: email.message.Message, newurl: str
    ) -> urllib.request.Request | None:
        if self.sha256 is None and (named := SHA256.fullmatch(headers.get(SHA256_HEADER, ""))):
            self.sha256 = named[1]
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]
