"""The section about what went wrong shows an evaluation for the report, and is never the reason that a report fails."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_up_runs import CLASSES, make_run
from PIL import Image

from train.report import mistakes, read, saved_evaluation
from train.report.document import DescriptionList, Gallery, Paragraph, Picture, Report, Section, Table
from train.report.render import render_html, render_markdown
from train.report.saved_evaluation import Calibration, CalibrationBin, GalleryImage, SavedEvaluation


def jpeg(width: int = 20, height: int = 10) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height), (200, 30, 30)).save(out, "JPEG")
    return out.getvalue()


def image(label: int = 0, prediction: int = 1, name: str = "val/a.png") -> GalleryImage:
    return GalleryImage(
        name=name, label=CLASSES[label], prediction=CLASSES[prediction], confidence=0.987, loss=4.2, jpeg=jpeg()
    )


BINS = tuple(CalibrationBin(images=2, confidence=(n + 0.5) / 15, accuracy=0.5) for n in range(15))
SAVED = SavedEvaluation(
    step=20,
    weights="not averaged",
    standing="the best and the last",
    measured="the 30 validation images",
    samples=30,
    values={"accuracy": 0.7, "loss": 1.25, "macro_f1": None},
    notes=(),
    classes=CLASSES,
    confusion=((8, 2, 0), (1, 9, 0), (5, 0, 5)),
    calibration=Calibration(error=0.25, bins=BINS),
    mistakes=(image(), image(2, 0)),
    hardest=(image(), image(1, 1), image(2, 0)),
)


def section_of(folder: Path, saved: SavedEvaluation) -> Section:
    saved_evaluation.write(make_run(folder) / "evaluation.json", saved)
    found = mistakes.mistakes_section(read.load_run(folder))
    assert found is not None
    return found


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    saved_evaluation.write(tmp_path / "evaluation.json", SAVED)
    assert saved_evaluation.read(tmp_path / "evaluation.json") == SAVED


def test_a_run_without_such_an_evaluation_has_no_section(tmp_path: Path) -> None:
    assert mistakes.mistakes_section(read.load_run(make_run(tmp_path / "run"))) is None


def test_the_section_holds_figures_a_diagram_and_two_galleries(tmp_path: Path) -> None:
    blocks = section_of(tmp_path / "run", SAVED).blocks
    (facts,) = [block.rows for block in blocks if isinstance(block, DescriptionList)]
    assert (facts["accuracy"], facts["loss"], facts["calibration error"]) == ("70.00%", "1.2500", "0.2500 (ECE)")
    assert "macro F1" not in facts
    assert [block.name for block in blocks if isinstance(block, Picture)] == ["calibration"]
    assert [len(block.thumbnails) for block in blocks if isinstance(block, Gallery)] == [2, 3]
    assert Paragraph(text="The most confident mistakes, 2 of 9:") in blocks


def tables(section: Section) -> list[Table]:
    return [block for block in section.blocks if isinstance(block, Table)]


def test_the_classes_are_listed_if_the_report_does_not_list_them_already(tmp_path: Path) -> None:
    assert tables(section_of(tmp_path / "same", SAVED)) == []
    (table,) = tables(section_of(tmp_path / "other", replace(SAVED, confusion=((9, 1, 0), (1, 9, 0), (5, 0, 5)))))
    assert table.rows[0] == ["cat", "10", "15", "9", "90.0%", "60.0%", "72.0%"]


def cautions(section: Section) -> list[str]:
    return [block.text for block in section.blocks if isinstance(block, Paragraph) and block.caution]


def test_notes_of_the_evaluation_and_a_better_checkpoint_are_cautions(tmp_path: Path) -> None:
    assert cautions(section_of(tmp_path / "same", SAVED)) == []
    assert cautions(section_of(tmp_path / "noted", replace(SAVED, notes=("images were trained on",)))) == [
        "Images were trained on."
    ]
    (older,) = cautions(section_of(tmp_path / "older", replace(SAVED, step=10)))
    assert "run `train eval RUN --report` again" in older


def test_markdown_lists_what_the_page_shows_as_thumbnails(tmp_path: Path) -> None:
    report = Report(title="t", sections=[section_of(tmp_path / "run", SAVED)], byline="b")
    assert render_html(report).count("<img") == 1 + 5
    text = render_markdown(report)
    assert text.count("| val/a.png | cat | dog | 98.7% | 4.20 |") == 2
    assert text.count("![") == 1


def test_names_of_strangers_are_text_in_a_caption(tmp_path: Path) -> None:
    hostile = replace(SAVED, mistakes=(image(name='<script>alert(1)</script>/"><img src=x onerror=a()>\x1b'),))
    page = render_html(Report(title="t", sections=[section_of(tmp_path / "run", hostile)], byline="b"))
    assert "<script" not in page
    assert "<img src=x" not in page
    assert "&lt;/<wbr>script&gt;/<wbr>&#34;&gt;&lt;img src=x" in page


def spoiled(**values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda saved: saved.update(values)


def with_thumbnail(data: bytes) -> Callable[[dict[str, Any]], object]:
    return lambda saved: saved["mistakes"][0].update(jpeg=base64.b64encode(data).decode())


SPOIL = {
    "newer": spoiled(format=2),
    "no-bins": spoiled(calibration={"error": 0}),
    "no-matrix": spoiled(confusion=[[1, 2]]),
    "no-list": spoiled(mistakes={"a": 1}),
    "no-number": spoiled(samples="many"),
    "endless": spoiled(step=float("inf")),
    "values": spoiled(values=[1]),
    "no-picture": with_thumbnail(b"<svg onload=alert(1)>"),
    "png": with_thumbnail(b"\x89PNG\r\n\x1a\n"),
    "huge-picture": with_thumbnail(jpeg(3000, 10)),
    "no-base64": lambda saved: saved["mistakes"][0].update(jpeg='"><script>'),
}


@pytest.mark.parametrize("spoil", SPOIL.values(), ids=SPOIL)
def test_a_file_that_nobody_wrote_so_is_left_out(tmp_path: Path, spoil: Callable[[dict[str, Any]], object]) -> None:
    file = make_run(tmp_path / "run") / "evaluation.json"
    saved_evaluation.write(file, SAVED)
    saved = json.loads(file.read_text())
    spoil(saved)
    file.write_text(json.dumps(saved))
    assert mistakes.mistakes_section(read.load_run(tmp_path / "run")) is None


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "[" * 9000])
def test_a_file_that_is_no_record_is_left_out(tmp_path: Path, text: str) -> None:
    (make_run(tmp_path / "run") / "evaluation.json").write_text(text)
    assert mistakes.mistakes_section(read.load_run(tmp_path / "run")) is None
