"""A signed image is told from one that is not signed, was changed, or was signed by somebody else."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from machines import REPOSITORY

Done = subprocess.CompletedProcess[str]
IN_NODE = str(REPOSITORY / "tests" / "in-node")
UNSIGNED = "signature not found"


def call(*command: str, **variables: str) -> Done:
    """Run a program to its end; its output is one text."""
    return subprocess.run(
        command, env={**os.environ, **variables}, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, check=False,
    )  # fmt: skip


def make(target: str, sif: Path, key: Path | str) -> Done:
    return call("make", "--silent", "-C", str(REPOSITORY), target, f"SIF={sif}", f"KEY={key}")


@pytest.fixture(scope="module")
def place(provisioned: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pairs of keys, made as docs/image.md says, an image that is not signed, and one that is."""
    place = tmp_path_factory.mktemp("signing")
    (place / "content").mkdir()
    (place / "content" / "hello").write_text("hello\n")
    pair = "openssl genpkey -algorithm ed25519 -out {0}.key && openssl pkey -in {0}.key -pubout -out {0}.pub"
    words = ["apptainer build --disable-cache unsigned.sif content", pair.format("site"), pair.format("other")]
    made = call(IN_NODE, str(place), "bash", "-c", " && ".join(words))
    assert made.returncode == 0, made.stdout
    shutil.copy(place / "unsigned.sif", place / "signed.sif")
    signed = make("sign", place / "signed.sif", place / "site.key")
    assert signed.returncode == 0, signed.stdout
    return place


def test_a_signed_image_is_verified(place: Path) -> None:
    done = make("verify", place / "signed.sif", place / "site.pub")
    assert done.returncode == 0, done.stdout
    assert "Verified signature" in done.stdout


def test_an_unsigned_image_is_refused(place: Path) -> None:
    done = make("verify", place / "unsigned.sif", place / "site.pub")
    assert (done.returncode, UNSIGNED in done.stdout) == (2, True)


def test_another_key_is_refused(place: Path) -> None:
    done = make("verify", place / "signed.sif", place / "other.pub")
    assert (done.returncode, "accepted signatures do not match" in done.stdout) == (2, True)


def test_one_changed_byte_is_found(place: Path, tmp_path: Path) -> None:
    content = bytearray((place / "signed.sif").read_bytes())
    content[content.index(b"hsqs") + 100] ^= 1  # in the file system's first block
    (tmp_path / "changed.sif").write_bytes(content)
    done = make("verify", tmp_path / "changed.sif", place / "site.pub")
    assert (done.returncode, "integrity" in done.stdout) == (2, True)


def test_a_second_signature_does_not_make_up_for_the_first(place: Path, tmp_path: Path) -> None:
    sif = Path(shutil.copy(place / "signed.sif", tmp_path))
    assert make("sign", sif, place / "other.key").returncode == 0
    assert make("verify", sif, place / "other.pub").returncode == 2


@pytest.mark.parametrize(("target", "key"), [("sign", ""), ("verify", "no-such-file")])
def test_a_missing_key_is_named_with_its_fix(place: Path, target: str, key: str) -> None:
    done = make(target, place / "signed.sif", key)
    assert (done.returncode, f"fix: make {target} KEY=FILE" in done.stdout) == (2, True)


def test_a_machine_without_apptainer_is_told_where_to_sign(place: Path, tmp_path: Path) -> None:
    for name in ("bash", "dirname", "id", "readlink", "sed"):
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    command = str(REPOSITORY / "tools" / "signature"), "verify", str(place / "signed.sif"), str(place / "site.pub")
    done = call(*command, TESTBED_CACHE=str(tmp_path), PATH=str(tmp_path))
    assert (done.returncode, "fix: run this where it is" in done.stdout) == (69, True)


@pytest.mark.parametrize(
    ("sif", "key", "code"),
    [("signed", "site", 0), ("signed", "other", 255), ("signed", None, 255), ("unsigned", "site", 255)],
)
def test_what_a_job_script_asks_is_answered_by_the_exit_code(place: Path, sif: str, key: str | None, code: int) -> None:
    """The command of the scripts in launch/, which asks no server on the network."""
    option = ("--key", f"{key}.pub") if key else ()
    done = call(IN_NODE, str(place), "apptainer", "verify", "--local", *option, f"{sif}.sif")
    assert done.returncode == code, done.stdout
