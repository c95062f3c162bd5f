"""A base by its digest, from a site's own registry: a real one, on the loopback."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from containers import BUILD, call
from site_registry import SiteRegistry

pytestmark = pytest.mark.timeout(600)  # the first one may have to build the image


@pytest.fixture(scope="module")
def pinned(site: SiteRegistry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A base that only the site has, with its digest: Debian's and a label."""
    made, name = tmp_path_factory.mktemp("made"), f"{site.address}/site/debian:trixie-slim"
    (made / "Containerfile").write_text(f"FROM {site.base()}\nLABEL made-in={made}\n")
    number = site.podman("build", "--quiet", "--layers=false", "--tag", name, str(made)).split()[-1]
    yield site.pushed(name, name)
    site.podman("rmi", "--force", number)


def test_build_image_pulls_it(site: SiteRegistry, pinned: str) -> None:
    site.podman("rmi", "--force", pinned.partition("@")[0])
    assert site.call(str(BUILD), "base", BASE=pinned).split() == ["podman", pinned]
    assert "Writing manifest" in (Path(site.environ["TESTBED_CACHE"]) / "images" / "pull.log").read_text()


def test_the_recipe_starts_from_it(site: SiteRegistry) -> None:
    """In no time, because this one is Debian's, under the site's name, and so are its layers."""
    name = f"{site.address}/mirror/debian:trixie-slim"
    base = site.base()
    pinned = site.pushed(base, name)
    options = ("--isolation=chroot", "--network=host", "--target=system", f"--build-arg=BASE={pinned}")
    said = site.podman("build", *options, ".")
    call("podman", "untag", base, pinned.replace(":trixie-slim@", "@"))
    assert said.startswith(f"STEP 1/5: FROM {pinned} AS system")


def test_the_digest_is_a_fact_for_the_labels(site: SiteRegistry, pinned: str) -> None:
    facts = dict(line.split("=", 1) for line in site.call(str(BUILD), "facts", BASE=pinned).splitlines())
    assert (facts["BASE"], facts["BASE_DIGEST"]) == (pinned, pinned.partition("@")[2])
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", facts["BASE_DIGEST"])


def test_another_digest_is_refused(site: SiteRegistry, pinned: str) -> None:
    wrong = f"{pinned.partition('@')[0]}@sha256:{'0' * 64}"
    environ = {**site.environ, "BASE": wrong}
    done = subprocess.run([BUILD, "base"], env=environ, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, "cannot be pulled; fix: BASE=" in done.stderr) == (1, True), done.stderr
