"""One look for all pictures, whatever the machine says."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest
from matplotlib.figure import Figure
from PIL import Image

from train.report import plots
from train.report.document import DPI


@plots.plot
def drawn(figure: Figure) -> None:
    """A small picture with letters and a line."""
    axes = plots.make_axes(figure, width=2, height=1.5)
    axes.plot([1, 2], [1, 2])
    axes.set_title("100 $_x for 5 $")


def test_a_picture_is_a_png_of_its_inches() -> None:
    with Image.open(io.BytesIO(drawn())) as image:
        assert (image.format, image.size) == ("PNG", (2 * DPI, DPI * 3 // 2))


def test_the_same_numbers_give_the_same_bytes() -> None:
    assert drawn() == drawn()


def test_settings_of_the_machine_change_nothing() -> None:
    before = drawn()
    with matplotlib.rc_context({"lines.linewidth": 9.0, "text.parse_math": True, "axes.facecolor": "black"}):
        assert drawn() == before
        assert matplotlib.rcParams["lines.linewidth"] == 9.0  # and what others set is left alone


def test_neither_a_window_nor_torch_is_looked_for() -> None:
    script = "import sys; from train.report import plots; print({'matplotlib.pyplot', 'torch'} & {*sys.modules})"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert shown.stdout == "set()\n"


def test_a_home_that_cannot_be_written_is_not_worth_a_word(tmp_path: Path) -> None:
    script = "from train.report import plots; p = plots.Panel(title='日本', x='', y='', series=[]); plots.draw_panel(p)"
    nowhere = {"HOME": "/proc/none", "TMPDIR": str(tmp_path)}
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=nowhere)
    assert (shown.returncode, shown.stderr) == (0, "")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("short", "short"),
        ("a-very-long-name-of-a-run-lr-0.01", "a-very-lo…un-lr-0.01"),
        ("two\nlines\x1b[1m", "two\\nlines\\x1b[1m"),
    ],
)
def test_a_name_is_cut_in_its_middle_and_stays_on_one_line(name: str, shown: str) -> None:
    assert plots.shorten_middle(name, 20) == shown
