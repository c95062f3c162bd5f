"""A document becomes files in a folder: the page, its Markdown and the pictures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from entrypoint import ExitCode, Failure
from train.files import durable
from train.report.document import Document
from train.report.markdown import markdown
from train.report.page import page

PAGE, TEXT = "report.html", "report.md"
OTHER: Final = "write `--output DIR`, a folder that you may write"


def write(document: Document, folder: Path, *, own: bool) -> list[Path]:
    """Write everything, each file whole or not at all; the paths, the page first.

    own: `folder` is the default place, which may not be a link: nobody sent us there.

    Raises:
        Failure: SECURITY for such a link; OUTPUT or IO, where the folder takes no files.
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
        durable.prepare(folder, need=sum(map(len, files.values())))
        for name, data in files.items():
            durable.write(folder / name, data)
    except Failure as failure:
        if failure.code == ExitCode.OUTPUT:
            failure.fix = OTHER
        raise
    return [folder / name for name in files]
