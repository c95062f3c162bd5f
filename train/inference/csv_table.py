"""A CSV table for spreadsheets and programs, which is written whole or not at all.

No cell becomes a formula, and the table is valid UTF-8 whatever the names of the files are.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

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


def _cell(value: Cell) -> Cell:
    return text_cell(value) if isinstance(value, str) else number_cell(value) if isinstance(value, float) else value


def encode(head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> bytes:
    """The table as bytes, its cells as `text_cell` and `number_cell` write them.

    All text is in quotes, so that other separators inside it (`;`) do no harm. The mark of
    UTF-8 comes first: without it Excel reads another encoding.
    Bytes of a path that are no text become escapes such as `\\udcff`.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    writer.writerows(map(_cell, row) for row in (head, *rows))
    return text.getvalue().encode("utf-8-sig", errors="backslashreplace")
