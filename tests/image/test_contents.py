"""What is in the image, and what is not."""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path

import pytest
from containers import BUILD, CUDA, Image, call
from machines import REPOSITORY

from entrypoint.images import IMAGES

pytestmark = [pytest.mark.every_run, pytest.mark.timeout(600)]  # the first one may have to build it

COMPILE = """
import torch
double = torch.compile(lambda x: x.sin() * 2)
torch.testing.assert_close(double(torch.ones(8)), torch.ones(8).sin() * 2)
"""


CAPABLE = """
import os
places = ("/bin", "/etc", "/home", "/opt", "/root", "/sbin", "/srv", "/usr", "/var")
files = [os.path.join(folder, name) for place in places for folder, _, names in os.walk(place) for name in names]
capable = [path for path in files if not os.path.islink(path) and "security.capability" in os.listxattr(path)]
print(capable or ("none of many" if len(files) > 10000 else "none of few"))
"""


def as_root(image: Image, script: str) -> list[str]:
    """What a shell of root prints, who sees everything."""
    ended = image.run("sh", "-c", script, options=("--user=0",))
    assert ended.code == 0, ended.output
    return ended.output.splitlines()


def printed(image: Image, script: str) -> list[str]:
    """What a shell in the image prints."""
    ended = image.run("bash", "-c", script)
    assert ended.code == 0, ended.output
    return ended.output.splitlines()


def test_torch_is_a_cuda_build(image: Image) -> None:
    (version,) = printed(image, "python -c 'import torch, torchvision; print(torch.version.cuda)'")
    assert re.fullmatch(r"\d+\.\d+", version)


def test_facts_name_version_and_lock(image: Image) -> None:
    facts = json.loads("\n".join(printed(image, "cat /opt/image.json")))
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert facts["version"] == project["version"]
    names = {"version", "revision", "architecture", "python", "torch", "cuda", "architectures", "lock", "lock_sha256"}
    assert set(facts) == names


def test_the_table_of_images_tells_what_the_image_holds(image: Image) -> None:
    facts = json.loads("\n".join(printed(image, "cat /opt/image.json")))
    entry = IMAGES[CUDA]
    assert facts["torch"].partition("+")[0] == entry.torch
    assert facts["cuda"] == "{}.{}".format(*entry.cuda)
    assert facts["architectures"] == [f"sm_{major}{minor}" for major, minor in entry.architectures]


def test_labels_name_what_it_is_and_what_it_is_made_of(image: Image) -> None:
    shown = json.loads(call(image.engine, "image", "inspect", image.name).stdout)[0]["Config"]["Labels"]
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in shown.items()}
    assert labels["version"] == tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    assert (labels["title"], labels["licenses"]) == ("train-image", "Apache-2.0")
    bases = ("docker.io/library/debian:", "localhost/debian-stand-in:")
    assert labels["base.name"].startswith(os.environ.get("BASE", bases))
    assert labels["base.digest"] in ("", labels["base.name"].rpartition("@")[2])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", labels["created"])
    assert labels["revision"] == json.loads("\n".join(printed(image, "cat /opt/image.json")))["revision"]


def test_the_examples_are_there_to_copy_without_what_running_them_left(image: Image) -> None:
    listed = call("git", "-C", str(REPOSITORY), "ls-files", "examples").stdout.split()
    shown = printed(image, "ls -A /opt/train-image/examples")
    assert {f"examples/{name}" for name in shown} >= set(listed) != set()
    assert {Path(name).suffix for name in shown} == {".md", ".py", ".yaml"}


def test_the_sif_is_small_enough_to_copy(image: Image) -> None:
    done = call(str(BUILD), "sif", seconds=580)
    assert done.returncode == 0, done.stdout
    assert Path(done.stdout.splitlines()[-1]).stat().st_size <= {"13": 3.5e9, "12": 4.7e9}[CUDA]


def test_the_user_is_not_root_and_may_write_only_where_everyone_may(image: Image) -> None:
    number, *places = printed(image, "id -u; find / -xdev -writable ! -type l ! -path '/proc/*' 2>/dev/null || true")
    assert (number, sorted(places)) == ("1000", ["/run/lock", "/tmp", "/var/tmp"])


def test_nothing_but_sticky_folders_may_be_written_by_everyone(image: Image) -> None:
    assert as_root(image, "find / -xdev -perm /0002 ! -type l ! -path '/proc/*' ! -perm -1000") == []


def test_no_file_gives_more_rights(image: Image) -> None:
    assert as_root(image, "find / -xdev -type f -perm /6000") == []


def test_no_file_has_capabilities(image: Image) -> None:
    assert as_root(image, f"/opt/venv/bin/python -I -c '{CAPABLE}'") == ["none of many"]


def test_no_account_can_log_in(image: Image) -> None:
    assert as_root(image, "cut -d: -f2 /etc/shadow | sort -u | grep -v '^[*!]' || true") == []


def test_no_account_tells_the_day_of_the_build(image: Image) -> None:
    assert as_root(image, "grep -h ^train: /etc/shadow* | cut -d: -f3 | sort -u") == ["18262"]  # 2020-01-01


def test_no_cache_and_no_setting_of_the_builder_is_left(image: Image) -> None:
    places = (
        "/etc/pip.conf /run/secrets ~/.cache ~/.config ~/.local /source /built /tmp/* /var/tmp/* /var/lib/apt/lists/*"
    )
    more = "/var/cache/apt/archives/*.deb /var/cache/apt/*.bin /var/log/*.log /var/log/apt /etc/apt/apt.conf.d/*proxy*"
    assert as_root(image, f"ls -d {places} {more} 2>/dev/null || true") == []


def test_no_proxy_of_the_builder_is_left_in_the_settings(image: Image) -> None:
    shown = call(image.engine, "image", "inspect", image.name).stdout
    assert not re.search(r"_proxy=|pip\.conf=|BEGIN CERTIFICATE", shown, re.I)


def test_no_variable_stands_in_the_way_of_a_site(image: Image) -> None:
    names = {line.split("=")[0] for line in printed(image, "env")}
    ours = {"PATH", "LANG", "PYTHONNOUSERSITE", "PYTHONSAFEPATH", "NVIDIA_DRIVER_CAPABILITIES"}
    assert names - ours <= {"HOME", "HOSTNAME", "PWD", "SHLVL", "TERM", "_", "container"}


def test_models_can_be_compiled_by_any_user(image: Image) -> None:
    ended = image.run("python", "-c", COMPILE, options=("--user=54321:54321", "--env=HOME=/tmp/home"), seconds=300)
    assert ended.code == 0, ended.output


@pytest.mark.parametrize("library", ["libibverbs.so.1", "librdmacm.so.1", "libibverbs/libmlx5-rdmav*.so"])
def test_nccl_finds_what_it_needs_for_infiniband(image: Image, library: str) -> None:
    """Without these it uses TCP, several times slower, and says nothing."""
    assert printed(image, f"ls /usr/lib/*/{library}")
