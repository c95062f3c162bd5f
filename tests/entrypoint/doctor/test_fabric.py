"""Fast networks that are there and cannot be used; the devices are made up."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from pathlib import Path

import pytest
from machines import machine

from entrypoint import fabrics
from entrypoint.doctor import fabric
from entrypoint.doctor.context import CheckContext, Finding, fail
from entrypoint.launchers import detect_allocation
from entrypoint.options import LaunchOptions
from entrypoint.plan import plan_allocation

MLX5 = fabrics.FabricDevice(name="mlx5_0")
EFA = fabrics.FabricDevice(name="rdmap16s27", driver="efa")
CXI = fabrics.FabricDevice(name="cxi0", driver="cxi")
LITTLE = 65_536  # bytes


def scene(root: Path, nodes: int = 2, **environ: str) -> CheckContext:
    options = LaunchOptions(device="cpu", nodes=nodes, node_rank=0, master_addr="127.0.0.1")
    return CheckContext(
        environ=environ,
        plan=plan_allocation(detect_allocation({}, options, machine()), options, machine(), {}),
        root=root,
    )


def with_device(root: Path, name: str, file: str | None = None, driver: str = "", layer: str = "") -> Path:
    device = root / "sys/class/infiniband" / name
    files = {"state": "4: ACTIVE\n"} | ({"link_layer": f"{layer}\n"} if layer else {})
    (device / "ports/1").mkdir(parents=True)
    for name, text in files.items():
        (device / "ports/1" / name).write_text(text)
    if driver:
        (device / "device").mkdir()
        (device / "device/driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")
    if file:
        (root / "dev" / file).parent.mkdir(parents=True)
        (root / "dev" / file).touch()
    return root


def device_finding(
    root: Path, device: fabrics.FabricDevice, has: Sequence[str] = (), nodes: int = 2, **environ: str
) -> Finding:
    """What is said of this device where these libraries are installed."""
    return fabric.fabric_finding([device], scene(root, nodes, **environ), can_load=has.__contains__)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A machine that has the device files of all, and a program that may lock memory."""
    for name in ("infiniband/uverbs0", "cxi0"):
        (tmp_path / "dev" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "dev" / name).touch()
    return with_rights(tmp_path, "0000000000004000", "0 0 4294967295")


def with_rights(root: Path, effective: str, mapped: str) -> Path:
    """A program with these capabilities in a user namespace with these users."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/status").write_text(f"Name:\tpython3\nCapEff:\t{effective}\nCapBnd:\t0\n")
    (root / "proc/self/uid_map").write_text(f"         {mapped}\n")
    return root


def test_a_machine_without_a_fabric_is_ok(tmp_path: Path) -> None:
    (finding,) = fabric.check(scene(tmp_path))
    assert (finding.state, finding.text.startswith("no device of Slingshot")) == ("ok", True)


def test_a_device_without_its_file_names_the_option(tmp_path: Path) -> None:
    (finding,) = fabric.check(scene(with_device(tmp_path, "mlx5_0")))
    assert (finding.state, "mlx5_0" in finding.text) == ("fail", True)
    assert "--device=/dev/infiniband" in finding.fix


@pytest.mark.parametrize("device", [MLX5, EFA, CXI], ids=lambda device: device.name)
def test_a_missing_library_is_named(files: Path, device: fabrics.FabricDevice) -> None:
    finding, kind = device_finding(files, device), device.fabric
    assert finding.state == "fail"
    assert all(library in finding.text for library in kind.libraries)
    assert ("libnccl-net.so" in finding.text) is kind.plugin
    assert finding.fix


def test_slingshot_is_known_by_its_own_class(tmp_path: Path) -> None:
    (tmp_path / "sys/class/cxi/cxi0").mkdir(parents=True)
    (finding,) = fabric.check(scene(tmp_path))
    assert (finding.state, "Slingshot (cxi0)" in finding.text) == ("fail", True)


@pytest.mark.parametrize(
    ("name", "driver", "library"),
    [
        ("rdmap16s27", "efa", "libefa.so.1"),
        ("rocep1s0", "mlx5_core", "libmlx5.so.1"),
        ("mlx5_0", "mlx5_core", "libmlx5.so.1"),
        ("mlx5_0", "", "libmlx5.so.1"),
        ("efa_0", "", "libefa.so.1"),
    ],
)
def test_a_device_is_known_by_its_driver_whatever_its_name_is(
    tmp_path: Path, name: str, driver: str, library: str
) -> None:
    with_device(tmp_path, name, driver=driver)
    (device,) = fabrics.list_active_devices(tmp_path)
    assert library in device.fabric.libraries


def test_on_one_node_an_unusable_fabric_is_only_a_warning(tmp_path: Path) -> None:
    assert device_finding(tmp_path, MLX5, nodes=1).state == "warn"


@pytest.mark.parametrize("layer", ["Ethernet", "InfiniBand"])
def test_a_card_that_may_be_a_plain_network_card_is_only_a_warning(tmp_path: Path, layer: str) -> None:
    (finding,) = fabric.check(scene(with_device(tmp_path, "mlx5_0", layer=layer)))
    ethernet = layer == "Ethernet"
    assert (finding.state, "NCCL_NET=Socket" in finding.fix) == ("warn" if ethernet else "fail", ethernet)


@pytest.mark.parametrize(
    ("device", "name", "value", "state"),
    [
        (MLX5, "NCCL_NET", "Socket", "ok"),
        (EFA, "NCCL_NET", "socket", "ok"),
        (MLX5, "NCCL_IB_DISABLE", "1", "ok"),
        (MLX5, "NCCL_IB_DISABLE", "0", "fail"),
        (EFA, "NCCL_IB_DISABLE", "1", "fail"),
        (MLX5, "NCCL_NET", "IB", "fail"),
    ],
)
def test_where_tcp_was_chosen_a_fast_network_is_not_missed(
    tmp_path: Path, device: fabrics.FabricDevice, name: str, value: str, state: str
) -> None:
    finding = device_finding(tmp_path, device, **{name: value})
    assert (finding.state, f"{name}={value}" in finding.text) == (state, state == "ok")


@pytest.mark.parametrize(
    ("value", "file", "state"),
    [
        ("", "libnccl-net.so", "ok"),
        ("ofi", "libnccl-net-ofi.so", "ok"),
        ("aws,other", "libnccl-net-aws.so", "ok"),
        ("/opt/plugin/libofi.so", "/opt/plugin/libofi.so", "ok"),
        ("ofi", "libnccl-net.so", "fail"),
        ("", "libnccl-net-ofi.so", "fail"),
    ],
)
def test_the_plugin_is_the_file_that_nccl_would_take(files: Path, value: str, file: str, state: str) -> None:
    for device in (EFA, CXI):
        has = (file, *device.fabric.libraries)
        assert device_finding(files, device, has, NCCL_NET_PLUGIN=value).state == state


def test_too_little_locked_memory_is_named(tmp_path: Path) -> None:
    finding = fabric.memlock_finding("InfiniBand (mlx5_0)", LITTLE, scene(tmp_path), fail)
    assert (finding.state, "64 KiB" in finding.text, "memlock=-1" in finding.fix) == ("fail", True, True)


@pytest.mark.parametrize(
    ("effective", "mapped", "state"),
    [
        ("0000000000004000", "0 0 4294967295", "ok"),
        ("00000000a80425fb", "0 0 4294967295", "fail"),
        ("0000000000004000", "0 100000 65536", "fail"),
    ],
    ids=["allowed", "docker's capabilities", "a user namespace"],
)
def test_who_may_lock_memory_without_a_limit_has_enough(
    tmp_path: Path, effective: str, mapped: str, state: str
) -> None:
    here = scene(with_rights(tmp_path, effective, mapped))
    assert fabric.memlock_finding("InfiniBand (mlx5_0)", LITTLE, here, fail).state == state


def test_with_files_libraries_and_locked_memory_all_is_well(tmp_path: Path) -> None:
    assert fabric.memlock_finding("InfiniBand (mlx5_0)", resource.RLIM_INFINITY, scene(tmp_path), fail).state == "ok"


def test_a_library_that_is_not_there_does_not_load() -> None:
    assert fabric.can_load_library("libno-such-thing.so.1") is False
    assert fabric.can_load_library("libc.so.6") is True


def test_each_fabric_has_its_profile_and_each_profile_its_fabric() -> None:
    files = {path.name for path in (Path(__file__).parents[3] / fabrics.PROFILES).iterdir()}
    assert {fabric.profile for fabric in fabrics.FABRICS} | {fabrics.ETHERNET_PROFILE} == files


@pytest.mark.parametrize("device", [EFA, CXI], ids=lambda device: device.name)
def test_a_plugin_that_is_missing_leads_to_the_settings_of_its_network(
    files: Path, device: fabrics.FabricDevice
) -> None:
    assert f"{fabrics.PROFILES}/{device.fabric.profile}" in device_finding(files, device).fix
