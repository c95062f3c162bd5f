"""The Markdown: whole tables whatever stands in them, pictures by name."""

from __future__ import annotations

from train.report.document import (
    DescriptionList,
    Paragraph,
    Picture,
    Report,
    Section,
    Table,
    escape_markdown,
    render_markdown,
)


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


def test_text_of_strangers_is_only_text() -> None:
    assert escape_markdown("# [x](javascript:1) *a* `b` $c$ ![d](e)") == (
        "\\# \\[x\\](javascript:1) \\*a\\* \\`b\\` \\$c\\$ \\!\\[d\\](e)"
    )
    assert escape_markdown("- a") == "\\- a"
    assert escape_markdown("1. a") == "1\\. a"
    assert escape_markdown("3.7 s") == "3.7 s"
    assert "https://" not in escape_markdown("https://example.org")
