"""A Prediction holds the likeliest classes of one image file, and is written as text, JSON or a row of a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from train.files import one_line
from train.inference import csv_table
from train.inference.csv_table import Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The likeliest classes of one image and their probabilities, in falling order."""

    path: Path
    classes: tuple[str, ...]
    probabilities: tuple[float, ...]

    def as_text(self) -> str:
        """Path, class and probability, separated by tabs; further classes follow."""
        pairs = zip(self.classes, self.probabilities, strict=True)
        return "\t".join([one_line(str(self.path)), *(f"{one_line(name)}\t{share:.4f}" for name, share in pairs)])

    def as_json(self, *, ascii_: bool = False) -> str:
        """One JSON object. Undecodable bytes of a path are surrogates; `os.fsencode` restores them.

        ascii_: escape other characters, for a stream that cannot encode them.
        """
        pairs = zip(self.classes, self.probabilities, strict=True)
        likeliest = [{"class": name, "probability": share} for name, share in pairs]
        text = json.dumps({"path": str(self.path), **likeliest[0], "top": likeliest}, ensure_ascii=ascii_)
        return text.translate(CONTROL_CHARACTER_ESCAPES).encode(errors="backslashreplace").decode()


def encode_table(predictions: Sequence[Prediction], top: int, classes: Sequence[str] = ()) -> bytes:
    """The CSV table of `train predict --csv`: the `top` likeliest classes of each image.

    classes: those that get a column of their own, with their probability; each prediction must hold all of them.
    """
    suffixes = ["", *(f" {number}" for number in range(2, top + 1))]
    head = ["path", *(f"{name}{suffix}" for suffix in suffixes for name in ("prediction", "confidence"))]
    rows = []
    for prediction in predictions:
        row: list[Cell] = [csv_table.path_cell(str(prediction.path))]
        pairs = list(zip(prediction.classes, prediction.probabilities, strict=True))
        for name, probability in pairs[:top]:
            row += [csv_table.text_cell(name), csv_table.number_cell(probability)]
        by_class = dict(pairs)
        rows.append([*row, *(csv_table.number_cell(by_class[name]) for name in classes)])
    return csv_table.encode([*head, *(f"probability of {name}" for name in classes)], rows)


# JSON does not escape these. A reader may treat them as the end of a line, and a terminal as a command.
CONTROL_CHARACTER_ESCAPES: Final = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), 0x2028, 0x2029)}
