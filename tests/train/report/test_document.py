"""The HTML page and the Markdown: nothing of a stranger's text is markup, tables stay whole, pictures have names."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser

from train.report import plots
from train.report.document import (
    DPI,
    MAX_SHORT_LIST_ROWS,
    SCREEN_DPI,
    Block,
    DescriptionList,
    Paragraph,
    Picture,
    Report,
    Section,
    Table,
    escape_markdown,
    render_html,
    render_markdown,
)
from train.report.plots import PANEL_HEIGHT, PANEL_WIDTH, Panel

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(1)>&amp;\x00\x1b[31m\ud800'
PNG = plots.draw_panel(Panel(title="", x="", y="", series=[]))


def shown(*blocks: Block, title: str = "a report") -> str:
    """A page with one section."""
    return render_html(Report(title=title, sections=[Section(title=title, blocks=blocks)], byline=title))


def tags(html: str) -> list[tuple[str, dict[str, str | None]]]:
    """What a browser makes of it."""
    results: list[tuple[str, dict[str, str | None]]] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            results.append((tag, dict(attrs)))

    Reader().feed(html)
    return results


def test_text_of_strangers_is_only_text() -> None:
    blocks = [
        Paragraph(text=HOSTILE, caution=True),
        DescriptionList(rows={HOSTILE: HOSTILE}, large=True),
        Paragraph(text=HOSTILE),
    ]
    table = Table(head=[HOSTILE], rows=[[HOSTILE]])
    html = shown(*blocks, table, Picture(name="x", png=PNG, alt=HOSTILE), title=HOSTILE)
    names = [tag for tag, _ in tags(html)]
    assert "script" not in names
    assert names.count("img") == 1
    assert not [name for _, attributes in tags(html) for name in attributes if name.startswith("on")]
    assert html.encode()


def test_a_picture_stands_in_the_page_itself() -> None:
    html = shown(Picture(name="curves", png=PNG, alt="curves"))
    (source,) = (attributes["src"] for tag, attributes in tags(html) if tag == "img")
    assert base64.b64decode((source or "").removeprefix("data:image/png;base64,")) == PNG


def test_nothing_is_loaded_from_anywhere() -> None:
    html = shown(Paragraph(text="see https://example.org"), Picture(name="curves", png=PNG, alt="curves"))
    links = [value for _, attributes in tags(html) for name, value in attributes.items() if name in ("src", "href")]
    assert all((link or "").startswith("data:") for link in links)
    assert "default-src 'none'" in html
    assert "url(" not in html


def test_a_picture_is_as_large_as_its_inches() -> None:
    html = shown(Picture(name="curves", png=PNG, alt="curves"))
    (size,) = ((attributes["width"], attributes["height"]) for tag, attributes in tags(html) if tag == "img")
    assert size == tuple(str(round(inches * DPI) * SCREEN_DPI // DPI) for inches in (PANEL_WIDTH, PANEL_HEIGHT))


def test_every_tag_is_closed() -> None:
    many = DescriptionList(rows={str(at): "x" for at in range(MAX_SHORT_LIST_ROWS + 1)})
    html = shown(Paragraph(text="x"), many, Table(head=["a", "b"], rows=[["1", "2"]]), DescriptionList(rows={"a": "b"}))
    single = {"meta", "link", "img"}
    opened = [tag for tag, _ in tags(html) if tag not in single]
    assert sorted(opened) == sorted(re.findall(r"</([a-z0-9]+)>", html))


def test_a_table_stays_a_table() -> None:
    table = Table(head=["class", "images"], rows=[["a|b\n<b>", "3"]])
    shown = render_markdown(Report(title="t", sections=[Section(title="s", blocks=[table])], byline="now"))
    assert "| class | images |\n| --- | ---: |\n| a\\|b\\\\n\\<b\\> | 3 |" in shown


def test_pictures_are_named_and_cautions_seen() -> None:
    blocks = [
        Paragraph(text="beware", caution=True),
        Picture(name="curves", png=b"", alt="loss"),
        DescriptionList(rows={"a": "b"}),
    ]
    shown = render_markdown(Report(title="t", sections=[Section(title="s", blocks=blocks)], byline="now"))
    assert "> **Caution:** beware" in shown
    assert "![loss](curves.png)" in shown
    assert "| a | b |" in shown


def test_text_of_strangers_is_only_text_in_markdown() -> None:
    assert escape_markdown("# [x](javascript:1) *a* `b` $c$ ![d](e)") == (
        "\\# \\[x\\](javascript:1) \\*a\\* \\`b\\` \\$c\\$ \\!\\[d\\](e)"
    )
    assert escape_markdown("- a") == "\\- a"
    assert escape_markdown("1. a") == "1\\. a"
    assert escape_markdown("3.7 s") == "3.7 s"
    assert "https://" not in escape_markdown("https://example.org")
