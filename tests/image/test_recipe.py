"""The two recipes, read as text: they make the same image of the same files."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from containers import Image
from machines import REPOSITORY

OCI = (REPOSITORY / "Containerfile").read_text()
APPTAINER = (REPOSITORY / "apptainer.def").read_text()
BUILD = (REPOSITORY / "tools" / "build-image").read_text()
RECIPE = sorted(
    [
        *(REPOSITORY / "image").iterdir(),
        *(REPOSITORY / name for name in ("Containerfile", "apptainer.def", "tools/build-image")),
    ]
)


def section(name: str) -> str:
    """One section of apptainer.def."""
    return APPTAINER.split(f"\n%{name}\n")[1].split("\n%")[0]


def test_both_take_the_same_files() -> None:
    allowed = {line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert {line.split()[0] for line in section("files").splitlines() if line} == allowed


def test_a_change_of_any_file_taken_is_a_new_image() -> None:
    allowed = {line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    keyed = re.search(r"SOURCES=\((.*)\)", BUILD)
    assert keyed
    assert set(keyed[1].split()) == allowed | {"Containerfile", ".dockerignore"}


def test_both_run_the_same_steps_in_the_same_order() -> None:
    steps = [re.findall(r"image/(\w+\.sh)|recipe/(\w+\.sh)", text) for text in (runs(OCI), section("post"))]
    assert [[a or b for a, b in found] for found in steps] == [["system.sh", "dependencies.sh", "project.sh"]] * 2


def runs(text: str) -> str:
    """The RUN instructions."""
    return "\n".join(re.findall(r"^RUN (?:.*\\\n)*.*$", text, re.M))


def test_both_start_from_the_same_base() -> None:
    base = re.search(r"^ARG BASE=docker\.io/library/debian:trixie-slim@(sha256:[0-9a-f]{64})$", OCI, re.M)
    assert base
    assert f"    BASE=debian@{base[1]}\n" in APPTAINER  # Apptainer 1.4 takes no tag beside a digest


def test_the_page_renews_the_base_of_both(tmp_path: Path) -> None:
    line = re.search(r"^sed -i -E .*digest.*$", (REPOSITORY / "docs" / "image.md").read_text(), re.M)
    assert line
    for name, text in (("Containerfile", OCI), ("apptainer.def", APPTAINER)):
        (tmp_path / name).write_text(text)
    new = f"sha256:{'0' * 64}"
    subprocess.run(["bash", "-euc", line[0]], env={**os.environ, "digest": new}, cwd=tmp_path, check=True, timeout=60)
    for name, text in (("Containerfile", OCI), ("apptainer.def", APPTAINER)):
        assert (tmp_path / name).read_text() == re.sub("sha256:[0-9a-f]{64}", new, text, count=1) != text


def test_both_set_the_same_variables() -> None:
    block = re.search(r"^ENV ((?:.*\\\n)*.*)$", OCI, re.M)
    assert block
    oci = dict(re.findall(r"(\w+)=(\S+)", block[1]))
    apptainer = dict(re.findall(r"export (\w+)=(\S+)", section("environment")))
    assert {name: re.sub(r'"\$\{\w+:-(.*)\}"', r"\1", value) for name, value in apptainer.items()} == oci


def test_both_have_the_same_labels() -> None:
    oci = set(re.findall(r"(org\.opencontainers\.image\.[\w.]+)=", OCI))
    assert oci == set(re.findall(r"(org\.opencontainers\.image\.[\w.]+) ", section("labels") + section("post")))


def test_its_own_test_holds_in_a_job_of_many_tasks(image: Image) -> None:
    job = ("--env=SLURM_JOB_ID=7", "--env=SLURM_NTASKS=8", "--env=SLURM_JOB_NUM_NODES=1")
    ended = image.run("sh", "-c", section("test"), options=job)
    assert (ended.code, "launcher          local" in ended.output) == (0, True), ended.output


def test_a_build_without_make_names_its_version_and_commit_by_the_line_of_the_page() -> None:
    line = re.search(r"^docker build .*$", (REPOSITORY / "docs" / "image.md").read_text(), re.M)
    assert line
    command = ["bash", "-euc", f"docker() {{ printf '%s\n' \"$@\"; }}; {line[0]}"]
    words = subprocess.check_output(command, cwd=REPOSITORY, text=True, timeout=60).splitlines()
    assert [words[0], *words[-3:]] == ["build", "-t", "train", "."]
    given = dict(word.split("=", 1) for word in words if "=" in word)
    assert (
        {"VERSION", "REVISION"}
        <= given.keys()
        <= set(re.findall(r"([A-Z_]+)=", "".join(re.findall(r"^ARG .*", OCI, re.M))))
    )
    assert "unknown" not in given.values()


@pytest.mark.parametrize("path", RECIPE, ids=lambda path: path.name)
def test_no_architecture_is_named(path: Path) -> None:
    assert not re.search(r"amd64|x86|arm64|aarch64|i[36]86|TARGETARCH|--platform", path.read_text(), re.I)


def test_a_machine_without_an_engine_is_told_what_to_install() -> None:
    command = [REPOSITORY / "tools" / "build-image", "image"]
    environ = {**os.environ, "ENGINE": "no-such-engine"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "fix: apt-get install podman" in done.stderr) == (1, True)


def test_a_base_with_a_digest_is_never_replaced_by_a_stand_in(tmp_path: Path) -> None:
    environ = {
        **os.environ,
        "TESTBED_CACHE": str(tmp_path),
        "BASE": f"localhost:1/debian:trixie-slim@sha256:{'0' * 64}",
    }
    command = [REPOSITORY / "tools" / "build-image", "base"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 1
    assert re.search(r"cannot be pulled; fix: BASE=IMAGE|none of .* works here", done.stderr), done.stderr
