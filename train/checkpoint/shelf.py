"""The folder of checkpoints becomes a list: which steps stand there, which are whole, and which may go. No torch."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Final

from entrypoint import ExitCode, Failure
from train.checkpoint import manifest
from train.checkpoint.manifest import Damaged, Manifest
from train.files import durable, refusals

# Its version without loading it: the front door looks here too. Read now: at a save the image's files may be gone.
TORCH: Final = version("torch")
REPLACED = ".old-"  # a checkpoint whose step is saved again, until the new one stands in its place
STEP = re.compile(rf"(?:{re.escape(REPLACED)})?step-(\d{{8,}})")


def name(step: int) -> str:
    """The folder's name for `step`, such that names sort like steps."""
    return f"step-{step:08d}"


def steps(folder: Path) -> dict[int, Path]:
    """The checkpoints in `folder`, damaged ones too, oldest first.

    One that was about to be replaced counts where the new one is missing: its writer died between the two renames.

    Raises:
        Failure: SECURITY when `folder` is a link: checkpoints stay inside the run's folder.
    """
    if folder.is_symlink():
        raise Failure(
            f"{folder} is a symbolic link",
            fix="set run.output_dir to the place where the checkpoints are to be kept",
            code=ExitCode.SECURITY,
        )
    with refusals.told(folder, "read"):
        found = [(STEP.fullmatch(path.name), path) for path in folder.iterdir()] if folder.exists() else []
    by_name = sorted(((int(match[1]), path) for match, path in found if match), key=lambda at: at[1].name)
    return dict(sorted(dict(by_name).items()))  # "." sorts before "s": the new one wins


def examine(path: Path) -> Manifest:
    """The manifest of the checkpoint folder `path`, once it and every file have the right hash. Nothing is parsed.

    Raises:
        Damaged: a file is missing, cut short or changed.
        Failure: SECURITY for links and paths; DATA when it was written by a newer version of this project or of torch.
    """
    contents = listed(path)
    for file, expected in contents.files.items():
        manifest.compare(file, expected, manifest.measured(path, file))
    return contents


def complete(path: Path) -> Manifest:
    """The manifest, once every file has its size: hashing what may be large is left out; raises as `examine` does."""
    contents = listed(path)
    for file, expected in contents.files.items():
        with manifest.opened(path, file) as there:
            size = os.fstat(there.fileno()).st_size
        if size != expected.size:
            raise Damaged(f"{file} has {size} bytes, not {expected.size}")
    return contents


def listed(path: Path) -> Manifest:
    """The manifest alone; raises as `examine` does."""
    contents = manifest.from_bytes(manifest.read(path, manifest.NAME, limit=manifest.LIMIT))
    if path.name.removeprefix(REPLACED) != name(contents.step):
        raise Damaged(f"{manifest.NAME} belongs to step {contents.step}")
    _refuse_newer("format", str(contents.format), str(manifest.FORMAT), path)
    _refuse_newer("torch", contents.torch, TORCH, path)
    return contents


def _refuse_newer(what: str, written: str, ours: str, path: Path) -> None:
    """Older is read, or migrated here once there is a second format; newer is refused rather than misread."""
    if _release(written) > _release(ours):
        raise Failure(
            f"{path} was written by a newer version",
            found=f"{what} {written}",
            expected=f"{what} {ours} or older",
            fix="continue with the version that wrote it, or start over with checkpoint.resume=never",
            code=ExitCode.DATA,
        )


def _release(version: str) -> tuple[int, ...]:
    """(2, 15) of "2.15.0+cu132": what may change a file's meaning."""
    return tuple(int(part) for part in re.findall(r"\d{1,9}", version)[:2])


def prune(folder: Path, *, keep: int, best: int | None = None, trusted: int | None = None) -> list[str]:
    """Delete all but the `keep` newest whole checkpoints, never `best` nor the newest valid one; the names deleted.

    trusted: the step that this process has just committed. It needs no reading again, and what stands above it was
    refused when the run was resumed, so that it counts as damaged.
    """
    there = steps(folder)
    whole = [s for s in reversed(there) if s == trusted or ((trusted is None or s < trusted) and _is_whole(there[s]))]
    valid = next((s for s in whole if s == trusted or is_valid(there[s])), None)
    if valid is None:
        return []  # nothing here is better than the rest
    stay = {valid, best, *whole[: max(keep, 1)]}
    gone = [path for step, path in there.items() if step not in stay]
    for path in gone:
        _discard(path)
    return [path.name for path in gone]


def _is_whole(path: Path) -> bool:
    """Is the manifest right, and has each file its size? Cheap enough to ask of each checkpoint at each save."""
    try:
        return all((path / file).lstat().st_size == entry.size for file, entry in listed(path).files.items())
    except (Damaged, OSError):
        return False
    except Failure:  # another version's: whole, for that one
        return True


def _discard(path: Path) -> None:
    """Delete a checkpoint such that a kill leaves no half of it under its name."""
    gone = path.with_name(f"{durable.TEMPORARY}gone-{path.name}-{os.urandom(4).hex()}")
    with suppress(OSError):
        os.rename(path, gone)
        durable.remove(gone)


def is_valid(path: Path) -> bool:
    """Does everything there have the right hash, and is it for this version?"""
    try:
        examine(path)
    except (Damaged, Failure):
        return False
    return True


def sweep(folder: Path) -> list[str]:
    """Remove what killed writers left in `folder`; the names removed. On rank 0, before anything is written there."""
    for old in folder.glob(f"{REPLACED}*"):
        place = old.with_name(old.name.removeprefix(REPLACED))
        if place.exists():
            durable.remove(old)
        else:
            with refusals.told(place):
                os.rename(old, place)
    return durable.sweep(folder)
