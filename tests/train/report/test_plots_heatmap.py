"""A confusion matrix of any size."""

from __future__ import annotations

import io

import pytest
from matplotlib.figure import Figure
from PIL import Image

from train.report import plots


@pytest.mark.parametrize("size", [1, 2, 10, 60])
def test_a_matrix_of_any_size_fits_a_page(size: int) -> None:
    matrix = [[row * column for column in range(size)] for row in range(size)]  # the first row has no image
    with Image.open(
        io.BytesIO(plots.draw_confusion_matrix(matrix, [f"class $ {name}" for name in range(size)]))
    ) as image:
        assert max(image.size) <= 11 * 150


@pytest.mark.parametrize(("names", "rotation"), [(["cat", "dog"], 0), (["a long name"] * 5, 90)])
def test_names_that_would_overlap_stand_upright(names: list[str], rotation: float) -> None:
    figure = Figure()
    plots.draw_confusion_matrix.__wrapped__(figure, [[1] * len(names)] * len(names), names)  # type: ignore[attr-defined]
    assert {label.get_rotation() for label in figure.axes[0].get_xticklabels()} == {rotation}
