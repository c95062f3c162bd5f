"""A null GPU: stand-ins of CUDA's libraries for the real CUDA build of torch, on a machine without a GPU.

Memory, copies, streams, events and torch itself are real; kernels, products, convolutions and collectives are counted
and not run. So a test sees what the host does (devices, dtypes, launches, copies, synchronizations, generated code,
error texts), and never a number that a GPU would compute, nor its speed. The sources are in null_gpu/.

The driver's two libraries, libcuda and NVML, need a C compiler and no torch: the launcher's tests ask only them.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from entrypoint.images import installed_torch_versions

SOURCES = Path(__file__).with_suffix("")
ROOT = Path(__file__).parents[2]
SITE_PACKAGES = Path(sysconfig.get_path("purelib"))
COMPILER = shutil.which("gcc") or shutil.which("cc")
MAX_AGE_S = 2 * 86400.0  # of what other sources have left
FLAGS = ("-shared", "-fPIC", "-O1", "-w")
# Functions of CUDA's libraries that torch asks for.
STUBBED = re.compile(r"^(_*cuda|cublas|cudnn|nccl[A-Z]|cusparse|cusolver|cufft|cuFile)")
DEFINED = re.compile(r"^(?!static)\S[^;{}=()]*?\b(\w+)\s*\([^;{}]*\)\s*\{", re.M)


def missing() -> str | None:
    """Why there can be no stand-in of the driver here; None where there can."""
    return "machine: no C compiler" if COMPILER is None or shutil.which("nm") is None else None


def missing_runtime() -> str | None:
    """Why nothing can train on a null GPU here; None where it can."""
    _, cuda = installed_torch_versions() or (None, None)
    return missing() or (None if cuda else "machine: torch is not a CUDA build")


def build() -> Path:
    """Compile the stand-ins once for these sources and this torch; return their folder.

    Without a CUDA build of torch there are only those of the driver's libraries.
    """
    content = b"".join(path.read_bytes() for path in sorted(SOURCES.iterdir()) if path.is_file())
    content += Path(__file__).read_bytes() + str((installed_torch_versions(), sys.prefix, ROOT)).encode()
    prefix = f"train-null-gpu-{os.getuid()}-"
    folder = Path(tempfile.gettempdir()) / f"{prefix}{hashlib.sha256(content).hexdigest()[:16]}"
    if not folder.exists():
        for old in folder.parent.glob(f"{prefix}*"):
            if time.time() - old.stat().st_mtime > MAX_AGE_S:
                shutil.rmtree(old, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as part:
            _compile_driver(Path(part))
            if not missing_runtime():
                _compile_runtime(Path(part))
                _write_environment(Path(part), folder)
            try:
                os.rename(part, folder)
            except OSError:  # another test was quicker
                return folder
            os.mkdir(part)  # what TemporaryDirectory removes
    return folder


def python(folder: Path) -> str:
    """A Python with this environment's packages, in which checks for garbage pass (null_gpu/checks.py)."""
    return str(folder / "bin" / "python")


def environment(folder: Path, gpus: int = 1, **faults: str) -> dict[str, str]:
    """The variables of a process that sees so many null GPUs.

    faults, each NULL_GPU_... without its prefix: CAPABILITY=90, NAME, BYTES, DRIVER, DRIVER_CUDA=12080, SAME_UUID,
    APART=1 (each GPU near the core with its index only), FAIL=RANK:LAUNCHES:CODE, HANG=RANK:LAUNCHES,
    NCCL_INIT=CODE, NCCL_FAIL=COLLECTIVES:CODE, NCCL_LAST_ERROR, and those of `driver_environment`.
    """
    return {
        "LD_PRELOAD": str(folder / "libnullgpu.so"),
        "LD_LIBRARY_PATH": str(folder / "lib"),
        "TRITON_LIBCUDA_PATH": str(folder / "lib"),
        "NULL_GPU_COUNT": str(gpus),
        **{f"NULL_GPU_{name}": value for name, value in faults.items()},
    }


def driver_environment(driver: str = "595.10.01", cuda: int = 13_020, **faults: str) -> dict[str, str]:
    """The variables of a process that finds a driver and a GPU, on which nothing runs. cuda: 12080 for 12.8.

    faults, each NULL_GPU_... without its prefix: NVML_INIT=CODE, NVML_LIST=CODE, NVML_OPEN=CODE (of a GPU),
    CUDA_INIT=CODE, hang or crash, CUDA_COUNT, COUNT.
    """
    environ = {"LD_LIBRARY_PATH": str(build() / "lib"), "NULL_GPU_DRIVER": driver, "NULL_GPU_DRIVER_CUDA": str(cuda)}
    return environ | {f"NULL_GPU_{name}": value for name, value in faults.items()}


def _compile_driver(folder: Path) -> None:
    # Functions that torch and Triton ask the driver for, besides those in driver.c.
    _write_stubs(folder / "driver_stubs.c", (SOURCES / "driver_stubs.txt").read_text().split())
    driver = [SOURCES / "driver.c", folder / "driver_stubs.c"]
    (folder / "lib").mkdir()
    _call_compiler(folder / "lib/libcuda.so.1", driver, "-Wl,-soname,libcuda.so.1", "-ldl")
    _call_compiler(folder / "lib/libnvidia-ml.so.1", [SOURCES / "nvml.c"], "-Wl,-soname,libnvidia-ml.so.1")


def _compile_runtime(folder: Path) -> None:
    include = next(path for path in SITE_PACKAGES.glob("nvidia/cu*/include") if (path / "cuda_runtime_api.h").is_file())
    for name in ("host_defines.h", "crt/host_defines.h"):
        (folder / "include" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SOURCES / "host_defines.h", folder / "include" / name)
    written = [SOURCES / name for name in ("runtime.c", "libraries.c")]
    names = {name for path in written for name in DEFINED.findall(path.read_text())}
    _write_stubs(folder / "stubs.c", _symbols_of_torch() - names)
    includes = [f"-I{folder / 'include'}", f"-I{include}", f"-I{SOURCES}"]
    _call_compiler(folder / "libnullgpu.so", [*written, folder / "stubs.c"], *includes, "-ldl", "-lpthread")


def _symbols_of_torch() -> set[str]:
    libraries = sorted((SITE_PACKAGES / "torch/lib").glob("*.so"))
    command = ["nm", "-D", "--undefined-only", *libraries]
    listed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    names = {
        line.split()[-1].partition("@")[0] for line in listed.splitlines() if " U " in line or line.startswith(" ")
    }
    return {name for name in names if STUBBED.match(name)}


def _write_stubs(path: Path, names: Iterable[str]) -> None:
    path.write_text("".join(f"int {name}(void) {{ return 0; }}\n" for name in sorted(names)))


def _call_compiler(output: Path, sources: Iterable[Path], *words: str) -> None:
    command = [str(COMPILER), *FLAGS, "-o", output, *sources, *words]
    subprocess.run(command, timeout=120, check=True)


def _write_environment(folder: Path, final: Path) -> None:
    """An environment of its own, since ranks are started isolated: nothing else could load checks.py into them."""
    (folder / "bin").mkdir()
    os.symlink(os.path.realpath(sys.executable), folder / "bin" / "python")
    home = Path(os.path.realpath(sys.executable)).parent
    (folder / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\n")
    site = folder / SITE_PACKAGES.relative_to(sys.prefix)
    site.mkdir(parents=True)
    (site / "a_packages.pth").write_text(f"{SITE_PACKAGES}\n{ROOT}\n")
    shutil.copy(SOURCES / "checks.py", site / "null_gpu_checks.py")
    (site / "b_checks.pth").write_text("import null_gpu_checks\n")
