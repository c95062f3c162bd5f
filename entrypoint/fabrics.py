"""A Fabric is all that the product knows of one network between nodes: how it shows, what NCCL needs, its settings."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from entrypoint.files import StrPath, read_text

PROFILES: Final = "launch/fabric"  # the folder with the settings of each fabric, for job scripts
_PLUGIN_FIX: Final = "bind the site's libfabric and its NCCL plugin (aws-ofi-nccl) into the container: see {profile}"
_INFINIBAND_FIX: Final = "install libibverbs1 and ibverbs-providers in the image (the project's image has them)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """A type of network.

    Attributes:
        drivers: prefixes of the names of its drivers in the kernel; empty: of any other driver. The driver decides
            because rdma-core renames devices: EFA's `rdmap16s27`, mlx5's `rocep1s0`, `ibp1s0`.
        libraries: what NCCL needs to use it.
        devices: the path of its device files.
        profile: its settings, a file in PROFILES.
        fix: what to do if a library is missing.
        plugin: whether NCCL needs a network plugin, too, and libfabric. In the image NCCL itself uses InfiniBand
            through libibverbs.
    """

    name: str
    drivers: tuple[str, ...]
    libraries: tuple[str, ...]
    devices: str = "dev/infiniband/uverbs*"
    profile: str
    fix: str
    plugin: bool = False


ETHERNET_PROFILE: Final = "ethernet.env"  # TCP works on every network, and has no device of its own
FABRICS: Final = (
    Fabric(
        name="Slingshot",
        drivers=("cxi",),
        libraries=("libcxi.so.1", "libfabric.so.1"),
        devices="dev/cxi*",
        profile="slingshot.env",
        fix=_PLUGIN_FIX.format(profile=f"{PROFILES}/slingshot.env"),
        plugin=True,
    ),
    Fabric(
        name="EFA",
        drivers=("efa",),
        libraries=("libefa.so.1", "libfabric.so.1"),
        profile="efa.env",
        fix=_PLUGIN_FIX.format(profile=f"{PROFILES}/efa.env"),
        plugin=True,
    ),
    Fabric(
        name="InfiniBand or RoCE",
        drivers=("mlx5",),
        libraries=("libibverbs.so.1", "libmlx5.so.1"),
        profile="infiniband.env",
        fix=_INFINIBAND_FIX,
    ),
    Fabric(
        name="InfiniBand or RoCE",
        drivers=("",),
        libraries=("libibverbs.so.1",),
        profile="infiniband.env",
        fix=_INFINIBAND_FIX,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricDevice:
    """A device of a fast network, such as `mlx5_0`, one of whose ports is up.

    driver: the kernel's, empty if unknown. ethernet: all ports that are up carry Ethernet.
    """

    name: str
    driver: str = ""
    ethernet: bool = False

    @property
    def fabric(self) -> Fabric:
        """The network that it belongs to."""
        return next(fabric for fabric in FABRICS if (self.driver or self.name).startswith(fabric.drivers))


def list_active_devices(root: StrPath = "/") -> list[FabricDevice]:
    """InfiniBand, RoCE, EFA and Slingshot devices that are up, as the kernel lists them."""
    devices = []
    for folder in (
        folder for name in ("infiniband", "cxi") for folder in sorted(Path(root, "sys/class", name).glob("*"))
    ):
        ports = list(folder.glob("ports/*"))
        active_ports = [port for port in ports if "ACTIVE" in read_text(port, "state")]
        if active_ports or not ports:  # cxi lists no ports there
            link = folder / "device/driver"
            driver = os.readlink(link).rpartition("/")[2] if link.is_symlink() else ""
            layers = {read_text(port, "link_layer").strip() for port in active_ports}
            ethernet = layers == {"Ethernet"}
            is_cxi = folder.parent.name == "cxi"
            devices.append(FabricDevice(name=folder.name, driver="cxi" if is_cxi else driver, ethernet=ethernet))
    return devices


def with_ethernet_fix(devices: Sequence[FabricDevice], fix: str) -> str:
    """The fix; for Ethernet devices the advice for plain network cards comes first."""
    ethernet = f"where these are plain network cards: NCCL_NET=Socket ({PROFILES}/{ETHERNET_PROFILE}); for RoCE: "
    return ethernet + fix if all(device.ethernet for device in devices) else fix


def disabling_setting(device: FabricDevice, environ: Mapping[str, str]) -> str:
    """The setting, as `NAME=value`, that keeps NCCL from using this device; empty without one.

    NCCL_IB_DISABLE disables NCCL's own InfiniBand code; a plugin does not read it.
    """
    if environ.get("NCCL_NET", "").lower() == "socket":
        return f"NCCL_NET={environ['NCCL_NET']}"
    off = environ.get("NCCL_IB_DISABLE", "") not in ("", "0") and not device.fabric.plugin
    return f"NCCL_IB_DISABLE={environ['NCCL_IB_DISABLE']}" if off else ""


def required_libraries(fabric: Fabric, environ: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Alternatives for each library.

    The plugin is first, because loading it may load the others.
    """
    return [*([nccl_plugin_files(environ)] if fabric.plugin else []), *((library,) for library in fabric.libraries)]


def nccl_plugin_files(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The file names under which NCCL looks for its plugin.

    Source: OpenPluginLib() in plugin_open.cc.
    """
    plugins = [name.strip() for name in environ.get("NCCL_NET_PLUGIN", "").split(",") if name.strip()]
    file_names = [name for name in plugins if "/" in name or name.endswith(".so")]
    alternatives = [(name,) if name in file_names else (name, f"libnccl-net-{name}.so") for name in plugins]
    return tuple(file for files in alternatives for file in files) or ("libnccl-net.so",)
