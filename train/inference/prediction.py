"""A Prediction holds the likeliest classes of one image file, and is printed as text or JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from train.files import one_line


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


# JSON does not escape these. A reader may treat them as the end of a line, and a terminal as a command.
CONTROL_CHARACTER_ESCAPES: Final = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), 0x2028, 0x2029)}
