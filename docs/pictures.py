"""A real training becomes the two pictures of the documents: its terminal as SVG, and its report as PNG.

python docs/pictures.py   (needs tmux and chromium)
"""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from PIL import Image

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "docs" / "pictures"
TYPED: Final = "train --device cpu --procs-per-node 2"  # the quickstart, as two processes
REPORTED: Final = "train report runs/quickstart"
COLUMNS, ROWS = 104, 60
REPORT_PIXELS: Final = (1120, 1590)
LIMIT_S: Final = 400
# SGR's colours, for a dark ground.
COLOURS: Final = {
    30: "#6e7681", 31: "#ff7b72", 32: "#3fb950", 33: "#d29922",
    34: "#58a6ff", 35: "#bc8cff", 36: "#39c5cf", 37: "#b1bac4",
}  # fmt: skip
WIDTH, HEIGHT, EDGE = 8.4, 19, 16  # of a letter and around all, in pixels
STYLE: Final = (
    f"text {{font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace; "
    f"fill: #e6edf3; white-space: pre}} .b {{font-weight: bold}} .d {{fill: {COLOURS[30]}}} "
    + " ".join(f".c{number} {{fill: {colour}}}" for number, colour in COLOURS.items())
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How the next letters look: of SGR, as much as our programs use."""

    bold: bool = False
    dim: bool = False
    colour: int | None = None

    def after(self, code: int) -> Look:
        """With one more code of an SGR sequence."""
        if code == 0:
            return Look()
        if code in (1, 2, 22):
            return replace(self, bold=code == 1, dim=code == 2)
        if 30 <= code <= 37 or 90 <= code <= 97:
            return replace(self, colour=30 + code % 10)
        return replace(self, colour=None) if code == 39 else self

    @property
    def classes(self) -> str:
        """Names of CSS classes."""
        colour = "" if self.colour is None else f"c{self.colour}"
        return " ".join(filter(None, ("b" if self.bold else "", "d" if self.dim else "", colour)))


def pieces(lines: Sequence[str]) -> Iterator[tuple[int, int, str, str]]:
    """(row, column, classes, letters) of what a terminal shows; a look lasts beyond the end of a line."""
    look = Look()
    for row, line in enumerate(lines):
        column = 0
        for number, part in enumerate(re.split(r"\x1b\[([\d;]*)m", line)):
            if number % 2:
                for code in part.split(";"):
                    look = look.after(int(code or 0))
            elif part:
                if part.strip():
                    yield row, column, look.classes, part
                column += len(part)


def svg(lines: Sequence[str], columns: int) -> str:
    """The picture of a terminal, each piece in its place whatever the reader's font is."""
    width, height = columns * WIDTH + 2 * EDGE, len(lines) * HEIGHT + 2 * EDGE
    texts = [
        f'<text x="{EDGE + column * WIDTH:.1f}" y="{EDGE + (row + 0.75) * HEIGHT:.1f}" class="{classes}" '
        f'textLength="{len(letters) * WIDTH:.1f}" lengthAdjust="spacingAndGlyphs">{escape(letters)}</text>'
        for row, column, classes, letters in pieces(lines)
    ]
    ground = f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#0d1117"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">'
    return "\n".join([head, f"<style>{STYLE}</style>", ground, *texts, "</svg>", ""])


def on_screen(line: str, folder: Path) -> list[str]:
    """What a terminal shows, with its colours, once `line` was typed in `folder` and has ended."""
    prompt = f"printf '\\033[1;32m$\\033[0m \\033[1m%s\\033[0m\\n' {shlex.quote(line)}"
    shown = f"{prompt}; {line}; tmux wait-for -S ended; sleep 60"
    tmux = ["tmux", "-f", "/dev/null", "-S", str(folder / "tmux")]
    size = ["-x", str(COLUMNS), "-y", str(ROWS)]
    environ = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8", "HOME": str(folder)}
    try:
        new = [*tmux, "new-session", "-d", *size, "-s", "picture", "-c", str(folder), "bash", "-c", shown]
        subprocess.run(new, check=True, timeout=30, env=environ)
        subprocess.run([*tmux, "wait-for", "ended"], check=True, timeout=LIMIT_S)
        look = [*tmux, "capture-pane", "-e", "-p", "-S", "-", "-t", "picture"]
        text = subprocess.run(look, check=True, timeout=30, capture_output=True, text=True).stdout
    finally:
        subprocess.run([*tmux, "kill-server"], check=False, timeout=30)
    return text.rstrip().splitlines()


def photographed(page: Path, home: Path) -> bytes:
    """The upper part of a page, as a small PNG."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from browser import started

    with started(home) as browser:
        browser.open(page, width=REPORT_PIXELS[0])
        whole = Image.open(io.BytesIO(browser.picture())).convert("RGB")
    cut = whole.crop((0, 0, REPORT_PIXELS[0], min(REPORT_PIXELS[1], whole.height)))
    kept = io.BytesIO()
    cut.quantize(256, dither=Image.Dither.NONE).save(kept, "PNG", optimize=True)
    return kept.getvalue()


def main() -> int:
    """Train, report, and write both pictures anew."""
    lacking = [name for name in ("tmux", "chromium") if shutil.which(name) is None]
    if lacking:
        print(f"ERROR: {' and '.join(lacking)} not found\n  fix: apt-get install {' '.join(lacking)}", file=sys.stderr)
        return 69
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="train-") as name:
        folder = Path(name)
        (FOLDER / "terminal.svg").write_text(svg(on_screen(TYPED, folder), COLUMNS))
        report = [str(Path(sys.executable).with_name("train")), *REPORTED.split()[1:]]
        subprocess.run(report, check=True, timeout=LIMIT_S, cwd=folder, stdout=subprocess.DEVNULL)
        page = folder / "runs" / "quickstart" / "report" / "report.html"
        (FOLDER / "report.png").write_bytes(photographed(page, folder / "home"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
