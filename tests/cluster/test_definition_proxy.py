"""A password in a proxy's address: the steps of apptainer.def need it, and nobody finds it in the image."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from containers import call
from machines import REPOSITORY

IN_NODE = str(REPOSITORY / "tests" / "in-node")
RECIPE = (REPOSITORY / "apptainer.def").read_text()
PASSWORD = "a-builders-password"
PROXY = f"http://builder:{PASSWORD}@proxy.example.org:3128"
# In place of Debian, which takes a minute: what the settings before the first step need.
BASE = """
    for program in /bin/sh /bin/mkdir; do
        for file in "$program" $(ldd "$program" | grep -o '/[^ ]*'); do
            mkdir -p "$APPTAINER_ROOTFS${file%/*}" && cp -L "$file" "$APPTAINER_ROOTFS$file"
        done
    done
    mkdir -p "$APPTAINER_ROOTFS/opt"
"""


def section(name: str) -> str:
    """One section of apptainer.def."""
    return RECIPE.split(f"\n%{name}\n")[1].split("\n%")[0]


@pytest.fixture(scope="module")
def place(provisioned: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the recipe up to its first step, which tells what that one would see."""
    made = tmp_path_factory.mktemp("recipe")
    settings, step, _ = section("post").partition("    sh ")
    assert step
    text = f"Bootstrap: scratch\n\n%arguments\n{section('arguments')}\n%setup{BASE}\n%post\n{settings}"
    (made / "probe.def").write_text(f'{text}\n    echo "<$http_proxy> <$https_proxy> <$no_proxy>"\n')
    return made


def test_the_shells_proxy_reaches_the_steps_and_its_password_stays_in_no_image(place: Path) -> None:
    environ = (f"http_proxy={PROXY}", f"https_proxy={PROXY}", "no_proxy=.example.org")
    built = call(IN_NODE, "--user", str(place), "env", *environ, "apptainer", "build", "probe.sif", "probe.def")
    assert f"\n<{PROXY}> <{PROXY}> <.example.org>\n" in built.stdout, built.stdout
    shown = call(IN_NODE, str(place), "apptainer", "inspect", "--all", "probe.sif").stdout
    assert "SNAPSHOT" in json.loads(shown[shown.index("{") :])["data"]["attributes"]["deffile"]
    assert (PASSWORD in shown, PASSWORD.encode() in (place / "probe.sif").read_bytes()) == (False, False)


def test_a_proxy_as_a_build_argument_is_refused_for_it_would_stay(place: Path) -> None:
    words = ("apptainer", "build", "--build-arg", f"PROXY={PROXY}", "never.sif", "probe.def")
    done = call(IN_NODE, "--user", str(place), *words)
    assert (done.returncode != 0, "unused build args: PROXY" in done.stdout) == (True, True), done.stdout
    assert not (place / "never.sif").exists()
