"""Files of a report: whole, where they were asked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from entrypoint import ExitCode, Failure
from train.report import page
from train.report.document import Picture, Report, Section

PNG = b"\x89PNG" + bytes(30)
DOCUMENT = Report(title="t", sections=[Section(title="s", blocks=[Picture(name="a", png=PNG, alt="")])], byline="now")


def test_the_page_the_text_and_each_picture_are_written(tmp_path: Path) -> None:
    paths = page.write_report(DOCUMENT, tmp_path / "report", own=True)
    assert [path.name for path in paths] == ["report.html", "report.md", "a.png"]
    assert sorted(os.listdir(tmp_path / "report")) == ["a.png", "report.html", "report.md"]


def test_a_second_report_takes_the_place_of_the_first(tmp_path: Path) -> None:
    for title in ("first", "second"):
        page.write_report(Report(title=title, sections=[], byline=""), tmp_path, own=True)
    assert "second" in (tmp_path / "report.html").read_text()


def test_a_link_is_followed_only_where_the_user_named_it(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "report").symlink_to(tmp_path / "there")
    with pytest.raises(Failure) as refused:
        page.write_report(DOCUMENT, tmp_path / "report", own=True)
    assert refused.value.code == ExitCode.SECURITY
    page.write_report(DOCUMENT, tmp_path / "report", own=False)
    assert (tmp_path / "there/report.md").exists()


def test_a_file_behind_a_link_is_left_alone(tmp_path: Path) -> None:
    page.write_report(DOCUMENT, tmp_path / "report", own=True)
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / "report/report.md").unlink()
    (tmp_path / "report/report.md").symlink_to(tmp_path / "theirs")
    page.write_report(DOCUMENT, tmp_path / "report", own=True)
    assert (tmp_path / "theirs").read_text() == "theirs"


def test_pictures_of_an_earlier_report_do_not_stay(tmp_path: Path) -> None:
    many = [Picture(name=name, png=PNG, alt="") for name in ("confusion-1", "confusion-3", "curves-loss")]
    page.write_report(
        Report(title="t", sections=[Section(title="s", blocks=many)], byline=""), tmp_path / "r", own=True
    )
    (tmp_path / "r/holiday.png").write_text("theirs")
    few = Report(title="t", sections=[Section(title="s", blocks=many[:1])], byline="")
    page.write_report(few, tmp_path / "r", own=True)
    assert sorted(os.listdir(tmp_path / "r")) == ["confusion-1.png", "holiday.png", "report.html", "report.md"]


@pytest.mark.parametrize(("name", "own"), [("report.md", True), ("thesis.tex", True), ("report.html", False)])
def test_a_folder_of_somebody_else_is_refused_and_nothing_is_changed(tmp_path: Path, name: str, own: bool) -> None:
    (tmp_path / name).write_text("theirs")
    with pytest.raises(Failure, match="holds files that are no report") as refused:
        page.write_report(DOCUMENT, tmp_path, own=own)
    assert (refused.value.code, os.listdir(tmp_path)) == (ExitCode.OUTPUT, [name])
    assert (tmp_path / name).read_text() == "theirs"


def test_other_files_may_stand_beside_a_report_where_the_user_named_the_folder(tmp_path: Path) -> None:
    (tmp_path / "bench.json").write_text("{}")
    page.write_report(DOCUMENT, tmp_path, own=False)
    assert (tmp_path / "bench.json").read_text() == "{}"


def test_a_place_that_takes_no_files_is_named_with_another_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Failure) as refused:
        page.write_report(DOCUMENT, tmp_path / "file", own=True)
    assert (refused.value.code, refused.value.fix) == (ExitCode.OUTPUT, page.OUTPUT_FIX)
