"""An Engine is all that the product knows of one container engine: how it shows, and what to add to its command line.

Whoever tells a user to give a container more of something asks `fix`, which names the option of every engine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

EngineName = Literal["apptainer", "docker", "none"]
GPU_VARIABLES: Final = "NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility"  # of enroot's hook


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One container engine, or none.

    Attributes:
        marks: files or folders of the container's root by which it is recognized; one is enough.
        command: which starts a container. gpus: its option that gives it the GPUs.
        driver_fix: what to do where the driver's files are not all in the container.
        options: what a user adds to its command line, by what is missing in the container (`fix`).
    """

    marks: tuple[str, ...] = ()
    command: str = ""
    gpus: str = ""
    driver_fix: str
    options: Mapping[str, str] = field(default_factory=dict)


# In the order in which they are looked for: an image that Docker has exported keeps its mark under Apptainer.
ENGINES: Final[Mapping[EngineName, Engine]] = {
    "apptainer": Engine(  # and Singularity, whose folder it has kept
        marks=(".singularity.d/actions",),  # our OCI image has the folder with help and test
        command="apptainer exec",
        gpus="--nv",
        driver_fix="start the container with --nv: apptainer exec --nv ...",
        options={
            "shm": "apptainer without --contain",
            "devices": "apptainer without --contain",
            "bind": "apptainer --bind DIR:{target}",
        },
    ),
    "docker": Engine(  # and Podman, which takes the same options
        marks=(".dockerenv", "run/.containerenv"),
        command="docker run",
        gpus="--gpus all",
        driver_fix="start the container with --gpus all: docker run --gpus all ... (podman: --device "
        "nvidia.com/gpu=all), and with NVIDIA_DRIVER_CAPABILITIES=compute,utility; if only links of libraries are "
        "missing (CDI), run `ldconfig` in the container, and `sudo nvidia-ctk cdi generate "
        "--output=/etc/cdi/nvidia.yaml` on its host",
        options={
            "shm": "docker run --shm-size={size}g (or --ipc=host)",
            "devices": "docker run --device=/dev/infiniband",
            "bind": "docker run -v DIR:{target}",
            "memory": "docker run --memory",
            "locked memory": "docker run --ulimit memlock=-1",
            "open files": "docker run --ulimit nofile=4096",
            "processes": "docker run --pids-limit",
            "cores": "docker run --cpus=N",
            "core list": "docker run --cpuset-cpus=0-3",
            "home": "docker run -e HOME=/tmp",
            "temporary folder": "docker run --tmpfs /tmp",
            "host name": "docker run --add-host",
        },
    ),
    # Enroot, which pyxis calls, leaves no sign of itself: its containers look like a machine without one.
    "none": Engine(
        driver_fix="see what `nvidia-smi` says on this host; the kernel driver and its libraries must fit together, "
        "and have their links (`ldconfig`); in a container of pyxis or enroot: export "
        f"{GPU_VARIABLES} before srun",
    ),
}


GPU_OPTIONS: Final = " or ".join(engine.gpus for engine in ENGINES.values() if engine.gpus)


def detect(root: str | os.PathLike[str] = "/") -> EngineName:
    """The engine whose marks are in this root file system."""
    marked = (name for name, engine in ENGINES.items() for mark in engine.marks if os.path.exists(f"{root}/{mark}"))
    return next(marked, "none")


def fix(missing: str, separator: str = "; ", **values: object) -> str:
    """What to add to each engine's command line for want of shm, memory, a bind, ... values: of the option."""
    # Docker first: its default for shared memory is what most people meet.
    options = (engine.options.get(missing, "") for engine in reversed(tuple(ENGINES.values())))
    return separator.join(option.format(**{"size": 8} | values) for option in options if option)


def requests_gpus_of_enroot(environ: Mapping[str, str]) -> bool:
    """Whether the variables make enroot pass GPUs into the container (its hook 98-nvidia.sh).

    NVIDIA_VISIBLE_DEVICES selects GPUs, NVIDIA_DRIVER_CAPABILITIES adds libcuda. Our image sets only the second, which
    requests no GPU: with the first, a Kubernetes node would give all its GPUs to the image.
    """
    capabilities = environ.get("NVIDIA_DRIVER_CAPABILITIES", "").split(",")
    return bool(environ.get("NVIDIA_VISIBLE_DEVICES")) and not {"compute", "all"}.isdisjoint(capabilities)
