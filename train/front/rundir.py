"""From the config and the plan to a folder that can be written: the default one, or a temporary stand-in for it."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from entrypoint import ExitCode, Failure, Plan, fleeting, unseen
from train.files import durable
from train.settings.config import Run, RunConfig

PLACES: Final = ("/tmp", "/var/tmp", "/dev/shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a run is kept. overrides: what tells the workers, where it is not what the config says."""

    folder: Path
    overrides: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def run_folder(config: RunConfig) -> Path:
    """`output_dir/name`, from the working directory."""
    return Path(config.run.output_dir) / config.run.name


def choose(config: RunConfig, plan: Plan, environ: Mapping[str, str]) -> Place:
    """The run's folder, once its place was shown to be writable; or one in a temporary folder.

    Only the default place gives way, and only where this task starts all ranks: others would not find the folder. A
    link is somebody's word for where runs are kept: it does not give way either.

    Raises:
        Failure: OUTPUT, IO or RESOURCE, where nothing can be kept.
    """
    folder = run_folder(config)
    _refuse_dangling(folder)
    try:
        durable.prepare(folder if os.path.isdir(folder) else folder.parent)
        return Place(folder=folder, warnings=_lost(folder.parent))
    except Failure as failure:
        unasked = config.run.output_dir == Run().output_dir
        if failure.code != ExitCode.OUTPUT or not unasked or plan.spawn < plan.world.world_size:
            if hidden := unseen("run.output_dir", folder.parent, code=ExitCode.OUTPUT):
                raise hidden from failure
            raise
        stand_in = temporary(environ)
        if stand_in is None:
            raise
    warning = (
        f"{folder.parent.absolute()} cannot be written: this run is kept in {stand_in}, which may vanish with the "
        f"container. fix: {_mount(folder.parent)}, or set run.output_dir"
    )
    folder = stand_in / config.run.name
    return Place(folder=folder, overrides=(f"run.output_dir={stand_in}",), warnings=(warning,))


def _lost(output: Path) -> tuple[str, ...]:
    """Root may write everywhere in a container, and Apptainer's --contain gives a home of its own."""
    if not fleeting(output):
        return ()
    return (
        f"{output.absolute()} is in the container, no folder of the host: this run may vanish with it. fix: "
        f"{_mount(output)}, or set run.output_dir to one that is mounted",
    )


def _mount(output: Path) -> str:
    """A mounted working directory shows the configuration and the data too."""
    here, whole = Path.cwd(), output.absolute()
    return f"mount a folder there (docker run -v DIR:{here if here in whole.parents else whole}, apptainer --bind DIR)"


def scratch(environ: Mapping[str, str]) -> Path:
    """A new temporary folder. Raises Failure (OUTPUT), where no place takes one."""
    folder = temporary(environ)
    if folder is None:
        found, fix = ", ".join(PLACES), "set TMPDIR to a folder that you may write"
        raise Failure("no temporary folder can be made", found=found, fix=fix, code=ExitCode.OUTPUT)
    return folder


def temporary(environ: Mapping[str, str]) -> Path | None:
    """A new folder in the first place that takes one; a read-only root often leaves only /dev/shm."""
    for parent in (environ.get("TMPDIR"), *PLACES):
        try:
            if parent:
                return Path(tempfile.mkdtemp(prefix="train-", dir=parent))
        except OSError:
            continue
    return None


def _refuse_dangling(folder: Path) -> None:
    link = _dangling(folder)
    if link is None:
        return
    target = os.path.realpath(link)
    raise unseen("run.output_dir", link, code=ExitCode.OUTPUT) or Failure(
        f"{link} is a symbolic link to what is not there: the run cannot be kept where it says",
        found=f"{link} -> {os.readlink(link)}",
        fix=f"mkdir -p {shlex.quote(target)}, if nothing else is missing; or mount it (docker run -v DIR:{target}); or "
        "remove the link",
        code=ExitCode.OUTPUT,
    )


def _dangling(folder: Path) -> Path | None:
    """The link on the way to `folder` that leads to nothing, which is what one to a folder not mounted looks like."""
    way = (folder.absolute(), *folder.absolute().parents)
    return next((place for place in way if os.path.islink(place) and not os.path.exists(place)), None)


def look(folder: Path) -> str:
    """In words, without writing: whether the folder is new, and whether its place seems writable."""
    if link := _dangling(folder):
        return f"{link} leads to {os.path.realpath(link)}, which is not there"
    there = next((place for place in (folder, *folder.absolute().parents) if os.path.lexists(place)), Path("/"))
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{there} cannot be written"
    return "exists" if there == folder else "new"
