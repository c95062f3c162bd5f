"""A document becomes files in a folder: the page, its Markdown and the pictures."""

from __future__ import annotations

import os
import re
from pathlib import Path
from stat import S_ISREG
from typing import Final

from entrypoint import ExitCode, Failure
from train.files import durable
from train.report.document import Document
from train.report.markdown import markdown
from train.report.page import MARK, page

PAGE, TEXT = "report.html", "report.md"
OTHER: Final = "write `--output DIR`, a folder that you may write"
PICTURE: Final = re.compile(r"(curves|scaling|gpus|confusion|bench-[0-9]+)(-[a-z0-9-]+)?\.png")  # names that we give


def write(document: Document, folder: Path, *, own: bool) -> list[Path]:
    """Write everything, each file whole or not at all; the paths, the page first.

    own: `folder` is the default place, which may not be a link, nor hold anything else: nobody sent us there. An
    earlier report is replaced, with its pictures; a file of somebody else never.

    Raises:
        Failure: SECURITY for such a link; OUTPUT or IO, where the folder takes no files, or holds other ones.
    """
    if own and folder.is_symlink():
        raise Failure(
            f"{folder} is a symbolic link: the report would be written outside the run's folder",
            found=f"{folder} -> {os.readlink(folder)}",
            fix="remove the link, or write `--output DIR`",
            code=ExitCode.SECURITY,
        )
    files = {PAGE: page(document).encode(), TEXT: markdown(document).encode()}
    files |= {f"{picture.name}.png": picture.png for picture in document.pictures()}
    try:
        old = _earlier(folder, {*files}, own=own)
        durable.prepare(folder, need=sum(map(len, files.values())))
        for name, data in files.items():
            durable.write(folder / name, data)
        for name in old - {*files}:
            durable.remove(folder / name)
    except Failure as failure:
        if failure.code == ExitCode.OUTPUT and "--output" not in (failure.fix or ""):
            failure.fix = OTHER
        raise
    return [folder / name for name in files]


def _earlier(folder: Path, names: set[str], *, own: bool) -> set[str]:
    """The pictures of an earlier report in `folder`; refused where there are files of somebody else in their place."""
    try:
        there = {name for name in os.listdir(folder) if not name.startswith(durable.TEMPORARY)}
    except OSError:  # none there, or `durable.prepare` says why not
        return set()
    if _is_ours(folder / PAGE):
        return {name for name in there if PICTURE.fullmatch(name)}
    if others := there if own else there & names:
        raise Failure(
            f"{folder} holds files that are no report",
            found=", ".join(sorted(others)[:5]),
            fix="write `--output DIR`, a folder of its own",
            code=ExitCode.OUTPUT,
        )
    return set()


def _is_ours(page: Path) -> bool:
    try:
        if not S_ISREG(page.lstat().st_mode):
            return False
        with page.open("rb") as file:
            return MARK.encode() in file.read(4096)
    except OSError:
        return False
