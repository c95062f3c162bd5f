"""One more package in a container, as docs/image.md says: in a mounted folder, or in an image built on this one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from containers import Image, mounted, writable
from wheels import write_wheel

pytestmark = pytest.mark.timeout(600)  # the first one may have to build it


def test_a_package_in_a_mounted_folder_is_found_by_the_next_container(image: Image, tmp_path: Path) -> None:
    wheel = write_wheel(writable(tmp_path / "work"), "onemore", "there = True", "torch")
    options = (mounted(wheel.parent, "/workspace"), mounted(writable(tmp_path / "extra"), "/opt/extra"))
    installed = image.run("pip", "install", "--no-index", wheel.name, options=options)
    assert installed.code == 0, installed.output
    assert image.run("python", "-I", "-c", "import onemore; print(onemore.there)", options=options).output == "True\n"


def test_without_a_folder_the_mount_is_named(image: Image) -> None:
    ended = image.run("pip", "install", "onemore")
    assert (ended.code, "-v ./extra:/opt/extra (Docker)" in ended.output) == (73, True)
    assert "mounted there" not in ended.output


def test_a_mounted_folder_of_somebody_else_is_told_with_who_must_start_it(image: Image, tmp_path: Path) -> None:
    (tmp_path / "extra").mkdir(mode=0o700)  # of the one who tests, who is not the image's user
    options = (mounted(tmp_path / "extra", "/opt/extra"), "--user=54321:54321")
    ended = image.run("pip", "install", "onemore", options=options)
    assert (ended.code, f"a folder of user {os.getuid()}, mode 700, mounted there" in ended.output) == (73, True)
    for word in ('--user "$(id -u):$(id -g)"', "--userns=keep-id", ":z"):
        assert word in ended.output


def test_an_image_built_on_this_one_may_install_as_root(image: Image, tmp_path: Path) -> None:
    wheel = write_wheel(writable(tmp_path / "work"), "onemore", "there = True")
    script = f"pip install --no-index {wheel.name} && python -c 'import onemore; print(onemore.there)'"
    ended = image.run("bash", "-c", script, options=("--user=0:0", mounted(wheel.parent, "/workspace")))
    assert (ended.code, ended.lines("True")) == (0, ["True"]), ended.output
