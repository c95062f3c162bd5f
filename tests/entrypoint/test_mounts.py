"""What a container does not show is told from what is not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from entrypoint import ExitCode, mounts

ELSEWHERE = (Path("/proc"),)  # never the file system of a test's folder


def test_a_path_in_a_place_of_the_containers_own_is_not_visible(tmp_path: Path) -> None:
    path = tmp_path / "data" / "cifar"
    failure = mounts.unmounted_path_failure("data.root", path, engine="apptainer", own=(tmp_path,))
    assert failure is not None
    assert failure.what == f"data.root {path} is not visible inside the container"
    assert failure.fix.startswith(f"apptainer exec --bind {path} ")
    assert failure.code == ExitCode.NO_INPUT


def test_a_file_is_mounted_with_its_folder(tmp_path: Path) -> None:
    failure = mounts.unmounted_path_failure(
        "--config", tmp_path / "site" / "cfg.yaml", engine="apptainer", own=(tmp_path,)
    )
    assert failure is not None
    assert failure.fix.startswith(f"apptainer exec --bind {tmp_path / 'site'} ")


def test_the_fix_can_be_typed_as_it_is(tmp_path: Path) -> None:
    failure = mounts.unmounted_path_failure("data.root", tmp_path / "my data", engine="apptainer", own=(tmp_path,))
    assert failure is not None
    assert failure.fix.endswith(f"APPTAINER_BIND='{tmp_path / 'my data'}'")


def test_a_working_directory_that_is_not_mounted_may_be_behind_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    failure = mounts.unmounted_path_failure("--config", Path("cfg.yaml"), engine="apptainer", own=(tmp_path,))
    assert failure is not None
    assert 'cd "$(pwd -P)"' in failure.fix


def test_below_a_mounted_folder_a_path_is_only_wrong(tmp_path: Path) -> None:
    assert mounts.unmounted_path_failure("--config", tmp_path / "no.yaml", engine="apptainer", own=ELSEWHERE) is None


def test_what_is_there_is_visible(tmp_path: Path) -> None:
    assert mounts.unmounted_path_failure("data.root", tmp_path, engine="apptainer", own=(tmp_path,)) is None


@pytest.mark.parametrize("below", ["", "imagenet"])
def test_where_a_link_leads_to_is_what_has_to_be_mounted(tmp_path: Path, below: str) -> None:
    target = tmp_path / "scratch" / "me"
    (tmp_path / "link").symlink_to(target)
    failure = mounts.unmounted_path_failure("data.root", tmp_path / "link" / below, engine="apptainer", own=(tmp_path,))
    assert failure is not None
    assert failure.fix.endswith(f"APPTAINER_BIND={target / below}")
    assert f"{tmp_path / 'link' / below} leads to {target / below}" in str(failure.found)


def test_a_link_to_nothing_in_a_mounted_folder_is_only_wrong(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "removed")
    assert mounts.unmounted_path_failure("data.root", tmp_path / "link", engine="apptainer", own=ELSEWHERE) is None


def test_a_link_to_what_is_there_is_visible(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert mounts.unmounted_path_failure("data.root", tmp_path / "link", engine="apptainer", own=(tmp_path,)) is None


@pytest.mark.parametrize("engine", ["none", "docker"])
def test_without_apptainer_a_path_is_only_wrong(tmp_path: Path, engine: mounts.EngineName) -> None:
    assert mounts.unmounted_path_failure("data.root", tmp_path / "no", engine=engine, own=(tmp_path,)) is None


def image_at(root: Path, *mount_lines: str) -> Path:
    """What our image looks like from inside: its mark, and its mounts."""
    for name in ("opt", "proc/self"):
        (root / name).mkdir(parents=True)
    (root / mounts.OUR_IMAGE_MARKER).write_text("{}")
    (root / "proc/self/mounts").write_text(
        "".join(f"{mount} rw 0 0\n" for mount in ("overlay / overlay", *mount_lines))
    )
    return root


@pytest.mark.parametrize("engine", ["docker", "none"])
def test_the_layer_of_our_image_ends_with_its_container(tmp_path: Path, engine: mounts.EngineName) -> None:
    assert mounts.is_ephemeral_path(tmp_path, engine=engine, root=image_at(tmp_path / "image"))


def test_a_folder_that_is_mounted_into_our_image_stays(tmp_path: Path) -> None:
    root = image_at(tmp_path / "image", f"/dev/sda1 {tmp_path} ext4")
    assert not mounts.is_ephemeral_path(tmp_path, engine="docker", root=root)


def test_another_container_may_be_a_whole_machine(tmp_path: Path) -> None:
    root = image_at(tmp_path / "image")
    (root / mounts.OUR_IMAGE_MARKER).unlink()
    assert not mounts.is_ephemeral_path(tmp_path, engine="docker", root=root)


def test_a_home_in_apptainers_session_ends_with_it(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").touch()
    (tmp_path / "home").mkdir()
    assert mounts.is_ephemeral_path(tmp_path / "home", engine="apptainer", root=tmp_path)


def test_a_folder_of_the_host_outlasts_apptainers_session(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").touch()
    assert not mounts.is_ephemeral_path(Path("/proc"), engine="apptainer", root=tmp_path)


def test_a_writable_image_that_is_not_the_session_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").touch()
    session = os.statvfs("/proc")  # of another size than the disk
    statvfs = os.statvfs
    monkeypatch.setattr(os, "statvfs", lambda place: session if str(place).endswith("passwd") else statvfs(place))
    assert not mounts.is_ephemeral_path(tmp_path, engine="apptainer", root=tmp_path)
