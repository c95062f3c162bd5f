"""`make sbom`: every package that is in the image, and no other."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from containers import LOCK, Image
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from machines import REPOSITORY
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.timeout(600)  # the first one may have to build the image

LOCKED = LOCK.read_text().replace("\\\n", "")


@pytest.fixture(scope="module")
def document(image: Image, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The bill, as a user gets it."""
    place = tmp_path_factory.mktemp("sbom")
    subprocess.run([sys.executable, REPOSITORY / "tools" / "sbom", place], check=True, timeout=300, cwd=place)
    return (place / "train.cdx.json").read_text()


@pytest.fixture(scope="module")
def components(document: str) -> list[dict[str, Any]]:
    """Its packages."""
    return list(json.loads(document)["components"])


@pytest.fixture(scope="module")
def facts(image: Image) -> dict[str, str]:
    """What /opt/image.json says."""
    return dict(json.loads(image.run("cat", "/opt/image.json").output))


def test_it_is_valid(document: str) -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(document) is None


def test_it_has_every_locked_package_with_a_locked_hash(
    components: list[dict[str, Any]], facts: dict[str, str]
) -> None:
    listed = {
        (canonicalize_name(c["name"]), c["version"]): c["hashes"][0]["content"] for c in components if c.get("hashes")
    }
    expected = locked(facts)
    assert len(expected) > 40
    assert {key: listed.get(key) in hashes for key, hashes in expected.items()} == dict.fromkeys(expected, True)


def locked(facts: dict[str, str]) -> dict[tuple[str, str], list[str]]:
    """The hashes that the lock allows for each package that such an image has."""
    place = {"platform_machine": facts["architecture"], "python_full_version": facts["python"], "sys_platform": "linux"}
    found = {}
    for line in LOCKED.splitlines():
        wanted = Requirement(line.split(" --hash")[0])
        if wanted.marker is None or wanted.marker.evaluate(place):
            found[wanted.name, str(wanted.specifier)[2:]] = re.findall("sha256:([0-9a-f]+)", line)
    return found


def test_every_python_package_but_ours_has_the_hash_of_its_wheel(components: list[dict[str, Any]]) -> None:
    without = [c["name"] for c in components if c["purl"].startswith("pkg:pypi/") and not c.get("hashes")]
    assert set(without) <= {"train-image"}


def test_it_has_every_debian_package_and_no_other(image: Image, components: list[dict[str, Any]]) -> None:
    installed = image.run("dpkg-query", "-W", "-f", "${Package} ${Version}\\n").output.splitlines()
    listed = [f"{c['name']} {c['version']}" for c in components if c["purl"].startswith("pkg:deb/")]
    assert len(listed) > 100
    assert sorted(listed) == sorted(installed)


def test_it_says_which_image_it_describes(document: str, facts: dict[str, str]) -> None:
    told = {one["name"]: one["value"] for one in json.loads(document)["metadata"]["properties"]}
    assert (told["train-image:revision"], told["train-image:lock_sha256"]) == (facts["revision"], facts["lock_sha256"])


def test_it_names_nothing_of_the_machine_that_made_it(document: str) -> None:
    assert not re.search(rf"{Path.home()}|/tmp/|file://", document)
