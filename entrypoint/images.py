"""This table lists the images that the project builds, and tells on which drivers and GPUs each one runs.

A driver runs programs of its CUDA's major version, and of older ones. A GPU runs machine code of its
own compute capability, or of a smaller minor number of the same major one.
Source: NVIDIA, "CUDA Compatibility" (minor version compatibility) and "CUDA C++ Programming Guide"
(binary compatibility).
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Mapping
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

    def runs_on(self, driver_cuda: tuple[int, int], capabilities: Iterable[Capability]) -> bool:
        """Whether it runs with a driver of this CUDA on all these GPUs."""
        return driver_cuda[0] >= self.cuda[0] and all(map(self.has_code_for, capabilities))

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


def image_that_runs_on(driver_cuda: tuple[int, int], capabilities: Iterable[Capability]) -> Image | None:
    """The newest image for this driver and these GPUs; None if there is none."""
    capabilities = tuple(capabilities)
    return next((image for image in IMAGES.values() if image.runs_on(driver_cuda, capabilities)), None)


def image_with_oldest_driver(capabilities: Iterable[Capability]) -> Image | None:
    """Of the images with code for these GPUs, the one that runs with the oldest driver."""
    capabilities = tuple(capabilities)
    fitting = [image for image in IMAGES.values() if all(map(image.has_code_for, capabilities))]
    return min(fitting, key=lambda image: image.min_driver, default=None)


def image_with_torch(version: str, cuda: tuple[int, int]) -> Image | None:
    """The image that holds this torch; None for another one, whose architectures are not known."""
    identity = (version.partition("+")[0], cuda)
    return next((image for image in IMAGES.values() if (image.torch, image.cuda) == identity), None)


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
