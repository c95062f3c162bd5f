"""Published data sets as a mirror should not give them, fetched into data.root."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bad.case import Case, standing_in, through_train

from train.data import download
from train.data.download import PublishedArchive, PublishedFile

NAME = "data.tar.gz"
fetch = partial(
    Case,
    line=("data", "fetch", "data.name=mnist", "data.root=d", "data.mirror=file://{here}/m"),
    writes=("d", "d/*"),
)


def packed(*members: tuple[str, bytes, str]) -> bytes:
    """A .tar.gz; a member with a target is a symbolic link."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, data, target in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            if target:
                info.type, info.linkname, info.size = tarfile.SYMTYPE, target, 0
            tar.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def table(body: bytes, *, size: int | None = None, name: str = NAME) -> dict[str, tuple[PublishedArchive, ...]]:
    """What is published, if `body` is."""
    file = PublishedFile(path="inside/a", md5=hashlib.md5(b"a").hexdigest())
    size = len(body) if size is None else size
    told = PublishedArchive(
        path=name, md5=hashlib.md5(body).hexdigest(), size=size, folders=("http://127.0.0.1:9/x",), files=(file,)
    )
    return {**download.PUBLISHED_ARCHIVES, "mnist": (told,)}


def mirror(body: bytes | None, name: str = NAME) -> Callable[[Path], object]:
    """The folder m has this; its address is {here}."""

    def make(folder: Path) -> dict[str, str]:
        (folder / "m").mkdir()
        if body is not None:
            (folder / "m" / name).write_bytes(body)
        return {"here": str(folder)}

    return make


def case(
    name: str, body: bytes | None, published: bytes, code: int, says: tuple[str, ...], fix: str, file: str = NAME
) -> Case:
    door = standing_in(through_train, download, "PUBLISHED_ARCHIVES", table(published, name=file))
    return fetch(id=f"fetch-{name}", door=door, prepare=mirror(body, file), code=code, says=says, fix=fix, row="45")


GOOD = packed(("inside/a", b"a", ""))
# Archives with the published hash that hold something else: id -> (bytes, code, words).
INSIDE: dict[str, tuple[bytes, int, tuple[str, ...]]] = {
    "no-archive": (b"hello", 65, ("data.tar.gz cannot be unpacked",)),
    "cut": (GOOD[:-30], 65, ("data.tar.gz cannot be unpacked",)),
    "no-such-member": (packed(("inside/b", b"a", "")), 65, ("there is no file inside/a in it",)),
    "other-content": (packed(("inside/a", b"b", "")), 65, ("inside/a in it has 1 bytes",)),
    "leads-up": (
        packed(("../../executed", b"x", ""), ("inside/a", b"a", "")),
        77,
        ("leads out of its folder", "../../executed"),
    ),
    "absolute": (packed(("/tmp/executed-by-tar", b"x", "")), 77, ("leads out of its folder", "/tmp/executed-by-tar")),
    "a-link": (packed(("inside", b"", "/"), ("inside/a", b"a", "")), 77, ("inside -> /",)),
}


def taken(folder: Path) -> dict[str, str]:
    (folder / "d").write_text("a file")
    return mirror(GOOD)(folder)  # type: ignore[return-value]


CASES = [
    *(
        case(name, body, body, code, says, "fetched anew" if code == 65 else "remove this file")
        for name, (body, code, says) in INSIDE.items()
    ),
    case(
        "gzip-of-other-size",
        gzip.compress(b"b"),
        gzip.compress(b"b"),
        65,
        ("cannot be unpacked",),
        "anew",
        "a.gz",
    ),
    case("nothing-there", None, GOOD, 66, ("cannot be fetched", "No such file"), "data.mirror"),
    case("another-file", packed(("x", b"x", "")), GOOD, 65, ("not the published file", "md5"), "data.mirror"),
    case("a-web-page", b"<html>log in</html>", GOOD, 65, ("a web page",), "data.mirror"),
    case("endless", GOOD + bytes(10 * len(GOOD)), GOOD, 65, ("not the published file",), "data.mirror"),
    fetch(
        id="fetch-root-is-a-file",
        door=standing_in(through_train, download, "PUBLISHED_ARCHIVES", table(GOOD)),
        prepare=taken,
        code=73,
        says=("cannot write d",),
        fix="data.root",
    ),
    fetch(
        id="fetch-no-room",
        door=standing_in(through_train, download, "PUBLISHED_ARCHIVES", table(GOOD, size=10**18)),
        prepare=mirror(GOOD),
        code=74,
        says=("No space left", "MB free for data.tar.gz"),
        fix="data.root to another file system",
        row="14",
    ),
]
