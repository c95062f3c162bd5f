"""This table lists the images that the project builds, and tells on which drivers and GPUs each one runs.

A driver runs programs of its CUDA's major version, and of older ones. A GPU runs machine code of its
own compute capability, or of a smaller minor number of the same major one.
Source: NVIDIA, "CUDA Compatibility" (minor version compatibility) and "CUDA C++ Programming Guide"
(binary compatibility).
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from entrypoint.files import read_text

Capability = tuple[int, int]  # (9, 0) is an H100's


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """One image of the project.

    Attributes:
        build: the command that builds it.
        torch, cuda: the version of its torch, and the CUDA that this was built for.
        min_driver: the first driver that runs it.
        architectures: the compute capabilities that its torch has machine code for.
    """

    build: str
    torch: str
    cuda: tuple[int, int]
    min_driver: int
    architectures: tuple[Capability, ...]

    def has_code_for(self, capability: Capability) -> bool:
        """Whether a GPU of this compute capability runs the code of its torch."""
        major, minor = capability
        return any(own_major == major and own_minor <= minor for own_major, own_minor in self.architectures)


# The newest first: it is the one to prefer. A test compares each with its lock file, and with the built image.
IMAGES: Final[Mapping[str, Image]] = {
    "13": Image(
        build="make image",
        torch="2.15.0",
        cuda=(13, 2),
        min_driver=580,
        architectures=((7, 5), (8, 0), (8, 6), (9, 0), (10, 0), (12, 0)),
    ),
    "12": Image(
        build="make image CUDA=12",
        torch="2.10.0",
        cuda=(12, 8),
        min_driver=525,
        architectures=((7, 0), (7, 5), (8, 0), (8, 6), (9, 0), (10, 0), (12, 0)),
    ),
}


def fix(driver_cuda: tuple[int, int], capabilities: Collection[Capability]) -> str:
    """Name the image that runs on this driver and these GPUs; without one, the oldest driver on which one would run."""
    with_code = [image for image in IMAGES.values() if all(map(image.has_code_for, capabilities))]
    if image := next((image for image in with_code if driver_cuda[0] >= image.cuda[0]), None):
        return f"use the image that `{image.build}` builds, which runs here (docs/image.md)"
    if not with_code:
        return "no image of this project has code for this GPU: leave it out with CUDA_VISIBLE_DEVICES, or --device cpu"
    image = min(with_code, key=lambda image: image.min_driver)
    return (
        f"ask the administrator for driver {image.min_driver} or newer: the image that `{image.build}` builds runs "
        "with it; without GPUs: --device cpu"
    )


def installed_torch_versions(package: Path | None = None) -> tuple[str, str | None] | None:
    """The installed torch's version and its CUDA version (None for a CPU build); None without torch.

    torch is not imported. package: torch's folder, by default the installed one.
    """
    if package is None:
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.origin is None:
            return None
        package = Path(spec.origin).parent
    text = read_text(package, "version.py")
    version = re.search(r"^__version__ = '([^']+)'", text, re.M)
    cuda = re.search(r"^cuda\b[^=]*= '([^']+)'", text, re.M)
    return (version[1], cuda[1] if cuda else None) if version else None


def parse_version(text: str) -> tuple[int, int]:
    """`13.2` as (13, 2)."""
    major, _, minor = text.partition(".")
    return int(major), int(minor.partition(".")[0] or 0)
