"""Made up: a libnvidia-ml.so.1 that tells of one GPU and of a driver of any age, for whole processes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

COMPILER = shutil.which("gcc") or shutil.which("cc")
# What it does not have, pynvml takes for what this driver cannot answer.
SOURCE = """
#include <string.h>
static int gpu;
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = &gpu; return index ? 2 : 0; }
int nvmlDeviceGetUUID(void *handle, char *to, unsigned room) { strncpy(to, "GPU-made-up-0", room); return 0; }
int nvmlDeviceGetName(void *handle, char *to, unsigned room) { strncpy(to, "Made-up GPU", room); return 0; }
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
  *major = CAPABILITY / 10; *minor = CAPABILITY % 10; return 0;
}
int nvmlSystemGetDriverVersion(char *to, unsigned room) { strncpy(to, DRIVER, room); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = CUDA; return 0; }
"""


def missing() -> str | None:
    """Why no library can be made here; None where it can."""
    return None if COMPILER else "machine: no C compiler"


def installed(folder: Path, *, driver: str, cuda: int, capability: int = 90) -> dict[str, str]:
    """The variables of a process that finds this driver.

    cuda: as NVML counts, 12080 for 12.8. capability: 90 for 9.0.
    """
    facts = [f'-DDRIVER="{driver}"', f"-DCUDA={cuda}", f"-DCAPABILITY={capability}"]
    words = ["-shared", "-fPIC", *facts, "-x", "c", "-"]
    command = [str(COMPILER), *words, "-o", str(folder / "libnvidia-ml.so.1")]
    subprocess.run(command, input=SOURCE, text=True, timeout=60, check=True)
    return {"LD_LIBRARY_PATH": str(folder)}
