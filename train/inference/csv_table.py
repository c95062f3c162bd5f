"""A CSV table for spreadsheets and programs, which is written whole or not at all.

No cell becomes a formula, and the table is valid UTF-8 whatever the names of the files are.
"""

from __future__ import annotations

import csv
import io
import math
import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from entrypoint import ExitCode, Failure
from train import files

SUFFIX: Final = ".csv"
PER_IMAGE_OPTION: Final = "--per-image"  # of `train eval`
PREDICT_OPTION: Final = "--csv"  # of `train predict`
# A spreadsheet computes a cell that begins so (OWASP, "CSV Injection"), also in its full-width form.
FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
SIGNIFICANT_DIGITS: Final = 6
Cell = str | int | float


def path_cell(path: str) -> str:
    """A path that no spreadsheet takes for a formula, and that still leads to the same file."""
    return f"./{path}" if path.startswith(FORMULA_STARTS) else path


def text_cell(text: str) -> str:
    """A name that no spreadsheet takes for a formula: an apostrophe comes first, unless it is a number."""
    if not text.startswith(FORMULA_STARTS):
        return text
    with suppress(ValueError):
        if text.isascii() and text.isprintable() and math.isfinite(float(text)):
            return text
    return f"'{text}"


def number_cell(value: float) -> float | str:
    """The number with six significant digits; empty for NaN and infinities."""
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}") if math.isfinite(value) else ""


def encode(head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> bytes:
    """The table as bytes. All text is in quotes, so that other separators inside it (`;`) do no harm.

    Bytes of a path that are no text become escapes such as `\\udcff`.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue().encode(errors="backslashreplace")


def refuse_unusable_file(path: Path, option: str) -> None:
    """Refuse, before anything is computed, a file that cannot be written or should not be replaced.

    Raises:
        Failure: USAGE for a name without .csv; OUTPUT for a folder, a link or a device, and where this user may not
            write.
    """
    if path.suffix.lower() != SUFFIX:
        raise Failure(
            f"{option} takes the name of a {SUFFIX} file",
            found=str(path),
            fix=f"write {option} {path.name or 'images'}{SUFFIX}",
            code=ExitCode.USAGE,
        )
    if not os.path.isdir(path.parent):
        raise _unusable_failure(path, f"{path.parent} is no folder", f"mkdir -p {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise _unusable_failure(path, f"{path.parent} is not writable", _other_file(option))
    if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
        raise _unusable_failure(path, "it is there, and no plain file", _other_file(option))


def write(path: Path, table: bytes, option: str) -> None:
    """Replace the file by the table, which then is whole.

    Raises:
        Failure: IO or OUTPUT, with a fix that names the option.
    """
    try:
        files.write_atomic(path, table)
    except Failure as failure:
        failure.fix = f"free space there, or name a file in a folder that you may write: {_other_file(option)}"
        raise


def _other_file(option: str) -> str:
    return f"write {option} DIR/NAME{SUFFIX}, in a folder that you may write"


def _unusable_failure(path: Path, reason: str, fix: str) -> Failure:
    return Failure(f"cannot write {path}", found=reason, fix=fix, code=ExitCode.OUTPUT)
