"""Made-up data sets in the published layout, small, and a table of them to stand in for the published one."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pickle
import random
import struct
import tarfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from train.data.download import PUBLISHED_ARCHIVES, PublishedArchive, PublishedFile

TRAINING, TEST = 200, 50

# The command `train` with the stand-in table, with short waits, and saying at once for whom.
DRIVER = """
import json, sys
from train.__main__ import main
from train.data import download
from train.data.download import PublishedArchive, PublishedFile
from train import file_lock
def table(path):
    for name, rows in json.load(open(path)).items():
        files = [tuple(PublishedFile(**file) for file in row.pop("files")) for row in rows]
        yield name, tuple(PublishedArchive(**row, files=inside) for row, inside in zip(rows, files))
download.PUBLISHED_ARCHIVES = dict(table(sys.argv.pop(1)))
file_lock.POLL_S, download.LINE_INTERVAL_S = 0.02, 0.1
sys.exit(main())
"""


def stand_in(name: str) -> tuple[tuple[PublishedArchive, ...], dict[str, bytes]]:
    """A table's entry for data set `name` with made-up content, and its archives' bytes by file name."""
    made = _cifar(name) if name.startswith("cifar") else _mnist(name)
    archives, bodies = [], {}
    for real, (inside, body) in zip(PUBLISHED_ARCHIVES[name], made, strict=True):
        files = tuple(PublishedFile(path=file.path, md5=file.md5 and _md5(inside[file.path]), size=file.size and
                           len(inside[file.path])) for file in real.files)  # fmt: skip
        archives.append(
            PublishedArchive(
                path=real.path, md5=_md5(body), size=len(body), folders=("http://127.0.0.1:9/none",), files=files
            )
        )
        bodies[real.name] = body
    return tuple(archives), bodies


def write_table(path: Path, table: Mapping[str, tuple[PublishedArchive, ...]]) -> Path:
    """For DRIVER."""
    path.write_text(json.dumps({name: [asdict(archive) for archive in rows] for name, rows in table.items()}))
    return path


def tar_gz(files: Mapping[str, bytes]) -> bytes:
    """A .tar.gz of plain files."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, body in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
    return stream.getvalue()


def _cifar(name: str) -> list[tuple[dict[str, bytes], bytes]]:
    (archive,) = PUBLISHED_ARCHIVES[name]
    classes, key = (10, "label") if name == "cifar10" else (100, "fine_label")
    inside: dict[str, bytes] = {}
    for file in archive.files:
        numbers = random.Random(file.path)
        count = TEST if "test" in file.path else TRAINING
        content = {"data": _pixels(numbers, count), f"{key}s": [i % classes for i in range(count)]}
        names = {f"{key}_names": [f"class {i}" for i in range(classes)]}
        inside[file.path] = pickle.dumps(names if file.path.endswith("meta") else content)
    return [(inside, tar_gz({**inside, f"{archive.files[0].path.partition('/')[0]}/readme.html": b"<p>"}))]


def _pixels(numbers: random.Random, count: int) -> object:
    import numpy

    return numpy.frombuffer(numbers.randbytes(count * 3072), numpy.uint8).reshape(count, 3072)


def _mnist(name: str) -> list[tuple[dict[str, bytes], bytes]]:
    made = []
    for archive in PUBLISHED_ARCHIVES[name]:
        path = archive.files[0].path
        count = TRAINING if "train" in path else TEST
        pixels = random.Random(path).randbytes(count * 784)
        images = struct.pack(">4i", 0x803, count, 28, 28) + pixels
        labels = struct.pack(">2i", 0x801, count) + bytes(i % 10 for i in range(count))
        body = images if "images" in path else labels
        made.append(({path: body}, gzip.compress(body, mtime=0)))
    return made


def _md5(body: bytes) -> str:
    return hashlib.md5(body).hexdigest()


def left(root: Path) -> set[str]:
    """The files below a folder."""
    return {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}


def everything(table: tuple[PublishedArchive, ...]) -> set[str]:
    """The files that a fetched data set has."""
    return {archive.path for archive in table} | {file.path for archive in table for file in archive.files}
