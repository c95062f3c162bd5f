"""This module tells which paths a container does not see, and which of its files end with it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from pathlib import Path

from entrypoint import engines
from entrypoint.engines import EngineName
from entrypoint.errors import ExitCode, Failure
from entrypoint.files import StrPath
from entrypoint.machine import find_mount

# Folders of the image's own file systems; mounts from the host hide them. (With `underlay`, / is
# not the image's.)
CONTAINER_ROOTS = (Path("/"), Path("/usr"))
OUR_IMAGE_MARKER = "opt/image.json"  # only our image has it


def unmounted_path_failure(
    name: str,
    path: Path,
    *,
    code: ExitCode = ExitCode.NO_INPUT,
    engine: EngineName | None = None,
    own: Iterable[Path] = CONTAINER_ROOTS,
) -> Failure | None:
    """The Failure for a missing `path` that lies on the container's own file system.

    The text calls it `name`.

    Symbolic links are resolved: what they point to has to be mounted.

    None if the path exists, below a mounted folder of the host, and outside Apptainer. (A docker
    container may be a complete machine, and there a wrong path is only a wrong path.)
    """
    if (engine or engines.detect()) != "apptainer" or os.path.exists(path):
        return None
    absolute, real_path = os.path.abspath(path), Path(os.path.realpath(path))
    existing = nearest_existing(real_path)
    try:
        if existing.stat().st_dev not in {root.stat().st_dev for root in own}:  # the folder is not the container's own
            return None
    except OSError:
        return None
    folder = shlex.quote(str(real_path.parent if real_path.suffix else real_path))
    # Apptainer mounts the working directory only if its path has no symbolic link.
    link = 'cd "$(pwd -P)" before you start or submit; or ' if Path.cwd() == existing else ""
    return Failure(
        f"{name} {path} is not visible inside the container",
        found=("" if absolute == str(real_path) else f"{absolute} leads to {real_path}; ")
        + f"of {real_path} only {existing} exists, and it belongs to the container",
        fix=f"{link}apptainer exec --bind {folder} ..., or for srun and sbatch: export APPTAINER_BIND={folder}",
        code=code,
    )


def is_ephemeral_path(path: Path, *, engine: EngineName | None = None, root: StrPath = "/") -> bool:
    """Whether files written to `path` are lost when the container ends: it is no mount.

    That is certain for Apptainer's session (`--contain`, `--writable-tmpfs`) and for our image's
    own layer, which root can write. Another container may be a complete machine that stays.
    """
    if (engine or engines.detect(root)) != "apptainer":
        return os.path.exists(os.path.join(root, OUR_IMAGE_MARKER)) and find_mount(path, root)[0] == "/"
    # Apptainer's session is a memory file system with its /etc/passwd. A writable image (`--overlay`, `--writable`) has
    # the size of the disk that it is on instead.
    passwd = os.path.join(root, "etc/passwd")
    try:
        device, session_device, root_device = (os.stat(location).st_dev for location in (path, passwd, root))
        sizes = [(stats.f_frsize, stats.f_blocks) for stats in (os.statvfs(path), os.statvfs(passwd))]
    except OSError:
        return False
    return device in (session_device, root_device) and sizes[0] == sizes[1]


def nearest_existing(path: Path) -> Path:
    """The file or folder itself, or its nearest existing parent. A broken link exists."""
    return next(candidate for candidate in (path, *path.parents) if os.path.lexists(candidate))
