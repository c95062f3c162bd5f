"""AMD's GPUs: how a machine shows them, and what a user does where they are, since our images compute on NVIDIA's only.

A vendor whose GPUs can be used has the functions of `nvidia` instead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Final

from entrypoint.errors import ExitCode, Failure
from entrypoint.files import StrPath, read_text

DEVICE_FILE: Final = "/dev/kfd"
# Schedulers and users select GPUs by these. Slurm sets the first on NVIDIA's nodes too.
VISIBLE_VARIABLES: Final = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
HIDDEN_VALUES: Final = ("", "-1")  # none are visible
# gfx908 (MI100), gfx90a (MI200), gfx940 to gfx942 (MI300), gfx950 (MI350), as 10000 x major + 100 x minor + stepping.
# Integrated GPUs and those for displays have other numbers. Source: kfd_device.c in the kernel.
INSTINCT_VERSIONS: Final = frozenset(("90008", "90010", "90400", "90401", "90402", "90500"))
_VERSION_LINE: Final = re.compile(r"^gfx_target_version (\d+)$", re.M)


def find_device_file(root: StrPath = "/") -> str:
    """The file that every machine with AMD's driver has; empty if it is not here."""
    return DEVICE_FILE if os.path.exists(os.path.join(root, DEVICE_FILE.lstrip("/"))) else ""


def has_accelerators(root: StrPath = "/") -> bool:
    """Whether the kernel lists a GPU that is made for computing (Instinct), not for a display."""
    folder = os.path.join(root, "sys/class/kfd/kfd/topology/nodes")
    nodes = os.listdir(folder) if os.path.isdir(folder) else []
    texts = (read_text(folder, node, "properties") for node in nodes)
    return not INSTINCT_VERSIONS.isdisjoint(version for text in texts for version in _VERSION_LINE.findall(text))


def unusable_failure(evidence: Iterable[str]) -> Failure:
    """The Failure for a training on AMD's GPUs. evidence: the device file, and variables with their values."""
    return Failure(
        "the GPUs of this node are AMD's, and this image computes on NVIDIA's only",
        found=f"{', '.join(evidence)}, and no NVIDIA GPU",
        fix="take nodes with NVIDIA GPUs; or train without GPUs: --device cpu. docs/image.md says what ROCm would need",
        code=ExitCode.IMAGE_MISMATCH,
    )


def unused_warning(device_file: str) -> str:
    """The warning where nobody asked for the GPU."""
    text = f"this machine has an AMD GPU ({device_file}), which this image cannot use: training computes on the CPU"
    return f"{text}. fix: --device cpu, if that is meant"
