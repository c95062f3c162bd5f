"""Names are compared in one Unicode form, NFC: a Mac's archives and file systems write others (NFD).

This module does not import torch.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import unicodedata
from collections.abc import Iterable
from decimal import Decimal
from typing import Final

from entrypoint import list_some

QUOTATION_MARKS: Final = "\"'\u2018\u2019\u201a\u201c\u201d\u201e\u00ab\u00bb"
NUMBER_PATTERN: Final = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?(e[-+]?[0-9]{1,2})?")
INVISIBLE: Final = "\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"  # at an end of a text they mean nothing


def normalize_name(name: str) -> str:
    """The name in NFC."""
    return unicodedata.normalize("NFC", name)


def read_name(text: str) -> str:
    """The name in a cell or a text file: in NFC, without spaces and what is invisible at both ends."""
    return normalize_name(text.strip().strip(INVISIBLE).strip())


def describe_look_alikes(names: Iterable[str], begin: str = "") -> str:
    """The names that a reader takes for each other, as `'Cat' and 'cat'`, behind `begin`; empty if there are none.

    They differ in upper and lower case, in spaces, in what is invisible, in a Unicode form or in quotation marks, or
    are one number (01 and 1.0).
    """
    groups: dict[str, list[str]] = {}
    for name in sorted({*names}):
        look = unicodedata.normalize("NFKC", name).casefold()
        if not name.isascii():
            look = "".join(letter for letter in look if unicodedata.category(letter) != "Cf")
        look = " ".join(look.split()).strip(QUOTATION_MARKS)
        if NUMBER_PATTERN.fullmatch(look):
            look = str(Decimal(look).normalize())
        groups.setdefault(look, []).append(ascii(name))
    alike = [" and ".join(group) for group in groups.values() if len(group) > 1]
    return begin + list_some(alike, separator="; ") if alike else ""


def look_alike_warnings(classes: Iterable[str]) -> tuple[str, ...]:
    """At most one warning of classes that look alike."""
    alike = describe_look_alikes(classes)
    return (f"classes look alike: {alike}. fix: if they are one class, give them one name",) if alike else ()


def nearest_name(name: str, names: Iterable[str], likeness: float = 0.6) -> str | None:
    """The most similar of `names`; None if none has this likeness (0 to 1)."""
    lowered = {candidate.lower(): candidate for candidate in reversed([*names])}  # of two alike the first
    return next((lowered[close] for close in difflib.get_close_matches(name.lower(), lowered, 1, likeness)), None)


def other_form_fix(path: str | os.PathLike[str]) -> str:
    """The beginning of a fix, for a path that is on the disk in another Unicode form; empty for any other path."""
    absolute = os.path.abspath(path)
    stored = find_file(absolute, {}) or absolute
    return "" if stored == absolute else f"write it in the Unicode form of the disk, in YAML {json.dumps(stored)}; or "


def find_file(path: str, listed: dict[str, dict[str, str]]) -> str | None:
    """The path of the file whose names are those of `path` in any Unicode form; None if there is none.

    listed: the names in the folders that were searched before, by their NFC.
    """
    if os.path.lexists(path):
        return path
    above, name = os.path.split(path)
    folder = find_file(above, listed) if name else None
    if folder is None:
        return None
    if folder not in listed:
        try:
            listed[folder] = {normalize_name(entry): entry for entry in os.listdir(folder)}
        except (OSError, ValueError):  # ValueError: NUL
            listed[folder] = {}
    entry = listed[folder].get(normalize_name(name))
    return None if entry is None else os.path.join(folder, entry)
