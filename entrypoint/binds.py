"""Which paths a container does not show, which becomes a Failure that says so, and which ones end with it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from pathlib import Path

from entrypoint.cgroups import Place
from entrypoint.errors import ExitCode, Failure
from entrypoint.host import Container, container, mount_of

# On the image's own file systems; what the host gives is mounted over them. (With `underlay`, / is not the image's.)
OWN = (Path("/"), Path("/usr"))
OURS = "opt/image.json"  # only our image has it


def unseen(
    name: str,
    path: Path,
    *,
    code: ExitCode = ExitCode.NO_INPUT,
    engine: Container | None = None,
    own: Iterable[Path] = OWN,
) -> Failure | None:
    """The Failure for `path` (said as `name` and the path), if it is not there and its place is the container's own.

    A link is there wherever its folder is mounted; what it leads to is what counts, and what has to be mounted.

    None outside Apptainer, for what is there, and below a folder of the host that is mounted. (Under docker a whole
    machine may live in the container, and a wrong path is only a wrong path.)
    """
    if (engine or container()) != "apptainer" or os.path.exists(path):
        return None
    meant = Path(os.path.realpath(path))
    there = _own_place(meant, own)
    if there is None:
        return None
    named = os.path.abspath(path)
    return Failure(
        f"{name} {path} is not visible inside the container",
        found=("" if named == str(meant) else f"{named} leads to {meant}; ")
        + f"of {meant} only {there} is there, and it is the container's own",
        fix=_fix(meant, there),
        code=code,
    )


def fleeting(path: Path, *, engine: Container | None = None, root: Place = "/") -> bool:
    """Whether what can be written in `path` ends with the container, since nothing of the host is mounted there.

    That is known of Apptainer's session (`--contain`, `--writable-tmpfs`), and of our image's own layer, which root can
    write. Another container may be a whole machine, and stay.
    """
    if (engine or container(root)) == "apptainer":
        return _of_session(path, root)
    return os.path.exists(os.path.join(root, OURS)) and mount_of(path, root)[0] == "/"


def _of_session(path: Path, root: Place) -> bool:
    """Apptainer keeps a session's files in one small memory file system, with the accounts' file that it writes; a
    writable image (`--overlay`, `--writable`) has the size of what it is on.
    """
    accounts = os.path.join(root, "etc/passwd")
    try:
        device, session, first = (os.stat(place).st_dev for place in (path, accounts, root))
        sizes = [(disk.f_frsize, disk.f_blocks) for disk in (os.statvfs(path), os.statvfs(accounts))]
    except OSError:
        return False
    return device in (session, first) and sizes[0] == sizes[1]


def _own_place(path: Path, own: Iterable[Path] = OWN) -> Path | None:
    """The nearest folder above `path` (without links) that is there, if it is the container's own and not mounted."""
    there = next(place for place in (path, *path.parents) if os.path.lexists(place))
    try:
        return there if there.stat().st_dev in {place.stat().st_dev for place in own} else None
    except OSError:
        return None


def _fix(path: Path, there: Path) -> str:
    """Apptainer mounts the working directory, but not one that is reached through a symbolic link."""
    folder = shlex.quote(str(path.parent if path.suffix else path))
    link = 'cd "$(pwd -P)" before you start or submit; or ' if Path.cwd() == there else ""
    return f"{link}apptainer exec --bind {folder} ..., or for srun and sbatch: export APPTAINER_BIND={folder}"
