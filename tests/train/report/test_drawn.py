"""Panels as pictures of a section."""

from __future__ import annotations

from train.report import plots
from train.report.plots import Panel


def test_each_panel_is_a_picture_with_a_name_of_its_own() -> None:
    shown = [Panel(title=title, x="step", y="", series=[]) for title in ("Learning rate", "Speed, all ranks together")]
    found = plots.render_panels("curves", shown, of="a run")
    assert [(picture.name, picture.alt) for picture in found] == [
        ("curves-learning-rate", "Learning rate by step, a run"),
        ("curves-speed", "Speed, all ranks together by step, a run"),
    ]


def test_a_single_one_has_the_name_of_the_section() -> None:
    (found,) = plots.render_panels("gpus", [Panel(title="Memory", x="s", y="", series=[])], of="GPUs", note="beware")
    assert found.name == "gpus"
