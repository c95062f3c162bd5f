"""A run's folder is looked through for symbolic links: what a run writes stays in it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from entrypoint import ExitCode, Failure
from train.files import refusals
from train.record import claim, record

# What a run makes in its folder, beside the results of an earlier one (`record.RESULTS`).
FOLDERS: Final = ("checkpoints", "errors", "logs", "profile", "report", "tensorboard")


def refuse(run_folder: Path) -> None:
    """Return where nothing that a run writes in `run_folder` is a link. The folder itself, and those above, may be one.

    People link `runs` to the place where there is room: that is their word for where the run is kept. A link inside
    would let a start write, or delete, where nobody sent it.

    Raises:
        Failure: SECURITY, naming the link; as in `refusals.MEANING` for a folder that cannot be read.
    """
    for place in (run_folder, *(run_folder / name for name in FOLDERS)):
        with refusals.told(place, "read"):
            names = _links(place)
        if ours := [name for name in names if place != run_folder or _ours(name)]:
            raise _refused(place / min(ours))


def _links(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_symlink()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _ours(name: str) -> bool:
    return name in (*record.RESULTS, *FOLDERS) or name.startswith((f"{claim.NAME}.", "before-", ".tmp-"))


def _refused(link: Path) -> Failure:
    return Failure(
        f"{link} is a symbolic link: this run would write outside its folder",
        found=f"{link} -> {os.readlink(link)}",
        expected="files and folders of the run's own; run.output_dir itself may be a link",
        fix="remove the link, or set run.output_dir to the place where the run is to be kept",
        code=ExitCode.SECURITY,
    )
