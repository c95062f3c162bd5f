"""The locks, and what the index offers for them: wheels for both kinds of machines."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from machines import REPOSITORY
from packaging.markers import Marker
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

LOCKS = ("requirements.lock", "requirements-cuda12.lock")
MACHINES = ("x86_64", "aarch64")
# Debian trixie's.
PYTHON, GLIBC = (3, 13), 41


@dataclass(frozen=True, slots=True)
class Package:
    """A locked package, and the files that the index offers for it."""

    name: str
    marker: str
    wheels: tuple[str, ...]  # those whose hash is locked

    def wanted(self, machine: str) -> bool:
        """Whether the image has it on this kind of machine."""
        version = ".".join(map(str, PYTHON))
        place = {"platform_machine": machine, "sys_platform": "linux", "python_version": version}
        return not self.marker or Marker(self.marker).evaluate({**place, "python_full_version": f"{version}.5"})

    def installs(self, machine: str) -> bool:
        """Whether a wheel whose hash is locked fits this kind of machine."""
        platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(5, GLIBC + 1)] + [f"manylinux2014_{machine}"]
        fitting = {*cpython_tags(PYTHON, platforms=platforms), *compatible_tags(PYTHON, "cp313", platforms)}
        return any(parse_wheel_filename(name)[3] & fitting for name in self.wheels)


def package(entry: dict[str, Any], lock: str) -> Package:
    """One [[packages]] of a pylock.toml."""
    locked = [wheel for wheel in entry.get("wheels", []) if f"--hash=sha256:{wheel['hashes']['sha256']}" in lock]
    return Package(entry["name"], entry.get("marker", ""), tuple(wheel["url"].rpartition("/")[2] for wheel in locked))


@pytest.fixture(scope="module", params=LOCKS)
def locked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Package]:
    """What the lock's own tool finds in the index for every line of it."""
    found = tmp_path_factory.mktemp("lock") / "pylock.toml"
    uv = [Path(sys.executable).with_name("uv"), "pip", "compile", "--quiet", "--universal", "--python-version", "3.11"]
    more = ["--no-deps", "--generate-hashes", "--format", "pylock.toml", "-o", found, request.param]
    subprocess.run([*uv, *more], cwd=REPOSITORY, check=True, timeout=200)
    lock = (REPOSITORY / request.param).read_text()
    return [package(entry, lock) for entry in tomllib.loads(found.read_text())["packages"]]


@pytest.mark.parametrize("machine", MACHINES)
def test_every_locked_package_has_a_wheel_with_a_locked_hash(locked: list[Package], machine: str) -> None:
    wanted = [package for package in locked if package.wanted(machine)]
    assert len(wanted) > 40
    assert [package.name for package in wanted if not package.installs(machine)] == []


# The index has torch for CUDA 12 and aarch64 only as a build for the CPU, which needs none of CUDA's packages.
@pytest.mark.parametrize("locked", ["requirements.lock"], indirect=True)
def test_both_kinds_of_machines_get_the_same_packages(locked: list[Package]) -> None:
    assert [package.name for package in locked if len({package.wanted(machine) for machine in MACHINES}) == 2] == []


def test_another_kind_of_machine_would_be_noticed(locked: list[Package]) -> None:
    torch = next(package for package in locked if package.name == "torch")
    assert [torch.installs(machine) for machine in ("riscv64", *MACHINES)] == [False, True, True]
