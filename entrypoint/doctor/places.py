"""Home, caches, the user's name and the output folder, each found out by writing."""

from __future__ import annotations

import errno
import os
import pwd
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from entrypoint import hygiene
from entrypoint.binds import fleeting, unseen
from entrypoint.doctor import reading
from entrypoint.doctor.findings import Finding, fail, ok, refused, warn
from entrypoint.doctor.scene import OUTPUT, Scene
from entrypoint.errors import ExitCode

SPACE_LEAST_MIB = 100
SPACE_GOOD_MIB = 5 * 1024  # some checkpoints of a model of 100 million parameters
INODES_LEAST = 100
_OUTPUT_FIX = "mount a folder that you may write (docker run -v DIR:/workspace, apptainer --bind DIR), or name another"
_FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
_SPACE_FIX = "remove what is no longer wanted, or set run.output_dir to a file system with more room"


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a file system has left. inodes: files that can be made; None where it does not count them."""

    free_mib: int
    inodes: int | None


def check(scene: Scene) -> list[Finding]:
    """All places."""
    return [*home(scene.environ), *caches(scene.environ), user(os.getuid()), *output(scene)]


def brief(scene: Scene) -> list[Finding]:
    """Without the output folder, which a training looks at by itself, and what rank 0's task says of its own HOME."""
    found = home(scene.environ)
    if any(finding.state != "ok" for finding in found):  # caches follow HOME to where it can be written
        first = scene.plan is not None and scene.plan.world.rank == 0
        return [finding for finding in found if not (first and finding.state == "warn")]
    return caches(scene.environ)


def home(environ: Mapping[str, str]) -> list[Finding]:
    """HOME and the place of temporary files."""
    stand_in = hygiene.scratch_parent(environ)
    if stand_in is None:
        text = "no temporary folder can be made: not in TMPDIR, /tmp, /var/tmp, /dev/shm or here"
        return [fail("home", text, "set TMPDIR to a folder that you may write, or mount one (docker run --tmpfs /tmp)")]
    said, temporary = environ.get("HOME"), environ.get("TMPDIR") or "/tmp"
    if not hygiene.writable(said):
        text = f"HOME ({said or 'not set'}) cannot be written: caches go to a new folder in {stand_in}, each time anew"
        return [warn("home", text, "set HOME to a folder that you may write (docker run -e HOME=/tmp)")]
    if not hygiene.writable(temporary):
        text = f"TMPDIR ({temporary}) cannot be written: temporary files go to {stand_in}"
        return [warn("home", text, "set TMPDIR to a folder that you may write")]
    return [ok("home", f"{said} can be written, and so can {temporary}")]


def caches(environ: Mapping[str, str]) -> list[Finding]:
    """Folders of caches that the user has chosen. One that is not there yet can be made where its parent is."""
    bad = {name: environ[name] for name in hygiene.CACHES if environ.get(name) and not _usable(Path(environ[name]))}
    fix = "unset {0}, or set it to a folder that you may write"
    return [warn("caches", f"{name}={at} cannot be written", fix.format(name)) for name, at in bad.items()]


def user(uid: int) -> Finding:
    """An account is not needed: its name is made up where there is none."""
    try:
        return ok("user", f"{pwd.getpwuid(uid).pw_name} (uid {uid})")
    except KeyError:
        return ok("user", f"uid {uid} has no account here; it is called {hygiene.user_name(uid)}")


def output(scene: Scene) -> list[Finding]:
    """Writable, with room, and with a rename that replaces: a checkpoint is committed by one."""
    folder = scene.output.absolute()
    place = nearest(folder)
    if error := trouble(place):
        return [_unwritable(scene, folder, place, error)]
    kind = reading.filesystem(place, scene.root)
    found = space(folder, room(place), kind if folder.exists() else f"{kind}, not there yet")
    return [_fleeting(found) if fleeting(place, root=scene.root) else found]


def _fleeting(found: Finding) -> Finding:
    """More room is of no use there."""
    text = f"{found.text}; it is in the container, and a run there may vanish with it"
    return replace(found, state="fail" if found.state == "fail" else "warn", text=text, fix=_OUTPUT_FIX)


def nearest(folder: Path) -> Path:
    """The folder itself, or the one above it that is there."""
    return next(place for place in (folder, *folder.parents) if os.path.lexists(place))


def trouble(place: Path) -> str | None:
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


def room(place: Path) -> Room:
    """Asked of the file system; a quota it does not know shows only when it is used up."""
    space = os.statvfs(place)
    return Room(
        free_mib=space.f_bavail * space.f_frsize // reading.MIB, inodes=space.f_favail if space.f_files else None
    )


def space(folder: Path, left: Room, kind: str) -> Finding:
    """kind: of the file system."""
    text = f"{folder} ({kind}) has {left.free_mib / 1024:.1f} GiB free"
    if left.inodes is not None and left.inodes < INODES_LEAST:
        return fail("output", f"{folder} ({kind}) takes only {left.inodes} more files", _SPACE_FIX)
    if left.free_mib < SPACE_LEAST_MIB:
        return fail("output", f"{text}: not enough for a checkpoint", _SPACE_FIX)
    if left.free_mib < SPACE_GOOD_MIB:
        return warn("output", f"{text}: enough for small models only", _SPACE_FIX)
    return ok("output", f"{text}; writing and renaming work")


def _unwritable(scene: Scene, folder: Path, place: Path, error: str) -> Finding:
    """A default folder gives way to a temporary one, where one task starts all ranks; one that was named does not, and
    neither does a link to nowhere.
    """
    text = f"{folder}: {place} {error}"
    alone = scene.plan is None or scene.plan.spawn == scene.plan.world.world_size
    if scene.output == OUTPUT and alone and os.path.exists(place):
        return warn("output", f"{text}; a run would go to a temporary folder and may be lost", _OUTPUT_FIX)
    if hidden := unseen("the output folder", folder, code=ExitCode.OUTPUT):
        return refused("output", hidden)
    return fail("output", text, _SPACE_FIX if error.endswith(_FULL) else _OUTPUT_FIX)


def _usable(folder: Path) -> bool:
    return hygiene.writable(nearest(folder.absolute()))
