"""A document becomes one HTML page that holds its pictures: no script, no network, fit for a screen and for paper."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Sequence
from html import escape
from typing import Any, Final

from train.plotting.paper import DPI
from train.report.document import Block, Document, Facts, Picture, Section, Table, Words

# The browser is told to load and run nothing, should a text ever get past `escape`.
POLICY: Final = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
MARK: Final = '<meta name="generator" content="train report">'  # by which we know our own pages
SMALL: Final = 510  # pixels: two such pictures stand beside each other
NAME: Final = 30  # letters
LONG: Final = 20  # facts: more stand in two columns
SCREEN_DPI: Final = 96  # what a browser calls an inch
STYLE: Final = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 1.5rem 1.25rem 3rem; background: #fff; color: #111827;
  font: 15px/1.5 system-ui, "Segoe UI", "Liberation Sans", "DejaVu Sans", Arial, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.65rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; padding-bottom: .25rem; border-bottom: 2px solid #e5e7eb; }
p { margin: .6rem 0; max-width: 50rem; }
.made { color: #6b7280; font-size: .85rem; margin: 0 0 1rem; }
.caution { background: #fef2f2; border-left: 4px solid #b91c1c; padding: .6rem .9rem; max-width: none; }
.scroll { overflow-x: auto; margin: .6rem 0; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem .3rem 0; text-align: right; vertical-align: top; border-bottom: 1px solid #e5e7eb;
  overflow-wrap: normal; }
th { font-weight: 600; color: #374151; border-bottom-color: #9ca3af; }
th.w, td.w { text-align: left; }
td.w { overflow-wrap: anywhere; min-width: 8rem; }
td.w + td.w { min-width: 5.5rem; }
.names td:first-child { white-space: nowrap; }
dl { display: grid; grid-template-columns: minmax(8rem, max-content) 1fr; gap: .2rem 1.2rem; margin: .6rem 0;
  font-size: .92rem; }
dt { color: #4b5563; }
dd { margin: 0; }
.long { display: block; columns: 25rem 2; column-gap: 2.5rem; font-size: .85rem; }
.long div { display: grid; grid-template-columns: 15.5rem 1fr; gap: 1rem; break-inside: avoid; padding: .1rem 0; }
.large { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1rem 0; }
.large div { flex: 1 1 9.5rem; border: 1px solid #e5e7eb; border-radius: .5rem; padding: .6rem .8rem; }
.large dt { font-size: .8rem; }
.large dd { font-size: 1.25rem; font-weight: 600; line-height: 1.3; }
figure { margin: 1rem 0; overflow-x: auto; }
img { display: block; max-width: 100%; height: auto; }
figcaption { font-size: .85rem; color: #4b5563; }
.small { display: inline-block; vertical-align: top; max-width: 100%; margin-right: 1rem; }
@media print {
  @page { margin: 14mm; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  h2 { break-after: avoid; }
  section > p { break-after: avoid; }
  p, figure, .large, tr { break-inside: avoid; }
  .small { width: 47%; margin: 1mm 2% 1mm 0; }
  thead { display: table-header-group; }
  img { max-width: 100%; max-height: 110mm; width: auto; }
  td.w, td.w + td.w { min-width: 0; }
  th { overflow-wrap: anywhere; }
  figure, .scroll { overflow: visible; }
  .long { columns: 2; font-size: 7.5pt; }
  .long div { grid-template-columns: 12.5rem 1fr; }
  table { font-size: 8pt; }
  .caution { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""


def page(document: Document) -> str:
    """The whole page, self-contained."""
    title = _text(document.title)
    sections = "\n".join(_section(section) for section in document.sections)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
{MARK}
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>{title}</h1>
<p class="made">{_text(document.made)}</p>
{sections}
</main>
</body>
</html>
"""


def _section(section: Section) -> str:
    return "\n".join([f"<section>\n<h2>{_text(section.title)}</h2>", *map(_block, section.blocks), "</section>"])


def _block(block: Block) -> str:
    return SHOWN[type(block)](block)


def _words(words: Words) -> str:
    kind = ' class="caution" role="note"' if words.caution else ""
    return f"<p{kind}>{_text(words.text)}</p>"


def _facts(facts: Facts) -> str:
    pairs = [f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in facts.rows.items()]
    if facts.large:
        return '<dl class="large">' + "".join(f"<div>{pair}</div>" for pair in pairs) + "</dl>"
    if len(pairs) > LONG:
        return '<dl class="long">' + "\n".join(f"<div>{pair}</div>" for pair in pairs) + "</dl>"
    return "<dl>" + "\n".join(pairs) + "</dl>"


def _table(table: Table) -> str:
    head = _row(table, table.head, "th")
    rows = "\n".join(_row(table, row, "td") for row in table.rows)
    fits = all(len(row[0]) <= NAME for row in table.rows)  # no break in `run-1`; longer ones may
    kind = ' class="names"' if fits else ""
    return f'<div class="scroll"><table{kind}>\n<thead>{head}</thead>\n<tbody>{rows}</tbody>\n</table></div>'


def _row(table: Table, cells: Sequence[str], tag: str) -> str:
    words = [' class="w"' if table.holds_words(at) else "" for at in range(len(cells))]
    return (
        "<tr>"
        + "".join(f"<{tag}{kind}>{_text(cell)}</{tag}>" for kind, cell in zip(words, cells, strict=True))
        + "</tr>"
    )


def _picture(picture: Picture) -> str:
    width, height = (side * SCREEN_DPI // DPI for side in size(picture.png))
    data = base64.b64encode(picture.png).decode()
    sizes = f'width="{width}" height="{height}"'
    kind = ' class="small"' if width <= SMALL else ""
    image = f'<img {sizes} alt="{_text(picture.alt)}" src="data:image/png;base64,{data}">'
    caption = f"<figcaption>{_text(picture.caption)}</figcaption>" if picture.caption else ""
    return f"<figure{kind}>{image}{caption}</figure>"


def size(png: bytes) -> tuple[int, int]:
    """(width, height) in pixels, from the PNG's own header."""
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def _text(text: str) -> str:
    """Text as text: nothing of it is markup, and what has no letter becomes one that shows that."""
    whole = text.encode("utf-8", "replace").decode()
    return escape("".join(letter if letter.isprintable() else "\ufffd" for letter in whole))


SHOWN: Final[dict[type, Callable[[Any], str]]] = {Words: _words, Facts: _facts, Table: _table, Picture: _picture}
