"""The Markdown: whole tables whatever stands in them, pictures by name."""

from __future__ import annotations

from train.report.document import Document, Facts, Picture, Section, Table, Words
from train.report.markdown import markdown, text


def test_a_table_stays_a_table() -> None:
    table = Table(head=["class", "images"], rows=[["a|b\n<b>", "3"]])
    shown = markdown(Document(title="t", sections=[Section(title="s", blocks=[table])], made="now"))
    assert "| class | images |\n| --- | ---: |\n| a\\|b\ufffd\\<b\\> | 3 |" in shown


def test_pictures_are_named_and_cautions_seen() -> None:
    blocks = [Words(text="beware", caution=True), Picture(name="curves", png=b"", alt="loss"), Facts(rows={"a": "b"})]
    shown = markdown(Document(title="t", sections=[Section(title="s", blocks=blocks)], made="now"))
    assert "> **Caution:** beware" in shown
    assert "![loss](curves.png)" in shown
    assert "| a | b |" in shown


def test_text_of_strangers_is_only_text() -> None:
    assert text("# [x](javascript:1) *a* `b` $c$ ![d](e)") == (
        "\\# \\[x\\](javascript:1) \\*a\\* \\`b\\` \\$c\\$ \\!\\[d\\](e)"
    )
    assert text("- a") == "\\- a"
    assert text("1. a") == "1\\. a"
    assert text("3.7 s") == "3.7 s"
    assert "https://" not in text("https://example.org")
