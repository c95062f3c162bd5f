"""A Prediction holds the likeliest classes of one image file, and is printed as text or JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from train.files import one_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Of one image: the likeliest classes and their probabilities, the first one first."""

    path: Path
    classes: tuple[str, ...]
    probabilities: tuple[float, ...]

    def as_text(self) -> str:
        """Path, class, probability, with tabs between; further classes and theirs behind."""
        pairs = zip(self.classes, self.probabilities, strict=True)
        return "\t".join([one_line(str(self.path)), *(f"{one_line(name)}\t{share:.4f}" for name, share in pairs)])

    def as_json(self, *, ascii_: bool = False) -> str:
        """One object. Bytes of a path that are no text are as in Python: os.fsencode gives them back.

        ascii_: for a stream that takes nothing else.
        """
        pairs = zip(self.classes, self.probabilities, strict=True)
        likeliest = [{"class": name, "probability": share} for name, share in pairs]
        text = json.dumps({"path": str(self.path), **likeliest[0], "top": likeliest}, ensure_ascii=ascii_)
        return text.translate(CONTROL_CHARACTER_ESCAPES).encode(errors="backslashreplace").decode()


# JSON leaves these as they are; readers may take them for the end of a line, and terminals for a command.
CONTROL_CHARACTER_ESCAPES: Final = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), 0x2028, 0x2029)}
