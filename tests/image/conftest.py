"""The image as its users meet it: built from this checkout, started by a real engine."""

from __future__ import annotations

import pytest
from containers import Image, built


@pytest.fixture(scope="session")
def image() -> Image:
    """The image; without one, the test is skipped."""
    found = built()
    if isinstance(found, str):
        pytest.skip(f"no image (run `make testbed`): {found}")
    return found
