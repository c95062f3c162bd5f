"""A confusion matrix of any size."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from train.plotting import heatmap


@pytest.mark.parametrize("size", [1, 2, 10, 60])
def test_a_matrix_of_any_size_fits_a_page(size: int) -> None:
    matrix = [[row * column for column in range(size)] for row in range(size)]  # the first row has no image
    with Image.open(io.BytesIO(heatmap.draw("It", matrix, [f"class $ {name}" for name in range(size)]))) as image:
        assert max(image.size) <= 11 * 150
