"""Published data sets as a mirror should not give them, fetched into data.root."""

from __future__ import annotations

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


def packed(name: str, data: bytes) -> bytes:
    """A .tar.gz of one file."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def table(body: bytes) -> dict[str, tuple[PublishedArchive, ...]]:
    """What is published, if `body` is."""
    file = PublishedFile(path="inside/a", md5=hashlib.md5(b"a").hexdigest())
    archive = PublishedArchive(
        path=NAME, md5=hashlib.md5(body).hexdigest(), size=len(body), folders=("http://127.0.0.1:9/x",), files=(file,)
    )
    return {**download.PUBLISHED_ARCHIVES, "mnist": (archive,)}


def mirror(body: bytes | None) -> Callable[[Path], object]:
    """The folder m has this; its address is {here}."""

    def make(folder: Path) -> dict[str, str]:
        (folder / "m").mkdir()
        if body is not None:
            (folder / "m" / NAME).write_bytes(body)
        return {"here": str(folder)}

    return make


GOOD = packed("inside/a", b"a")


def case(name: str, body: bytes | None, code: int, *says: str) -> Case:
    door = standing_in(through_train, download, "PUBLISHED_ARCHIVES", table(GOOD))
    return fetch(id=f"fetch-{name}", door=door, prepare=mirror(body), code=code, says=says, fix="data.mirror", row="45")


def taken(folder: Path) -> dict[str, str]:
    (folder / "d").write_text("a file")
    return mirror(GOOD)(folder)  # type: ignore[return-value]


CASES = [
    case("nothing-there", None, 66, "cannot be fetched", "No such file"),
    case("another-file", packed("x", b"x"), 65, "not the published file", "md5"),
    case("a-web-page", b"<html>log in</html>", 65, "a web page"),
    case("endless", GOOD + bytes(10 * len(GOOD)), 65, "not the published file"),
    fetch(
        id="fetch-root-is-a-file",
        door=standing_in(through_train, download, "PUBLISHED_ARCHIVES", table(GOOD)),
        prepare=taken,
        code=73,
        says=("cannot write d",),
        fix="data.root",
    ),
]
