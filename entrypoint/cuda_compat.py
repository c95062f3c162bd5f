"""CUDA_COMPAT names a folder with a newer driver's libraries, which let this image's CUDA run on an older driver.

NVIDIA calls them cuda-compat; they work on data-center GPUs. Beside a driver that is new enough they make CUDA fail
(error 803), so they are used only beside one of an older major version.
Source: NVIDIA, "CUDA Compatibility" (forward compatibility).
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from entrypoint import images
from entrypoint.errors import ExitCode, Failure
from entrypoint.machine import driver_cuda

COMPAT_VARIABLE = "CUDA_COMPAT"
LIBRARY = "libcuda.so.1"


def compat_folder(
    environ: Mapping[str, str], driver_cuda: tuple[int, int] | None, torch_cuda: tuple[int, int] | None
) -> str | None:
    """The folder that ranks have to find their driver's library in; None if the driver's own will do.

    Raises:
        Failure: NO_INPUT if CUDA_COMPAT names a folder without that library.
    """
    folder = environ.get(COMPAT_VARIABLE)
    if not folder or not driver_cuda or not torch_cuda or driver_cuda[0] >= torch_cuda[0]:
        return None
    if not os.path.exists(os.path.join(folder, LIBRARY)):
        raise Failure(
            f"{COMPAT_VARIABLE} names a folder without {LIBRARY}",
            found=f"{COMPAT_VARIABLE}={folder}",
            expected="the folder of NVIDIA's cuda-compat package, such as /usr/local/cuda-13.2/compat",
            fix=f"bind that folder (apptainer exec --bind, docker run -v), or unset {COMPAT_VARIABLE}",
            code=ExitCode.NO_INPUT,
        )
    return folder


def rank_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """LD_LIBRARY_PATH of ranks that need the folder: before the one that Apptainer and Docker put the driver in.

    Empty where none is needed.

    Raises:
        Failure: as `compat_folder`.
    """
    if not environ.get(COMPAT_VARIABLE):
        return {}
    torch = images.installed_torch_versions()
    folder = compat_folder(environ, driver_cuda(), images.parse_version(torch[1]) if torch and torch[1] else None)
    if folder is None:
        return {}
    rest = environ.get("LD_LIBRARY_PATH")
    return {"LD_LIBRARY_PATH": f"{folder}:{rest}" if rest else folder}
