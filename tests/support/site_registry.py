"""A container registry of a site: a real one, on the loopback."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from bed import until
from containers import BUILD
from machines import REPOSITORY
from processes import free_port

REGISTRY = """
version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}/data}}}}
http: {{addr: "{address}"}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteRegistry:
    """A registry, and the environment in which podman takes it for one without TLS."""

    address: str
    environ: dict[str, str]

    def base(self) -> str:
        """The base of the project's image, which podman has: Debian's or its stand-in."""
        return self.call(str(BUILD), "base").split()[-1]

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


@contextmanager
def serving(folder: Path) -> Iterator[SiteRegistry]:
    """A registry that keeps its images in this folder, for the time of the block."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("docker-registry is needed; run `make testbed`")
    address = f"127.0.0.1:{free_port()}"
    (folder / "config.yml").write_text(REGISTRY.format(folder=folder, address=address))
    (folder / "registries.conf").write_text(f'[[registry]]\nlocation = "{address}"\ninsecure = true\n')
    environ = {
        **os.environ,
        "TESTBED_CACHE": str(folder),
        "CONTAINERS_REGISTRIES_CONF": str(folder / "registries.conf"),
    }
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([program, "serve", folder / "config.yml"], stdout=log, stderr=log)
        until(lambda: "listening on" in (folder / "log").read_text(), 60, (folder / "log").read_text)
        try:
            yield SiteRegistry(address=address, environ=environ)
        finally:
            process.kill()
            process.wait()
