"""The store commits checkpoint folders atomically, lists, verifies and prunes them.

The order of a commit, and what a kill or a power cut leaves at each point:

1. A folder `.tmp-...`, each file written and fsynced: ignored, and removed at the next start.
2. The manifest, written last, by rename, and the folder fsynced: the same.
3. The folder renamed to `step-...`: whole, since all of it was on the disk before.
4. `checkpoints/` fsynced: **committed**. `format.save_checkpoint` returns only after this point.

The module does not import torch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Final

from entrypoint import ExitCode, Failure
from train import files
from train import files as file_io
from train.checkpoint import manifest
from train.checkpoint.manifest import DamagedCheckpointError, Manifest

# Its version without loading it: the front door looks here too. Read now: at a save the image's files may be gone.
TORCH_VERSION: Final = version("torch")
REPLACED_PREFIX = ".old-"  # a checkpoint whose step is saved again, until the new one stands in its place
STEP_FOLDER_PATTERN = re.compile(rf"(?:{re.escape(REPLACED_PREFIX)})?step-(\d{{8,}})")


def step_folder_name(step: int) -> str:
    """The folder's name for `step`, such that names sort like steps."""
    return f"step-{step:08d}"


def list_checkpoints(folder: Path) -> dict[int, Path]:
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
    with files.translate_os_errors(folder, "read"):
        found = (
            [(STEP_FOLDER_PATTERN.fullmatch(path.name), path) for path in folder.iterdir()] if folder.exists() else []
        )
    by_name = sorted(((int(match[1]), path) for match, path in found if match), key=lambda at: at[1].name)
    return dict(sorted(dict(by_name).items()))  # "." sorts before "s": the new one wins


def verify_hashes(path: Path) -> Manifest:
    """The manifest of the checkpoint folder `path`, once it and every file have the right hash. Nothing is parsed.

    Raises:
        Damaged: a file is missing, cut short or changed.
        Failure: SECURITY for links and paths; DATA when it was written by a newer version of this project or of torch.
    """
    contents = read_manifest(path)
    for file, expected in contents.files.items():
        manifest.refuse_changed_file(file, expected, manifest.hash_file(path, file))
    return contents


def verify_sizes(path: Path) -> Manifest:
    """The manifest, once every file has its size: hashing what may be large is left out; raises as `verify_hashes`
    does."""
    contents = read_manifest(path)
    for file, expected in contents.files.items():
        with manifest.open_file(path, file) as there:
            size = os.fstat(there.fileno()).st_size
        if size != expected.size:
            raise DamagedCheckpointError(f"{file} has {size} bytes, not {expected.size}")
    return contents


def read_manifest(path: Path) -> Manifest:
    """The manifest alone; raises as `verify_hashes` does."""
    contents = manifest.from_bytes(manifest.read_file(path, manifest.FILE_NAME, limit=manifest.MAX_MANIFEST_BYTES))
    if path.name.removeprefix(REPLACED_PREFIX) != step_folder_name(contents.step):
        raise DamagedCheckpointError(f"{manifest.FILE_NAME} belongs to step {contents.step}")
    _refuse_newer_version("format", str(contents.format), str(manifest.FORMAT_VERSION), path)
    _refuse_newer_version("torch", contents.torch, TORCH_VERSION, path)
    return contents


def _refuse_newer_version(what: str, written: str, ours: str, path: Path) -> None:
    """Older is read, or migrated here once there is a second format; newer is refused rather than misread."""
    if _major_minor(written) > _major_minor(ours):
        raise Failure(
            f"{path} was written by a newer version",
            found=f"{what} {written}",
            expected=f"{what} {ours} or older",
            fix="continue with the version that wrote it, or start over with checkpoint.resume=never",
            code=ExitCode.DATA,
        )


def _major_minor(version: str) -> tuple[int, ...]:
    """(2, 15) of "2.15.0+cu132": what may change a file's meaning."""
    return tuple(int(part) for part in re.findall(r"\d{1,9}", version)[:2])


def prune_checkpoints(folder: Path, *, keep: int, best: int | None = None, trusted: int | None = None) -> list[str]:
    """Delete all but the `keep` newest whole checkpoints, never `best` nor the newest valid one; the names deleted.

    trusted: the step that this process has just committed. It needs no reading again, and what stands above it was
    refused when the run was resumed, so that it counts as damaged.
    """
    there = list_checkpoints(folder)
    whole = [
        s for s in reversed(there) if s == trusted or ((trusted is None or s < trusted) and _is_complete(there[s]))
    ]
    valid = next((s for s in whole if s == trusted or is_valid_checkpoint(there[s])), None)
    if valid is None:
        return []  # nothing here is better than the rest
    stay = {valid, best, *whole[: max(keep, 1)]}
    gone = [path for step, path in there.items() if step not in stay]
    for path in gone:
        _delete_checkpoint(path)
    return [path.name for path in gone]


def _is_complete(path: Path) -> bool:
    """Is the manifest right, and has each file its size? Cheap enough to ask of each checkpoint at each save."""
    try:
        return all((path / file).lstat().st_size == entry.size for file, entry in read_manifest(path).files.items())
    except (DamagedCheckpointError, OSError):
        return False
    except Failure:  # another version's: whole, for that one
        return True


def _delete_checkpoint(path: Path) -> None:
    """Delete a checkpoint such that a kill leaves no half of it under its name."""
    gone = path.with_name(f"{files.TEMPORARY_PREFIX}gone-{path.name}-{os.urandom(4).hex()}")
    with suppress(OSError):
        os.rename(path, gone)
        files.remove(gone)


def is_valid_checkpoint(path: Path) -> bool:
    """Does everything there have the right hash, and is it for this version?"""
    try:
        verify_hashes(path)
    except (DamagedCheckpointError, Failure):
        return False
    return True


def remove_leftovers(folder: Path) -> list[str]:
    """Remove what killed writers left in `folder`; the names removed. On rank 0, before anything is written there."""
    for old in folder.glob(f"{REPLACED_PREFIX}*"):
        place = old.with_name(old.name.removeprefix(REPLACED_PREFIX))
        if place.exists():
            files.remove(old)
        else:
            with files.translate_os_errors(place):
                os.rename(old, place)
    return files.remove_temporary_files(folder)


def is_committed(path: Path, contents: Manifest) -> bool:
    """Does this content stand at `path` already, with the right hashes?"""
    try:
        return verify_hashes(path) == contents
    except DamagedCheckpointError:
        return False


def commit_checkpoint(final: Path, files: Mapping[str, bytes | memoryview], contents: Manifest) -> None:
    """Commit the checkpoint `final`. Raises OSError or Failure, and leaves no temporary folder."""
    temporary = final.with_name(f"{file_io.TEMPORARY_PREFIX}{final.name}-{os.urandom(4).hex()}")
    try:
        temporary.mkdir(parents=True)
        for name, data in files.items():
            file_io.create_file(temporary / name, data)
        file_io.write_atomic(temporary / manifest.FILE_NAME, manifest.to_bytes(contents))
        _rename_into_place(temporary, final, contents)
        file_io.fsync_folder(final.parent)
    finally:
        file_io.remove(temporary)
    file_io.remove(final.with_name(REPLACED_PREFIX + final.name))


def _rename_into_place(temporary: Path, final: Path, contents: Manifest) -> None:
    """Rename `temporary` to `final`; what stood there stays, and counts, until the new one is committed."""
    if final.exists():
        old = final.with_name(REPLACED_PREFIX + final.name)
        file_io.remove(old)
        os.rename(final, old)
    try:
        file_io.retry_transient_errors(lambda: os.rename(temporary, final))
    except FileNotFoundError:  # a file server did it, lost its answer, and was asked again
        with suppress(DamagedCheckpointError):
            if read_manifest(final) == contents:
                return
        raise
