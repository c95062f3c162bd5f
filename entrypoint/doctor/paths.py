"""The path checks write to HOME, caches and the output folder to see whether they can be used.

They also look up the user's name.
"""

from __future__ import annotations

import errno
import os
import pwd
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from entrypoint import environment
from entrypoint.doctor import reading
from entrypoint.doctor.context import DEFAULT_OUTPUT, CheckContext, Finding, fail, failure_finding, ok, warn
from entrypoint.errors import ExitCode
from entrypoint.machine import is_ephemeral_path, unmounted_path_failure

MIN_FREE_SPACE_MIB = 100
RECOMMENDED_FREE_SPACE_MIB = 5 * 1024  # some checkpoints of a model of 100 million parameters
MIN_FREE_INODES = 100
_OUTPUT_FIX = "mount a folder that you may write (docker run -v DIR:/workspace, apptainer --bind DIR), or name another"
_DISK_FULL_MESSAGES = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
_SPACE_FIX = "remove what is no longer wanted, or set run.output_dir to a file system with more room"


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeSpace:
    """What a file system has left. inodes: files that can be made; None where it does not count them."""

    free_mib: int
    inodes: int | None


def check(scene: CheckContext) -> list[Finding]:
    """All places."""
    return [*check_home(scene.environ), *check_caches(scene.environ), check_user(os.getuid()), *check_output(scene)]


def preflight(scene: CheckContext) -> list[Finding]:
    """Without the output folder, which a training looks at by itself, and what rank 0's task says of its own HOME."""
    found = check_home(scene.environ)
    if any(finding.state != "ok" for finding in found):  # caches follow HOME to where it can be written
        first = scene.plan is not None and scene.plan.world.rank == 0
        return [finding for finding in found if not (first and finding.state == "warn")]
    return check_caches(scene.environ)


def check_home(environ: Mapping[str, str]) -> list[Finding]:
    """HOME and the place of temporary files."""
    stand_in = environment.scratch_parent(environ)
    if stand_in is None:
        text = "no temporary folder can be made: not in TMPDIR, /tmp, /var/tmp, /dev/shm or here"
        return [fail("home", text, "set TMPDIR to a folder that you may write, or mount one (docker run --tmpfs /tmp)")]
    said, temporary = environ.get("HOME"), environ.get("TMPDIR") or "/tmp"
    if not environment.is_writable(said):
        text = f"HOME ({said or 'not set'}) cannot be written: caches go to a new folder in {stand_in}, each time anew"
        return [warn("home", text, "set HOME to a folder that you may write (docker run -e HOME=/tmp)")]
    if not environment.is_writable(temporary):
        text = f"TMPDIR ({temporary}) cannot be written: temporary files go to {stand_in}"
        return [warn("home", text, "set TMPDIR to a folder that you may write")]
    return [ok("home", f"{said} can be written, and so can {temporary}")]


def check_caches(environ: Mapping[str, str]) -> list[Finding]:
    """Folders of caches that the user has chosen. One that is not there yet can be made where its parent is."""
    bad = {
        name: environ[name]
        for name in environment.CACHE_VARIABLES
        if environ.get(name) and not _can_write_or_create(Path(environ[name]))
    }
    fix = "unset {0}, or set it to a folder that you may write"
    return [warn("caches", f"{name}={at} cannot be written", fix.format(name)) for name, at in bad.items()]


def check_user(uid: int) -> Finding:
    """An account is not needed: its name is made up where there is none."""
    try:
        return ok("user", f"{pwd.getpwuid(uid).pw_name} (uid {uid})")
    except KeyError:
        return ok("user", f"uid {uid} has no account here; it is called {environment.user_name(uid)}")


def check_output(scene: CheckContext) -> list[Finding]:
    """Writable, with room, and with a rename that replaces: a checkpoint is committed by one."""
    folder = scene.output.absolute()
    place = nearest_existing_folder(folder)
    if error := find_write_error(place):
        return [_unwritable_output_finding(scene, folder, place, error)]
    kind = reading.filesystem_type(place, scene.root)
    found = free_space_finding(folder, read_free_space(place), kind if folder.exists() else f"{kind}, not there yet")
    return [_ephemeral_output_finding(found) if is_ephemeral_path(place, root=scene.root) else found]


def _ephemeral_output_finding(found: Finding) -> Finding:
    """More room is of no use there."""
    text = f"{found.text}; it is in the container, and a run there may vanish with it"
    return replace(found, state="fail" if found.state == "fail" else "warn", text=text, fix=_OUTPUT_FIX)


def nearest_existing_folder(folder: Path) -> Path:
    """The folder itself, or the one above it that is there."""
    return next(place for place in (folder, *folder.parents) if os.path.lexists(place))


def find_write_error(place: Path) -> str | None:
    """Write, sync, rename over a file, read back: what went wrong, or None. Leaves nothing behind."""
    step = "cannot be written"
    try:
        trial = Path(tempfile.mkdtemp(prefix=".doctor-", dir=place))
    except OSError as error:
        return f"{step}: {error.strerror}"
    try:
        (trial / "old").write_bytes(b"old")
        with open(trial / "new", "wb") as new:
            new.write(b"new" * 4096)
            new.flush()
            step = "does not sync files (fsync)"
            os.fsync(new.fileno())
        step = "does not rename a file over another one"
        os.replace(trial / "new", trial / "old")
        step = "does not give back what was written"
        return None if (trial / "old").read_bytes() == b"new" * 4096 else step
    except OSError as error:
        return f"{step}: {error.strerror}"
    finally:
        shutil.rmtree(trial, ignore_errors=True)


def read_free_space(place: Path) -> FreeSpace:
    """Asked of the file system; a quota it does not know shows only when it is used up."""
    space = os.statvfs(place)
    return FreeSpace(
        free_mib=space.f_bavail * space.f_frsize // reading.MIB, inodes=space.f_favail if space.f_files else None
    )


def free_space_finding(folder: Path, left: FreeSpace, kind: str) -> Finding:
    """kind: of the file system."""
    text = f"{folder} ({kind}) has {left.free_mib / 1024:.1f} GiB free"
    if left.inodes is not None and left.inodes < MIN_FREE_INODES:
        return fail("output", f"{folder} ({kind}) takes only {left.inodes} more files", _SPACE_FIX)
    if left.free_mib < MIN_FREE_SPACE_MIB:
        return fail("output", f"{text}: not enough for a checkpoint", _SPACE_FIX)
    if left.free_mib < RECOMMENDED_FREE_SPACE_MIB:
        return warn("output", f"{text}: enough for small models only", _SPACE_FIX)
    return ok("output", f"{text}; writing and renaming work")


def _unwritable_output_finding(scene: CheckContext, folder: Path, place: Path, error: str) -> Finding:
    """A default folder gives way to a temporary one, where one task starts all ranks; one that was named does not, and
    neither does a link to nowhere.
    """
    text = f"{folder}: {place} {error}"
    alone = scene.plan is None or scene.plan.spawn == scene.plan.world.world_size
    if scene.output == DEFAULT_OUTPUT and alone and os.path.exists(place):
        return warn("output", f"{text}; a run would go to a temporary folder and may be lost", _OUTPUT_FIX)
    if hidden := unmounted_path_failure("the output folder", folder, code=ExitCode.OUTPUT):
        return failure_finding("output", hidden)
    return fail("output", text, _SPACE_FIX if error.endswith(_DISK_FULL_MESSAGES) else _OUTPUT_FIX)


def _can_write_or_create(folder: Path) -> bool:
    return environment.is_writable(nearest_existing_folder(folder.absolute()))
