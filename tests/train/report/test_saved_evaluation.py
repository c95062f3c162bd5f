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

from train.evaluation.mistakes import Calibration, CalibrationBin, LabelScore, NumberPairs
from train.report import page, read, saved_evaluation
from train.report.document import (
    DescriptionList,
    Paragraph,
    Picture,
    Report,
    Section,
    Table,
    render_html,
    render_markdown,
)
from train.report.saved_evaluation import GalleryImage, SavedEvaluation, SavedGallery


def jpeg(width: int = 20, height: int = 10) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height), (200, 30, 30)).save(out, "JPEG")
    return out.getvalue()


def image(label: int = 0, prediction: int = 1, name: str = "val/a.png") -> GalleryImage:
    return GalleryImage(name=name, cells=(CLASSES[label], CLASSES[prediction], "98.7%", "4.20"), jpeg=jpeg())


HEAD = ("true", "predicted", "confidence", "loss")
BINS = tuple(CalibrationBin(images=2, confidence=(n + 0.5) / 15, accuracy=0.5) for n in range(15))
SAVED = SavedEvaluation(
    step=20,
    weights="not averaged",
    standing="the best and the last",
    measured="the 30 validation images",
    samples=30,
    task="classification",
    values={"accuracy": 0.7, "loss": 1.25, "macro_f1": None},
    notes=(),
    classes=CLASSES,
    galleries=(
        SavedGallery(title="The most confident mistakes:", head=HEAD, images=(image(), image(2, 0))),
        SavedGallery(title="The highest losses:", head=HEAD, images=(image(), image(1, 1), image(2, 0))),
    ),
    confusion=((8, 2, 0), (1, 9, 0), (5, 0, 5)),
    calibration=Calibration(error=0.25, bins=BINS),
)
LABELS = replace(
    SAVED,
    task="multi_label",
    values={"map": 0.7},
    confusion=None,
    calibration=None,
    labels=(
        LabelScore(name="cat", images=10, predicted=4, correct=3, average_precision=0.5, threshold=0.25),
        LabelScore(name="dog", images=0, predicted=0, correct=0, average_precision=None, threshold=0.5),
    ),
)
NUMBERS = replace(
    SAVED,
    task="regression",
    values={"mae": 4.5, "r2": 0.7},
    classes=("age",),
    confusion=None,
    calibration=None,
    numbers=NumberPairs(name="age", images=3, mean_error=-1.5, true=(1.0, 2.0, 3.0), predicted=(1.5, 2.0, 2.5)),
)


def section_of(folder: Path, saved: SavedEvaluation) -> Section:
    saved_evaluation.write(make_run(folder) / "evaluation.json", saved)
    section = page.mistakes_section(read.load_run(folder))
    assert section is not None
    return section


@pytest.mark.parametrize("saved", [SAVED, LABELS, NUMBERS], ids=lambda saved: saved.task)
def test_what_was_written_is_read_back(tmp_path: Path, saved: SavedEvaluation) -> None:
    saved_evaluation.write(tmp_path / "evaluation.json", saved)
    assert saved_evaluation.read(tmp_path / "evaluation.json") == saved


def test_a_run_without_such_an_evaluation_has_no_section(tmp_path: Path) -> None:
    assert page.mistakes_section(read.load_run(make_run(tmp_path / "run"))) is None


def test_the_section_holds_figures_a_diagram_and_two_galleries(tmp_path: Path) -> None:
    blocks = section_of(tmp_path / "run", SAVED).blocks
    (facts,) = [block.rows for block in blocks if isinstance(block, DescriptionList)]
    assert (facts["accuracy"], facts["loss"], facts["calibration error"]) == ("70.00%", "1.2500", "0.2500 (ECE)")
    assert "macro F1" not in facts
    assert [block.name for block in blocks if isinstance(block, Picture)] == ["calibration"]
    assert [len(block.images) for block in blocks if isinstance(block, SavedGallery)] == [2, 3]
    assert Paragraph(text="The most confident mistakes:") in blocks


def test_several_labels_have_a_table_in_place_of_a_calibration(tmp_path: Path) -> None:
    section = section_of(tmp_path / "run", LABELS)
    (facts,) = [block.rows for block in section.blocks if isinstance(block, DescriptionList)]
    assert facts["mAP"] == "70.00%"
    assert "calibration error" not in facts
    assert [block for block in section.blocks if isinstance(block, Picture)] == []
    (table,) = tables(section)
    assert table.rows[0] == ["cat", "10", "4", "3", "30.0%", "75.0%", "42.9%", "50.0%", "0.25"]
    assert table.rows[1] == ["dog", "0", "0", "0", "-", "-", "-", "-", "0.5"]


def test_of_many_labels_those_with_the_lowest_average_precision_are_listed() -> None:
    labels = [
        replace(LABELS.labels[0], name=f"{number}", average_precision=None if number == 7 else number / 100)
        for number in range(60, 0, -1)
    ]
    table = page.label_table(labels)
    assert table.head[0] == "label (the 20 with the lowest average precision)"
    assert [row[0] for row in table.rows] == [str(number) for number in range(1, 22) if number != 7]


def test_numbers_are_drawn_over_the_true_ones(tmp_path: Path) -> None:
    section = section_of(tmp_path / "run", NUMBERS)
    (facts,) = [block.rows for block in section.blocks if isinstance(block, DescriptionList)]
    assert (facts["MAE"], facts["R²"], facts["mean error"]) == ("4.5", "0.7000", "-1.5 (prediction - true)")
    assert [block.name for block in section.blocks if isinstance(block, Picture)] == ["numbers", "residuals"]


def test_a_diagram_of_some_images_says_so(tmp_path: Path) -> None:
    assert NUMBERS.numbers is not None
    section = section_of(tmp_path / "run", replace(NUMBERS, numbers=replace(NUMBERS.numbers, images=50_000)))
    assert "3 of 50,000 images are drawn." in render_markdown(Report(title="t", sections=[section], byline="b"))


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
    stranger = image(name='<script>alert(1)</script>/"><img src=x onerror=a()>\x1b')
    hostile = replace(SAVED, galleries=(replace(SAVED.galleries[0], images=(stranger,)),))
    html = render_html(Report(title="t", sections=[section_of(tmp_path / "run", hostile)], byline="b"))
    assert "<script" not in html
    assert "<img src=x" not in html
    assert "&lt;/<wbr>script&gt;/<wbr>&#34;&gt;&lt;img src=x" in html


def spoiled(**values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda saved: saved.update(values)


def with_thumbnail(data: bytes) -> Callable[[dict[str, Any]], object]:
    return lambda saved: saved["galleries"][0]["images"][0].update(jpeg=base64.b64encode(data).decode())


def test_heat_maps_stand_below_their_images(tmp_path: Path) -> None:
    heated = tuple(replace(each, heat=jpeg()) for each in SAVED.galleries[0].images)
    saved = replace(SAVED, galleries=(replace(SAVED.galleries[0], images=heated),))
    saved_evaluation.write(tmp_path / "evaluation.json", saved)
    assert saved_evaluation.read(tmp_path / "evaluation.json") == saved
    html = render_html(Report(title="t", sections=[section_of(tmp_path / "run", saved)], byline="b"))
    assert html.count('class="heat') == 2
    assert "Grad-CAM" in html


SPOIL = {
    "newer": spoiled(format=3),
    "no-bins": spoiled(calibration={"error": 0}),
    "no-matrix": spoiled(confusion=[[1, 2]]),
    "no-list": spoiled(galleries={"a": 1}),
    "other-task": spoiled(task="segmentation"),
    "no-pairs": spoiled(numbers={"name": "age", "images": 1, "mean_error": 0, "true": [1], "predicted": []}),
    "endless-numbers": spoiled(
        numbers={"name": "age", "images": 1, "mean_error": 0, "true": [1], "predicted": [float("inf")]}
    ),
    "no-label": spoiled(labels=[{"name": "cat"}]),
    "other-columns": lambda saved: saved["galleries"][0].update(head=["true"]),
    "no-number": spoiled(samples="many"),
    "endless": spoiled(step=float("inf")),
    "values": spoiled(values=[1]),
    "no-picture": with_thumbnail(b"<svg onload=alert(1)>"),
    "png": with_thumbnail(b"\x89PNG\r\n\x1a\n"),
    "huge-picture": with_thumbnail(jpeg(3000, 10)),
    "no-base64": lambda saved: saved["galleries"][0]["images"][0].update(jpeg='"><script>'),
}


@pytest.mark.parametrize("spoil", SPOIL.values(), ids=SPOIL)
def test_a_file_that_nobody_wrote_so_is_left_out(tmp_path: Path, spoil: Callable[[dict[str, Any]], object]) -> None:
    file = make_run(tmp_path / "run") / "evaluation.json"
    saved_evaluation.write(file, SAVED)
    saved = json.loads(file.read_text())
    spoil(saved)
    file.write_text(json.dumps(saved))
    assert page.mistakes_section(read.load_run(tmp_path / "run")) is None


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "[" * 9000])
def test_a_file_that_is_no_record_is_left_out(tmp_path: Path, text: str) -> None:
    (make_run(tmp_path / "run") / "evaluation.json").write_text(text)
    assert page.mistakes_section(read.load_run(tmp_path / "run")) is None
