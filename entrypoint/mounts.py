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
    real_path = Path(os.path.realpath(path))
    existing = _nearest_container_folder(real_path, own)
    if existing is None:
        return None
    absolute = os.path.abspath(path)
    return Failure(
        f"{name} {path} is not visible inside the container",
        found=("" if absolute == str(real_path) else f"{absolute} leads to {real_path}; ")
        + f"of {real_path} only {existing} exists, and it belongs to the container",
        fix=_bind_mount_fix(real_path, existing),
        code=code,
    )


def is_ephemeral_path(path: Path, *, engine: EngineName | None = None, root: StrPath = "/") -> bool:
    """Whether files written to `path` are lost when the container ends: it is no mount.

    That is certain for Apptainer's session (`--contain`, `--writable-tmpfs`) and for our image's
    own layer, which root can write. Another container may be a complete machine that stays.
    """
    if (engine or engines.detect(root)) == "apptainer":
        return _is_in_apptainer_session(path, root)
    return os.path.exists(os.path.join(root, OUR_IMAGE_MARKER)) and find_mount(path, root)[0] == "/"


def _is_in_apptainer_session(path: Path, root: StrPath) -> bool:
    """Whether `path` is in Apptainer's session, a memory file system with its /etc/passwd.

    A writable image (`--overlay`, `--writable`) has the size of the disk that it is on instead.
    """
    passwd = os.path.join(root, "etc/passwd")
    try:
        device, session_device, root_device = (os.stat(location).st_dev for location in (path, passwd, root))
        sizes = [(stats.f_frsize, stats.f_blocks) for stats in (os.statvfs(path), os.statvfs(passwd))]
    except OSError:
        return False
    return device in (session_device, root_device) and sizes[0] == sizes[1]


def _nearest_container_folder(path: Path, own: Iterable[Path] = CONTAINER_ROOTS) -> Path | None:
    """The nearest existing folder at or above `path`, if it is the container's own."""
    existing = next(folder for folder in (path, *path.parents) if os.path.lexists(folder))
    try:
        return existing if existing.stat().st_dev in {root.stat().st_dev for root in own} else None
    except OSError:
        return None


def _bind_mount_fix(path: Path, existing: Path) -> str:
    """The fix with --bind.

    Apptainer mounts the working directory only if its path has no symbolic link.
    """
    folder = shlex.quote(str(path.parent if path.suffix else path))
    link = 'cd "$(pwd -P)" before you start or submit; or ' if Path.cwd() == existing else ""
    return f"{link}apptainer exec --bind {folder} ..., or for srun and sbatch: export APPTAINER_BIND={folder}"
