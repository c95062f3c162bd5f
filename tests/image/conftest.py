"""The image as its users meet it: built from this checkout, started by a real engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from containers import Image, built
from site_registry import SiteRegistry, serving


@pytest.fixture(scope="session")
def image() -> Image:
    """The image; without one, the test is skipped."""
    found = built()
    if isinstance(found, str):
        pytest.skip(f"no image (run `make testbed`): {found}")
    return found


@pytest.fixture(scope="package")
def site(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SiteRegistry]:
    """A site's registry, which podman can reach."""
    if image.engine != "podman":
        pytest.skip("podman is needed; run `make testbed`")
    with serving(tmp_path_factory.mktemp("registry")) as registry:
        yield registry
