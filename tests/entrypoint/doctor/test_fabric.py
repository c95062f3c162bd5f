"""Fast networks that are there and cannot be used; the devices are made up."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from machines import machine

from entrypoint.detect import detect
from entrypoint.doctor import fabric
from entrypoint.doctor.findings import Finding
from entrypoint.doctor.scene import Scene
from entrypoint.options import Options
from entrypoint.plan import plan


def scene(root: Path, nodes: int = 2) -> Scene:
    options = Options(device="cpu", nodes=nodes, node_rank=0, master_addr="127.0.0.1")
    return Scene(environ={}, plan=plan(detect({}, options, machine()), options, machine(), {}), root=root)


def with_device(root: Path, name: str, file: str | None) -> Path:
    port = root / "sys/class/infiniband" / name / "ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    if file:
        (root / "dev" / file).parent.mkdir(parents=True)
        (root / "dev" / file).touch()
    return root


def told(root: Path, kind: str, loads: bool, nodes: int = 2) -> Finding:
    return fabric.finding(fabric.FABRICS[kind], [f"{kind}_0"], scene(root, nodes), loads=lambda library: loads)


def test_a_machine_without_a_fabric_is_ok(tmp_path: Path) -> None:
    (found,) = fabric.check(scene(tmp_path))
    assert (found.state, found.text.startswith("no InfiniBand")) == ("ok", True)


def test_a_device_without_its_file_names_the_option(tmp_path: Path) -> None:
    (found,) = fabric.check(scene(with_device(tmp_path, "mlx5_0", None)))
    assert (found.state, "mlx5_0" in found.text) == ("fail", True)
    assert "--device=/dev/infiniband" in found.fix


@pytest.mark.parametrize("kind", ["mlx5", "efa"])
def test_a_missing_library_is_named(tmp_path: Path, kind: str) -> None:
    found = told(with_device(tmp_path, f"{kind}_0", "infiniband/uverbs0"), kind, loads=False)
    assert found.state == "fail"
    assert all(library in found.text for library in fabric.FABRICS[kind].libraries)
    assert found.fix


def test_slingshot_is_known_by_its_own_class(tmp_path: Path) -> None:
    (tmp_path / "sys/class/cxi/cxi0").mkdir(parents=True)
    (found,) = fabric.check(scene(tmp_path))
    assert (found.state, "Slingshot (cxi0)" in found.text) == ("fail", True)


def test_on_one_node_an_unusable_fabric_is_only_a_warning(tmp_path: Path) -> None:
    assert told(with_device(tmp_path, "mlx5_0", None), "mlx5", loads=True, nodes=1).state == "warn"


def test_too_little_locked_memory_is_named(tmp_path: Path) -> None:
    found = fabric.locked("InfiniBand (mlx5_0)", 65_536, scene(tmp_path))
    assert (found.state, "64 KiB" in found.text, "memlock=-1" in found.fix) == ("fail", True, True)


def test_with_files_libraries_and_locked_memory_all_is_well(tmp_path: Path) -> None:
    assert fabric.locked("InfiniBand (mlx5_0)", resource.RLIM_INFINITY, scene(tmp_path)).state == "ok"


def test_a_library_that_is_not_there_does_not_load() -> None:
    assert fabric.loads("libno-such-thing.so.1") is False
    assert fabric.loads("libc.so.6") is True
