"""A base by its digest, from a site's own registry: a real one, on the loopback."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from bed import until
from containers import BUILD, Image, call
from machines import REPOSITORY
from processes import free_port

pytestmark = pytest.mark.timeout(600)  # the first one may have to build the image

BASE = "docker.io/library/debian:trixie-slim"
REGISTRY = """
version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}/data}}}}
http: {{addr: "{address}"}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """A registry that has the base under a name of the site's."""

    address: str
    environ: dict[str, str]

    def podman(self, *words: str) -> str:
        """Call podman as this site has set it up."""
        return self.call("podman", *words)

    def pushed(self, name: str, there: str) -> str:
        """Push an image; its name in this registry, with its digest."""
        written = Path(self.environ["TESTBED_CACHE"]) / "digest"
        self.podman("push", "--quiet", "--digestfile", str(written), name, there)
        return f"{there}@{written.read_text()}"

    def call(self, *words: str, **settings: str) -> str:
        """Run a program; what it said is in the error if it fails."""
        environ = {**self.environ, **settings}
        done = subprocess.run(
            words, env=environ, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def mirror(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mirror]:
    """The registry, for the tests of this file."""
    program = shutil.which("docker-registry")
    if program is None or image.engine != "podman":
        pytest.skip("docker-registry and podman are needed; run `make testbed`")
    folder = tmp_path_factory.mktemp("registry")
    address = f"127.0.0.1:{free_port()}"
    (folder / "config.yml").write_text(REGISTRY.format(folder=folder, address=address))
    (folder / "registries.conf").write_text(f'[[registry]]\nlocation = "{address}"\ninsecure = true\n')
    environ = {
        **os.environ,
        "TESTBED_CACHE": str(folder),
        "CONTAINERS_REGISTRIES_CONF": str(folder / "registries.conf"),
    }
    with (folder / "log").open("w") as log:
        serving = subprocess.Popen([program, "serve", folder / "config.yml"], stdout=log, stderr=log)
        until(lambda: "listening on" in (folder / "log").read_text(), 60, (folder / "log").read_text)
        yield Mirror(address=address, environ=environ)
        serving.kill()
        serving.wait()


@pytest.fixture(scope="module")
def pinned(mirror: Mirror, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A base that only the site has, with its digest: Debian's and a label."""
    made, name = tmp_path_factory.mktemp("made"), f"{mirror.address}/site/debian:trixie-slim"
    (made / "Containerfile").write_text(f"FROM {BASE}\nLABEL made-in={made}\n")
    number = mirror.podman("build", "--quiet", "--layers=false", "--tag", name, str(made)).split()[-1]
    yield mirror.pushed(name, name)
    mirror.podman("rmi", "--force", number)


def test_build_image_pulls_it(mirror: Mirror, pinned: str) -> None:
    mirror.podman("rmi", "--force", pinned.partition("@")[0])
    assert mirror.call(str(BUILD), "base", BASE=pinned).split() == ["podman", pinned]
    assert "Writing manifest" in (Path(mirror.environ["TESTBED_CACHE"]) / "images" / "pull.log").read_text()


def test_the_recipe_starts_from_it(mirror: Mirror) -> None:
    """In no time, because this one is Debian's, under the site's name, and so are its layers."""
    name = f"{mirror.address}/mirror/debian:trixie-slim"
    pinned = mirror.pushed(BASE, name)
    options = ("--isolation=chroot", "--network=host", "--target=system", f"--build-arg=BASE={pinned}")
    said = mirror.podman("build", *options, ".")
    call("podman", "untag", BASE, pinned.replace(":trixie-slim@", "@"))
    assert said.startswith(f"STEP 1/5: FROM {pinned} AS system")


def test_the_digest_is_a_fact_for_the_labels(mirror: Mirror, pinned: str) -> None:
    facts = dict(line.split("=", 1) for line in mirror.call(str(BUILD), "facts", BASE=pinned).splitlines())
    assert (facts["BASE"], facts["BASE_DIGEST"]) == (pinned, pinned.partition("@")[2])
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", facts["BASE_DIGEST"])


def test_another_digest_is_refused(mirror: Mirror, pinned: str) -> None:
    wrong = f"{pinned.partition('@')[0]}@sha256:{'0' * 64}"
    environ = {**mirror.environ, "BASE": wrong}
    done = subprocess.run([BUILD, "base"], env=environ, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, "cannot be pulled; fix: BASE=" in done.stderr) == (1, True), done.stderr
