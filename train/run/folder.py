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
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from entrypoint import ExitCode, Failure, Plan, is_ephemeral_path, unmounted_path_failure
from train import files
from train.config.schema import RunConfig, RunSection
from train.run import lock, record

TEMPORARY_PARENTS: Final = ("/tmp", "/var/tmp", "/dev/shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLocation:
    """Where a run is kept. overrides: what tells the workers, where it is not what the config says."""

    folder: Path
    overrides: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def run_folder(config: RunConfig) -> Path:
    """`output_dir/name`, from the working directory."""
    return Path(config.run.output_dir) / config.run.name


def choose_writable_folder(config: RunConfig, plan: Plan, environ: Mapping[str, str]) -> RunLocation:
    """The run's folder, once its place was shown to be writable; or one in a temporary folder.

    Only the default place gives way, and only where this task starts all ranks: others would not find the folder. A
    link is somebody's word for where runs are kept: it does not give way either.

    Raises:
        Failure: OUTPUT, IO or RESOURCE, where nothing can be kept.
    """
    folder = run_folder(config)
    _refuse_dangling_link(folder)
    try:
        files.prepare_folder(folder if os.path.isdir(folder) else folder.parent)
        return RunLocation(folder=folder, warnings=_ephemeral_folder_warnings(folder.parent))
    except Failure as failure:
        unasked = config.run.output_dir == RunSection().output_dir
        if failure.code != ExitCode.OUTPUT or not unasked or plan.spawn < plan.world.world_size:
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


def _ephemeral_folder_warnings(output: Path) -> tuple[str, ...]:
    """Root may write everywhere in a container, and Apptainer's --contain gives a home of its own."""
    if not is_ephemeral_path(output):
        return ()
    return (
        f"{output.absolute()} is in the container, no folder of the host: this run may vanish with it. fix: "
        f"{_mount_fix(output)}, or set run.output_dir to one that is mounted",
    )


def _mount_fix(output: Path) -> str:
    """A mounted working directory shows the configuration and the data too."""
    here, whole = Path.cwd(), output.absolute()
    return f"mount a folder there (docker run -v DIR:{here if here in whole.parents else whole}, apptainer --bind DIR)"


def make_temporary_folder(environ: Mapping[str, str]) -> Path:
    """A new temporary folder. Raises Failure (OUTPUT), where no place takes one."""
    folder = try_make_temporary_folder(environ)
    if folder is None:
        found, fix = ", ".join(TEMPORARY_PARENTS), "set TMPDIR to a folder that you may write"
        raise Failure("no temporary folder can be made", found=found, fix=fix, code=ExitCode.OUTPUT)
    return folder


def try_make_temporary_folder(environ: Mapping[str, str]) -> Path | None:
    """A new folder in the first place that takes one; a read-only root often leaves only /dev/shm."""
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
        fix=f"mkdir -p {shlex.quote(target)}, if nothing else is missing; or mount it (docker run -v DIR:{target}); or "
        "remove the link",
        code=ExitCode.OUTPUT,
    )


def _find_dangling_link(folder: Path) -> Path | None:
    """The link on the way to `folder` that leads to nothing, which is what one to a folder not mounted looks like."""
    way = (folder.absolute(), *folder.absolute().parents)
    return next((place for place in way if os.path.islink(place) and not os.path.exists(place)), None)


def describe_folder_state(folder: Path) -> str:
    """In words, without writing: whether the folder is new, and whether its place seems writable."""
    if link := _find_dangling_link(folder):
        return f"{link} leads to {os.path.realpath(link)}, which is not there"
    there = next((place for place in (folder, *folder.absolute().parents) if os.path.lexists(place)), Path("/"))
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{there} cannot be written"
    return "exists" if there == folder else "new"


# What a run makes in its folder, beside the results of an earlier one (`record.RESULT_NAMES`).
RUN_SUBFOLDERS: Final = ("checkpoints", "errors", "logs", "profile", "report", "tensorboard")


def refuse_symlinks(run_folder: Path) -> None:
    """Return where nothing that a run writes in `run_folder` is a link. The folder itself, and those above, may be one.

    People link `runs` to the place where there is room: that is their word for where the run is kept. A link inside
    would let a start write, or delete, where nobody sent it.

    Raises:
        Failure: SECURITY, naming the link; as in `files.ERRNO_MEANINGS` for a folder that cannot be read.
    """
    for place in (run_folder, *(run_folder / name for name in RUN_SUBFOLDERS)):
        with files.translate_os_errors(place, "read"):
            names = _list_symlinks(place)
        if ours := [name for name in names if place != run_folder or _is_run_output(name)]:
            raise _symlink_failure(place / min(ours))


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
        fix="remove the link, or set run.output_dir to the place where the run is to be kept",
        code=ExitCode.SECURITY,
    )
