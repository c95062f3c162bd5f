"""What is in the image, and what is not."""

from __future__ import annotations

import json
import re
import tomllib

import pytest
from containers import Image, call
from machines import REPOSITORY

pytestmark = pytest.mark.timeout(600)  # the first one may have to build it

COMPILE = """
import torch
double = torch.compile(lambda x: x.sin() * 2)
torch.testing.assert_close(double(torch.ones(8)), torch.ones(8).sin() * 2)
"""


def printed(image: Image, script: str) -> list[str]:
    """What a shell in the image prints."""
    ended = image.run("bash", "-c", script)
    assert ended.code == 0, ended.output
    return ended.output.splitlines()


def test_torch_is_a_cuda_build(image: Image) -> None:
    assert image.run("python", "-c", "import torch, torchvision; print(torch.version.cuda)").output.strip() != "None"


def test_facts_name_version_and_lock(image: Image) -> None:
    facts = json.loads("\n".join(printed(image, "cat /opt/image.json")))
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert facts["version"] == project["version"]
    assert set(facts) == {"version", "revision", "architecture", "python", "torch", "cuda", "lock_sha256"}


def test_labels_name_the_version(image: Image) -> None:
    shown = call(image.engine, "image", "inspect", image.name).stdout
    labels = dict(re.findall(r'"org\.opencontainers\.image\.(\w+)": "([^"]*)"', shown))
    assert labels["version"] == tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    assert labels["title"] == "train-image"


def test_the_user_is_not_root_and_may_write_only_where_everyone_may(image: Image) -> None:
    number, *places = printed(image, "id -u; find / -xdev -writable ! -type l ! -path '/proc/*' 2>/dev/null || true")
    assert (number, sorted(places)) == ("1000", ["/run/lock", "/tmp", "/var/tmp"])


def test_no_file_gives_more_rights(image: Image) -> None:
    assert printed(image, "find / -xdev -type f -perm /6000 2>/dev/null || true") == []


def test_no_cache_and_no_setting_of_the_builder_is_left(image: Image) -> None:
    places = "/etc/pip.conf ~root/.cache /source /built /tmp/* /var/lib/apt/lists/* /var/cache/apt/archives/*.deb"
    assert printed(image, f"ls -d {places} 2>/dev/null || true") == []


def test_no_variable_stands_in_the_way_of_a_site(image: Image) -> None:
    names = {line.split("=")[0] for line in printed(image, "env")}
    ours = {"PATH", "LANG", "PYTHONNOUSERSITE", "PYTHONSAFEPATH"}
    assert names - ours <= {"HOME", "HOSTNAME", "PWD", "SHLVL", "TERM", "_", "container"}


def test_models_can_be_compiled_by_any_user(image: Image) -> None:
    ended = image.run("python", "-c", COMPILE, options=("--user=54321:54321", "--env=HOME=/tmp/home"), seconds=300)
    assert ended.code == 0, ended.output
