"""The wheel, built from this checkout: what it holds, and what it says of itself."""

from __future__ import annotations

import email
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("entrypoint", "train", "bench")
BUILD = "import sys, setuptools.build_meta as build; build.build_wheel(sys.argv[1])"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel of a copy, since setuptools writes into the folder that it builds."""
    source = tmp_path_factory.mktemp("source")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("README.md", "LICENSE", "pyproject.toml"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-c", BUILD, str(source)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=120)
    (path,) = source.glob("*.whl")
    return zipfile.ZipFile(path)


def test_it_holds_every_file_of_the_packages_but_the_programs_of_others(wheel: zipfile.ZipFile) -> None:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *PACKAGES]
    listed = subprocess.check_output(command, cwd=ROOT, text=True, timeout=60).split()
    only_in_a_checkout = re.compile(r"bench/peers/|bench/gpus?\.sh")
    expected = {name for name in listed if not only_in_a_checkout.match(name)}
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == expected


def test_type_checkers_read_our_types(wheel: zipfile.ZipFile) -> None:
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(wheel.namelist())


def test_it_names_authors_licence_and_audience(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    facts = email.message_from_bytes(wheel.read(name))
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"- name: {facts['Author']}\n" in citation
    assert (facts["License-Expression"], facts["License-File"]) == ("Apache-2.0", "LICENSE")
    assert "Typing :: Typed" in facts.get_all("Classifier", [])
