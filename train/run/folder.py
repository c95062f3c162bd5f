"""This module chooses the run's folder, and refuses one that is not writable, not shared by all
nodes, or contains symbolic links.

A temporary folder stands in only for the default `run.output_dir`. /tmp is another folder on each
node. What a run writes stays in its folder.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from entrypoint import ExitCode, Failure, Plan, engines, is_ephemeral_path, unmounted_path_failure
from train import files
from train.checkpoint import store
from train.config.schema import RunConfig, RunSection
from train.run import lock, record

TEMPORARY_PARENTS: Final = ("/tmp", "/var/tmp", "/dev/shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLocation:
    """The run's folder. overrides: settings for the workers, if it is not the folder of the config."""

    folder: Path
    overrides: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def run_folder(config: RunConfig) -> Path:
    """`output_dir/name`, from the working directory."""
    return Path(config.run.output_dir) / config.run.name


def newest_checkpoint(run_folder: Path) -> str | None:
    """The path of the newest committed checkpoint, with which the next start goes on; None without one."""
    with suppress(Failure):
        return next((str(path) for path in reversed(store.list_checkpoints(run_folder / "checkpoints").values())), None)
    return None


def choose_writable_folder(config: RunConfig, plan: Plan, environ: Mapping[str, str]) -> RunLocation:
    """Return the run's folder after a test that it is writable, or a temporary folder instead.

    A temporary folder replaces only the default run.output_dir, and only if this task starts all ranks: other
    tasks would not find it. It does not replace a symbolic link, with which a user chose where runs are kept.

    Raises:
        Failure: OUTPUT, IO or RESOURCE, if no folder is writable.
    """
    folder = run_folder(config)
    _refuse_dangling_link(folder)
    try:
        files.prepare_folder(folder if os.path.isdir(folder) else folder.parent)
        return RunLocation(folder=folder, warnings=_ephemeral_folder_warnings(folder.parent))
    except Failure as failure:
        is_default = config.run.output_dir == RunSection().output_dir
        if failure.code != ExitCode.OUTPUT or not is_default or plan.spawn < plan.world.world_size:
            if hidden := unmounted_path_failure("run.output_dir", folder.parent, code=ExitCode.OUTPUT):
                raise hidden from failure
            raise
        stand_in = try_make_temporary_folder(environ)
        if stand_in is None:
            raise
    warning = (
        f"{folder.parent.absolute()} cannot be written: this run is kept in {stand_in}, which may vanish with the "
        f"container. fix: {_mount_fix(folder.parent)}, or set run.output_dir"
    )
    folder = stand_in / config.run.name
    return RunLocation(folder=folder, overrides=(f"run.output_dir={stand_in}",), warnings=(warning,))


def refuse_unwritable_folder(config: RunConfig, plan: Plan) -> None:
    """Refuse, without writing, a new run's folder that cannot be made and that no temporary folder replaces.

    Raises:
        Failure: OUTPUT or IO, as `choose_writable_folder`.
    """
    folder = run_folder(config)
    _refuse_dangling_link(folder)
    is_replaced = config.run.output_dir == RunSection().output_dir and plan.spawn == plan.world.world_size
    if not (is_replaced or os.path.lexists(folder)):
        files.refuse_unwritable(folder.parent)


def _ephemeral_folder_warnings(output: Path) -> tuple[str, ...]:
    """A warning for a folder of the container: root may write there, and Apptainer's --contain has a home."""
    if not is_ephemeral_path(output):
        return ()
    return (
        f"{output.absolute()} is in the container, no folder of the host: this run may vanish with it. fix: "
        f"{_mount_fix(output)}, or set run.output_dir to one that is mounted",
    )


def _mount_fix(output: Path) -> str:
    """Advice to mount the output folder; the working folder, if it holds it: that shows config and data too."""
    working_folder, folder = Path.cwd(), output.absolute()
    target = working_folder if working_folder in folder.parents else folder
    return f"mount a folder there ({engines.fix('bind', ', ', target=target)})"


def make_temporary_folder(environ: Mapping[str, str]) -> Path:
    """Make a temporary folder. Raises Failure (OUTPUT) if no parent folder is writable."""
    folder = try_make_temporary_folder(environ)
    if folder is None:
        parents, fix = ", ".join(TEMPORARY_PARENTS), "set TMPDIR to a folder that you may write"
        raise Failure("no temporary folder can be made", found=parents, fix=fix, code=ExitCode.OUTPUT)
    return folder


def try_make_temporary_folder(environ: Mapping[str, str]) -> Path | None:
    """Make a folder in the first writable parent; a read-only root often leaves only /dev/shm."""
    for parent in (environ.get("TMPDIR"), *TEMPORARY_PARENTS):
        try:
            if parent:
                return Path(tempfile.mkdtemp(prefix="train-", dir=parent))
        except OSError:
            continue
    return None


def _refuse_dangling_link(folder: Path) -> None:
    link = _find_dangling_link(folder)
    if link is None:
        return
    target = os.path.realpath(link)
    raise unmounted_path_failure("run.output_dir", link, code=ExitCode.OUTPUT) or Failure(
        f"{link} is a symbolic link to what is not there: the run cannot be kept where it says",
        found=f"{link} -> {os.readlink(link)}",
        fix=f"mkdir -p {shlex.quote(target)}, if nothing else is missing; or mount it "
        f"({engines.fix('bind', ', ', target=target)}); or remove the link",
        code=ExitCode.OUTPUT,
    )


def _find_dangling_link(folder: Path) -> Path | None:
    """The link in the path of `folder` whose target is missing, perhaps because it is not mounted."""
    paths = (folder.absolute(), *folder.absolute().parents)
    return next((path for path in paths if os.path.islink(path) and not os.path.exists(path)), None)


def describe_folder_state(folder: Path) -> str:
    """Describe, without writing, whether the folder is new and seems writable."""
    if link := _find_dangling_link(folder):
        return f"{link} leads to {os.path.realpath(link)}, which is not there"
    existing = next((path for path in (folder, *folder.absolute().parents) if os.path.lexists(path)), Path("/"))
    if not os.access(existing, os.W_OK | os.X_OK):
        return f"{existing} cannot be written"
    return "exists" if existing == folder else "new"


# The folders that a run creates in its own, besides `record.RESULT_NAMES`.
RUN_SUBFOLDERS: Final = ("checkpoints", "errors", "logs", "profile", "report", "tensorboard", "trackers")


def refuse_symlinks(run_folder: Path) -> None:
    """Refuse symbolic links among the files that a run writes in `run_folder`.

    The folder itself and its parents may be links: users link `runs` to a disk with free space. A link inside would
    let a start write or delete files elsewhere.

    Raises:
        Failure: SECURITY, naming the link; as in `files.ERRNO_MEANINGS` for a folder that cannot be read.
    """
    for path in (run_folder, *(run_folder / name for name in RUN_SUBFOLDERS)):
        with files.translate_os_errors(path, "read"):
            names = _list_symlinks(path)
        if refused := [name for name in names if path != run_folder or _is_run_output(name)]:
            raise _symlink_failure(path / min(refused))


def _list_symlinks(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_symlink()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_run_output(name: str) -> bool:
    return name in (*record.RESULT_NAMES, *RUN_SUBFOLDERS) or name.startswith(
        (f"{lock.LOCK_NAME}.", "before-", ".tmp-")
    )


def _symlink_failure(link: Path) -> Failure:
    return Failure(
        f"{link} is a symbolic link: this run would write outside its folder",
        found=f"{link} -> {os.readlink(link)}",
        expected="files and folders of the run's own; run.output_dir itself may be a link",
        fix=files.SYMLINK_FIX,
        code=ExitCode.SECURITY,
    )
