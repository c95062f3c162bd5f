"""A published file comes from its address to its place, whole and with its hash, or not at all. Standard library only.

Proxies: urllib's rules (http_proxy, https_proxy, no_proxy). TLS certificates are always verified (SSL_CERT_FILE and
SSL_CERT_DIR name other authorities).
"""

from __future__ import annotations

import hashlib
import http.client
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import Any

from train.fetching import unpack
from train.fetching.archives import CHUNK, Archive

STALL_S = 60.0  # without one byte


class Unusable(Exception):
    """Why an address gives nothing, in words. wrong: it gave something else than what is published."""

    def __init__(self, what: str, *, wrong: bool = False) -> None:
        super().__init__(what)
        self.wrong = wrong


def bring(address: str, archive: Archive, place: Path, progress: Callable[[int], None]) -> None:
    """Put what `address` has at `place`, if it is `archive`; otherwise leave nothing, and what was there as it was.

    Args:
        progress: called with the bytes that arrived so far, at every piece.

    Raises:
        Unusable: where the address does not give the published file.
        OSError: where the disk, not the network, refuses.
    """
    with unpack.appearing(place) as stream:
        digest, size, beginning = hashlib.md5(usedforsecurity=False), 0, b""
        with closing(chunks(address, most=2 * archive.size)) as arriving:
            for chunk in arriving:
                stream.write(chunk)
                digest.update(chunk)
                size, beginning = size + len(chunk), beginning or chunk[:64]
                progress(size)
        if digest.hexdigest() != archive.md5:
            page = " (a web page: of a proxy, or of a login?)" if beginning.lstrip().startswith(b"<") else ""
            what = f"not the published file: {size} bytes with md5 {digest.hexdigest()}{page}"
            raise Unusable(what, wrong=True)


def chunks(address: str, *, most: int) -> Generator[bytes, None, None]:
    """The bytes at `address`, as they arrive. Raises Unusable, where they do not come, or not to their end."""
    received = 0
    with _opened(address) as response:
        promised = response.headers.get("Content-Length")
        while chunk := _read(response, received):
            received += len(chunk)
            if received > most:
                raise Unusable(f"more than {most} bytes: not the published file", wrong=True)
            yield chunk
    if promised is not None and promised.isdecimal() and received < int(promised):
        raise Unusable(f"the connection ended after {received} of {promised} bytes")


def _opened(address: str) -> Any:
    try:
        request = urllib.request.Request(address, headers={"User-Agent": "train-image"})
        return urllib.request.build_opener(OnlySafely).open(request, timeout=STALL_S)
    except urllib.error.HTTPError as error:
        error.close()
        raise Unusable(f"the server answers {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Unusable(_words(error)) from error


def _read(response: Any, received: int) -> bytes:
    """What has arrived, without waiting for a whole chunk: so that a slow server is seen to be at work."""
    try:
        arrived: bytes = response.read1(CHUNK) if hasattr(response, "read1") else response.read(CHUNK)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Unusable(f"{_words(error)}, after {received} bytes") from error
    return arrived


def _words(error: Exception) -> str:
    """What a person says of it: urllib wraps the reason, and a time-out says only that it timed out."""
    reason = getattr(error, "reason", None)
    inner = reason if isinstance(reason, Exception) else error
    if isinstance(inner, TimeoutError):
        return f"no answer within {STALL_S:g} s"
    if isinstance(inner, socket.gaierror):
        return "its name cannot be resolved: no network, or no such host"
    return str(getattr(inner, "strerror", None) or inner or type(inner).__name__)


class OnlySafely(urllib.request.HTTPRedirectHandler):
    """Redirects are followed, but neither from https to http nor to anything else."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """Refuse by Unusable."""
        if not newurl.startswith("https://" if req.type == "https" else ("http://", "https://")):
            fp.close()
            raise Unusable(f"the server sends on to {newurl}, which is not safe")
        return super().redirect_request(req, fp, code, msg, headers, newurl)
