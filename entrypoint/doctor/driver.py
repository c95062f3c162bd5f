"""The driver's CUDA against the one that torch was built for."""

from __future__ import annotations

from entrypoint.doctor.findings import Finding, fail, ok, warn
from entrypoint.doctor.nvml import Reading

# CUDA's major version -> the first driver that runs programs of all its minor versions.
# Source: NVIDIA, "CUDA Compatibility", table of minor version compatibility.
FIRST_DRIVER = {11: 450, 12: 525, 13: 580}
_NAME = "driver"


def findings(reading: Reading | None, torch: tuple[str, str | None] | None) -> list[Finding]:
    """torch: its version and its CUDA, as `reading.torch_cuda` finds them; None where there is no torch."""
    if reading is None or not reading.gpus:
        return []
    if reading.cuda is None:
        return [warn(_NAME, f"driver {reading.driver} does not tell which CUDA it knows", _LIBRARY)]
    known = f"driver {reading.driver} knows CUDA {_dotted(reading.cuda)}"
    if torch is None:
        return [warn(_NAME, f"{known}; no torch is installed", "install torch, if this Python is to train")]
    version, built = torch
    if built is None:
        return [fail(_NAME, f"{known}, but torch {version} is a build for the CPU only", _CUDA_BUILD)]
    wanted = _version(built)
    text = f"{known}; torch {version} was built for CUDA {built}"
    if reading.cuda[0] < wanted[0]:
        return [fail(_NAME, f"{text}: the driver is too old", _newer(wanted[0]))]
    if reading.cuda < wanted:
        return [ok(_NAME, f"{text}: it runs, one major version is enough")]
    return [ok(_NAME, text)]


_LIBRARY = "its libcuda.so.1 has to be here: NVIDIA_DRIVER_CAPABILITIES=compute,utility for docker, --nv for apptainer"
_CUDA_BUILD = "install a CUDA build of torch (pip from an index that has one), or use the project's image"


def _newer(major: int) -> str:
    least = FIRST_DRIVER.get(major)
    wanted = f"driver {least} or newer" if least else f"a driver for CUDA {major}"
    return f"ask the administrator for {wanted}, or use an image with an older CUDA; without GPUs: --device cpu"


def _version(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor.partition(".")[0] or 0)


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
