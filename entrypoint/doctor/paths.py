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
from dataclasses import replace
from pathlib import Path

from entrypoint import engines, environment
from entrypoint.doctor.context import DEFAULT_OUTPUT, CheckContext, Finding, fail, failure_finding, graded, ok, warn
from entrypoint.errors import ExitCode
from entrypoint.machine import MIB, filesystem_type
from entrypoint.mounts import is_ephemeral_path, nearest_existing, unmounted_path_failure

MIN_FREE_SPACE_MIB = 100
RECOMMENDED_FREE_SPACE_MIB = 5 * 1024  # a few checkpoints with 100 million parameters
MIN_FREE_INODES = 100
_OUTPUT_FIX = f"mount a folder that you may write ({engines.fix('bind', ', ', target='/workspace')}), or name another"
_TEMPORARY_FIX = f"set TMPDIR to a folder that you may write, or mount one ({engines.fix('temporary folder')})"
_HOME_FIX = f"set HOME to a folder that you may write ({engines.fix('home')})"
_DISK_FULL_MESSAGES = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
_SPACE_FIX = "remove what is no longer needed, or set run.output_dir to a file system with more room"


def check(context: CheckContext) -> list[Finding]:
    """Check HOME, caches, the user and the output folder."""
    return [
        *check_home(context.environ),
        *check_caches(context.environ),
        check_user(os.getuid()),
        *check_output(context),
    ]


def preflight(context: CheckContext) -> list[Finding]:
    """HOME and caches only.

    The training itself checks the output folder, and rank 0's task reports its HOME.
    """
    home_findings = check_home(context.environ)
    if any(finding.state != "ok" for finding in home_findings):  # caches move with HOME
        has_rank_0 = context.plan is not None and context.plan.world.rank == 0
        return [finding for finding in home_findings if not (has_rank_0 and finding.state == "warn")]
    return check_caches(context.environ)


def check_home(environ: Mapping[str, str]) -> list[Finding]:
    """Check HOME and the folder for temporary files."""
    scratch = environment.scratch_parent(environ)
    if scratch is None:
        text = "no temporary folder can be made: not in TMPDIR, /tmp, /var/tmp, /dev/shm or here"
        return [fail("home", text, _TEMPORARY_FIX)]
    home, temporary = environ.get("HOME"), environ.get("TMPDIR") or "/tmp"
    if not environment.is_writable(home):
        text = f"HOME ({home or 'not set'}) cannot be written: caches go to a new folder in {scratch} at each start"
        return [warn("home", text, _HOME_FIX)]
    if not environment.is_writable(temporary):
        text = f"TMPDIR ({temporary}) cannot be written: temporary files go to {scratch}"
        return [warn("home", text, "set TMPDIR to a folder that you may write")]
    return [ok("home", f"{home} can be written, and so can {temporary}")]


def check_caches(environ: Mapping[str, str]) -> list[Finding]:
    """Check the cache folders that the user has chosen.

    A missing one may be created in its parent.
    """
    unwritable = {
        name: environ[name]
        for name in environment.CACHE_VARIABLES
        if environ.get(name) and not environment.is_writable(nearest_existing(Path(environ[name]).absolute()))
    }
    fix = "unset {0}, or set it to a folder that you may write"
    return [warn("caches", f"{name}={path} cannot be written", fix.format(name)) for name, path in unwritable.items()]


def check_user(uid: int) -> Finding:
    """Report the user; without an account a name is made from the uid."""
    try:
        return ok("user", f"{pwd.getpwuid(uid).pw_name} (uid {uid})")
    except KeyError:
        return ok("user", f"uid {uid} has no account here; it is called {environment.user_name(uid)}")


def check_output(context: CheckContext) -> list[Finding]:
    """Check that the output folder is writable and has space, and that rename works."""
    folder = context.output.absolute()
    existing = nearest_existing(folder)
    if error := find_write_error(existing):
        return [_unwritable_output_finding(context, folder, existing, error)]
    fs_type = filesystem_type(existing, context.root)
    fs_type = fs_type if folder.exists() else f"{fs_type}, not there yet"
    finding = free_space_finding(folder, *read_free_space(existing), fs_type)
    if is_ephemeral_path(existing, root=context.root):  # more space would not help
        text = f"{finding.text}; it is in the container, and a run there may vanish with it"
        finding = replace(finding, state="fail" if finding.state == "fail" else "warn", text=text, fix=_OUTPUT_FIX)
    return [finding]


def find_write_error(folder: Path) -> str | None:
    """Write, sync, rename over a file and read back; return what failed, or None.

    Leaves no file behind.
    """
    error_text = "cannot be written"
    try:
        test_folder = Path(tempfile.mkdtemp(prefix=".doctor-", dir=folder))
    except OSError as error:
        return f"{error_text}: {error.strerror}"
    try:
        (test_folder / "old").write_bytes(b"old")
        with open(test_folder / "new", "wb") as new:
            new.write(b"new" * 4096)
            new.flush()
            error_text = "does not sync files (fsync)"
            os.fsync(new.fileno())
        error_text = "does not rename a file over another one"
        os.replace(test_folder / "new", test_folder / "old")
        error_text = "does not give back what was written"
        return None if (test_folder / "old").read_bytes() == b"new" * 4096 else error_text
    except OSError as error:
        return f"{error_text}: {error.strerror}"
    finally:
        shutil.rmtree(test_folder, ignore_errors=True)


def read_free_space(folder: Path) -> tuple[int, int | None]:
    """MiB, and files that can be created: None if the file system does not count them.

    A quota that the file system does not know shows only when it is used up.
    """
    space = os.statvfs(folder)
    return space.f_bavail * space.f_frsize // MIB, space.f_favail if space.f_files else None


def free_space_finding(folder: Path, free_mib: int, inodes: int | None, fs_type: str) -> Finding:
    """Compare the free space with what checkpoints need. fs_type: of the file system."""
    text = f"{folder} ({fs_type}) has {free_mib / 1024:.1f} GiB free"
    if inodes is not None and inodes < MIN_FREE_INODES:
        return fail("output", f"{folder} ({fs_type}) has room for only {inodes} more files", _SPACE_FIX)
    return graded(
        "output",
        text,
        free_mib,
        (MIN_FREE_SPACE_MIB, "not enough for a checkpoint"),
        (RECOMMENDED_FREE_SPACE_MIB, "enough for small models only"),
        _SPACE_FIX,
        enough="; writing and renaming work",
    )


def _unwritable_output_finding(context: CheckContext, folder: Path, existing: Path, error: str) -> Finding:
    """The finding for an output folder that cannot be used.

    The default folder is replaced by a temporary one if one task starts all ranks; a folder that
    the user named is not, and neither is a broken link.
    """
    text = f"{folder}: {existing} {error}"
    starts_all_ranks = context.plan is None or context.plan.starts_all_ranks
    if context.output == DEFAULT_OUTPUT and starts_all_ranks and os.path.exists(existing):
        return warn("output", f"{text}; a run would go to a temporary folder and may be lost", _OUTPUT_FIX)
    if unmounted := unmounted_path_failure("the output folder", folder, code=ExitCode.OUTPUT):
        return failure_finding("output", unmounted)
    return fail("output", text, _SPACE_FIX if error.endswith(_DISK_FULL_MESSAGES) else _OUTPUT_FIX)
