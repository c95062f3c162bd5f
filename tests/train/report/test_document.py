"""What a document can be asked."""

from __future__ import annotations

from train.report.document import Paragraph, Picture, Report, Section, Table


def test_pictures_and_cautions_are_found_in_all_sections() -> None:
    pictures = [Picture(name=name, png=b"", alt="") for name in ("a", "b")]
    first = Section(title="1", blocks=[Paragraph(text="beware", caution=True), pictures[0]])
    document = Report(title="", sections=[first, Section(title="2", blocks=[pictures[1]])], byline="")
    assert document.pictures() == pictures
    assert document.cautions() == ["beware"]


def test_a_wide_table_becomes_several_with_the_same_first_column() -> None:
    table = Table(head=["class", "a", "b", "c"], rows=[["cat", "1", "2", "3"]], left=2)
    assert table.parts(2) == [
        Table(head=["class", "a", "b"], rows=[["cat", "1", "2"]], left=2),
        Table(head=["class", "c"], rows=[["cat", "3"]], left=1),
    ]
