"""The store commits checkpoint folders atomically, lists, verifies and prunes them.

The order of a commit, and what the next start finds if the process ends after each step:

1. A folder `.tmp-...`, each file written and fsynced: the next start ignores and removes it.
2. The manifest, written last, by rename, and the folder fsynced: the same.
3. The folder renamed to `step-...`: after a kill it is a valid checkpoint.
4. `checkpoints/` fsynced: **committed**, valid after a power cut too. `commit_checkpoint` returns.

The module does not import torch.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from entrypoint import ExitCode, Failure, file_writer
from train import files
from train.checkpoint import manifest
from train.checkpoint.manifest import DamagedCheckpointError, Manifest
from train.config.schema import CheckpointConfig

# Read without importing torch, since the parent process needs it too; at import, since the image's
# files may be gone at a save.
TORCH_VERSION: Final = version("torch")
STATE_FILE: Final = "state.json"  # everything in a checkpoint except tensors
MODEL_GROUP, OPTIMIZER_GROUP, EMA_GROUP = "model", "optimizer", "ema"  # groups of tensors
REPLACED_PREFIX = ".old-"  # a checkpoint whose step is saved again, until the new one is committed
START_OVER_FIX: Final = "start over with checkpoint.resume=never"
DAMAGED_FIX: Final = f"delete it, so that the one before is used, or {START_OVER_FIX}"
OTHER_VERSION_FIX: Final = f"continue with the version that wrote it, or {START_OVER_FIX}"
SKIPPED: Final = "skipped a damaged checkpoint: {}"
STEP_FOLDER_PATTERN = re.compile(rf"(?:{re.escape(REPLACED_PREFIX)})?step-(\d{{8,}})")


def read_verified(path: Path, contents: Manifest, name: str) -> bytes:
    """The bytes of one file of the checkpoint at `path`, after their hash was compared with the manifest's.

    Raises:
        DamagedCheckpointError: the file is missing, not in the manifest, or changed.
    """
    if name not in contents.files:
        raise DamagedCheckpointError(f"{name} is not in it")
    expected = contents.files[name]
    data = manifest.read_file(path, name, limit=expected.size)
    manifest.refuse_changed_file(name, expected, manifest.make_file_entry(data))
    return data


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedCheckpoint:
    """A checkpoint with a valid manifest; from `first_undamaged` also with valid hashes."""

    path: Path
    contents: Manifest
    notes: tuple[str, ...] = ()  # which damaged checkpoints come before it, and why they are damaged
    damaged_fix: str = DAMAGED_FIX  # what to do if one of its files does not match its hash when it is read

    @property
    def step(self) -> int:
        """The step after which it was saved."""
        return self.contents.step


def newest_checkpoint(folder: Path) -> CommittedCheckpoint | None:
    """The newest checkpoint with a valid manifest and valid hashes; None without checkpoints.

    Raises Failure as `first_undamaged`, and SECURITY for a folder that is a link.
    """
    paths = [*reversed(list_checkpoints(folder).values())]
    return first_undamaged(paths, folder, START_OVER_FIX) if paths else None


def first_undamaged(
    paths: Iterable[Path], folder: Path, fix: str, damaged_fix: str = DAMAGED_FIX
) -> CommittedCheckpoint:
    """The first of these checkpoints in `folder` with valid hashes. fix: if there is none.

    Raises:
        Failure: DATA when all are damaged, or one was written by a newer version; SECURITY for links and for paths in
            a manifest.
    """
    damaged: list[str] = []
    for path in paths:
        try:
            notes = tuple(map(SKIPPED.format, damaged))
            return CommittedCheckpoint(path=path, contents=verify_hashes(path), notes=notes, damaged_fix=damaged_fix)
        except DamagedCheckpointError as reason:
            damaged.append(f"{path.name}: {reason}")
    raise Failure(f"no checkpoint in {folder} is whole", found="; ".join(damaged), fix=fix, code=ExitCode.DATA)


def checkpoint_at_step(folder: Path, step: int) -> CommittedCheckpoint:
    """The checkpoint of `step`, which rank 0 has chosen: its files are hashed as they are read.

    Raises Failure as `open_checkpoint`.
    """
    return open_checkpoint(list_checkpoints(folder).get(step, folder / step_folder_name(step)))


def open_checkpoint(
    path: Path, read: Callable[[Path], Manifest] | None = None, damaged_fix: str = DAMAGED_FIX
) -> CommittedCheckpoint:
    """The checkpoint at `path`. read: `verify_hashes`; by default `read_manifest`, which reads no other file.

    Raises:
        Failure: DATA for a damaged one, with `damaged_fix`; and as `read`.
    """
    try:
        return CommittedCheckpoint(path=path, contents=(read or read_manifest)(path), damaged_fix=damaged_fix)
    except DamagedCheckpointError as reason:
        raise damaged_failure(path, reason, damaged_fix) from reason


def read_state(checkpoint: CommittedCheckpoint) -> dict[str, Any]:
    """The content of state.json, whose hash is compared again. Raises Failure (DATA)."""
    try:
        return dict(files.parse_json(read_verified(checkpoint.path, checkpoint.contents, STATE_FILE)))
    except (DamagedCheckpointError, ValueError, TypeError, RecursionError) as reason:
        raise damaged_failure(checkpoint.path, reason, checkpoint.damaged_fix) from reason


def damaged_failure(path: Path, reason: object, fix: str) -> Failure:
    """The failure for a checkpoint that cannot be used."""
    return Failure(f"the checkpoint {path} is damaged", found=str(reason), fix=fix, code=ExitCode.DATA)


def step_folder_name(step: int) -> str:
    """The name of the folder for `step`; names sort like steps."""
    return f"step-{step:08d}"


def list_checkpoints(folder: Path) -> dict[int, Path]:
    """The checkpoints in `folder`, damaged ones too, oldest first.

    One that was being replaced is included if the new one is missing: its writer died between the
    two renames.

    Raises:
        Failure: SECURITY when `folder` is a link: checkpoints stay inside the run's folder.
    """
    if folder.is_symlink():
        raise Failure(
            f"{folder} is a symbolic link",
            fix=files.SYMLINK_FIX,
            code=ExitCode.SECURITY,
        )
    with files.translate_os_errors(folder, "read"):
        candidates = (
            [(STEP_FOLDER_PATTERN.fullmatch(path.name), path) for path in folder.iterdir()] if folder.exists() else []
        )
    by_name = sorted(((int(match[1]), path) for match, path in candidates if match), key=lambda item: item[1].name)
    return dict(sorted(dict(by_name).items()))  # "." sorts before "s": the new one wins


def tested_step(folder: Path, *, best_step: int | None, last_step: int) -> int:
    """The step whose weights the test split is measured with: the best, or the last if that checkpoint is deleted."""
    return best_step if best_step is not None and best_step in list_checkpoints(folder) else last_step


def damaged_best_fix(checkpoint: Path) -> str:
    """How a run ends whose best checkpoint is damaged."""
    return f"rm -r {shlex.quote(str(checkpoint))}, and start again: then the weights of the last step are measured"


def verify_hashes(path: Path) -> Manifest:
    """Check the hashes of the manifest and of every file in `path`; return the manifest.

    No other file is parsed.

    Raises:
        DamagedCheckpointError: a file is missing, truncated or changed.
        Failure: SECURITY for links and paths; DATA when it was written by a newer version of this
            project or of torch.
    """
    contents = read_manifest(path)
    for file, expected in contents.files.items():
        manifest.refuse_changed_file(file, expected, manifest.hash_file(path, file))
    return contents


def verify_sizes(path: Path) -> Manifest:
    """Check the size of every file, without hashing; return the manifest.

    Raises as `verify_hashes`.
    """
    contents = read_manifest(path)
    for file, expected in contents.files.items():
        with manifest.open_file(path, file) as opened:
            size = os.fstat(opened.fileno()).st_size
        if size != expected.size:
            raise DamagedCheckpointError(f"{file} has {size} bytes, not {expected.size}")
    return contents


def read_manifest(path: Path) -> Manifest:
    """Read the manifest alone; raises as `verify_hashes`."""
    contents = manifest.from_bytes(manifest.read_file(path, manifest.FILE_NAME, limit=manifest.MAX_MANIFEST_BYTES))
    if path.name.removeprefix(REPLACED_PREFIX) != step_folder_name(contents.step):
        raise DamagedCheckpointError(f"{manifest.FILE_NAME} belongs to step {contents.step}")
    _refuse_newer_version("format", str(contents.format), str(manifest.FORMAT_VERSION), path)
    _refuse_newer_version("torch", contents.torch, TORCH_VERSION, path)
    return contents


def _refuse_newer_version(what: str, written: str, ours: str, path: Path) -> None:
    """Refuse a newer version, which might be misread; an older one can be read."""
    if _major_minor(written) > _major_minor(ours):
        raise Failure(
            f"{path} was written by a newer version",
            found=f"{what} {written}",
            expected=f"{what} {ours} or older",
            fix=OTHER_VERSION_FIX,
            code=ExitCode.DATA,
        )


def _major_minor(version: str) -> tuple[int, ...]:
    """(2, 15) for "2.15.0+cu132": the parts of a version that may change a file's format."""
    return tuple(int(part) for part in re.findall(r"\d{1,9}", version)[:2])


def prune_checkpoints(
    folder: Path, policy: CheckpointConfig, *, best: int | None = None, trusted: int | None = None
) -> list[str]:
    """Delete all but the newest complete checkpoints, as many as `policy` keeps; never `best` or the newest valid one.

    It returns the names of the deleted ones.

    trusted: the step that this process has just committed, which is not read again. Checkpoints of
    later steps were refused when the run was resumed, so they count as damaged.
    """
    checkpoints = list_checkpoints(folder)
    complete = [
        s
        for s in reversed(checkpoints)
        if s == trusted or ((trusted is None or s < trusted) and _is_complete(checkpoints[s]))
    ]
    valid = next((s for s in complete if s == trusted or is_valid_checkpoint(checkpoints[s])), None)
    if valid is None:
        return []  # all are damaged: delete none
    kept = {valid, best, *complete[: max(policy.keep, 1)]}
    deleted = [path for step, path in checkpoints.items() if step not in kept]
    for path in deleted:
        # Rename a checkpoint and delete it, so that a kill leaves no partial one.
        renamed = file_writer.temporary_path(path, "gone-")
        with suppress(OSError):
            os.rename(path, renamed)
            files.remove(renamed)
    return [path.name for path in deleted]


def _is_complete(path: Path) -> bool:
    """Whether the manifest is valid and each file has its size; cheap enough for each save."""
    try:
        return all((path / file).lstat().st_size == entry.size for file, entry in read_manifest(path).files.items())
    except (DamagedCheckpointError, OSError):
        return False
    except Failure:  # of another version, and complete for that one
        return True


def is_valid_checkpoint(path: Path) -> bool:
    """Whether all hashes are right and this version can read the checkpoint."""
    try:
        verify_hashes(path)
    except (DamagedCheckpointError, Failure):
        return False
    return True


def remove_leftovers(folder: Path) -> list[str]:
    """Remove leftovers of killed writers; return their names.

    Call it on rank 0, before the first write.
    """
    for old in folder.glob(f"{REPLACED_PREFIX}*"):
        final = old.with_name(old.name.removeprefix(REPLACED_PREFIX))
        if final.exists():
            files.remove(old)
        else:
            with files.translate_os_errors(final):
                os.rename(old, final)
    return files.remove_temporary_files(folder)


def is_committed(path: Path, contents: Manifest) -> bool:
    """Whether `path` already holds this content, with the right hashes."""
    try:
        return verify_hashes(path) == contents
    except DamagedCheckpointError:
        return False


def commit_checkpoint(final: Path, data_by_name: Mapping[str, bytes | memoryview], contents: Manifest) -> None:
    """Commit the checkpoint `final`. Raises OSError or Failure, and leaves no temporary folder."""
    temporary = file_writer.temporary_path(final)
    try:
        temporary.mkdir(parents=True)
        for name, data in data_by_name.items():
            files.create_file(temporary / name, data)
        files.write_atomic(temporary / manifest.FILE_NAME, manifest.to_bytes(contents))
        _rename_into_place(temporary, final, contents)
        file_writer.fsync_folder(final.parent)
    finally:
        files.remove(temporary)
    files.remove(final.with_name(REPLACED_PREFIX + final.name))


def _rename_into_place(temporary: Path, final: Path, contents: Manifest) -> None:
    """Rename `temporary` to `final`.

    An existing checkpoint stays valid until the new one is committed.
    """
    if final.exists():
        old = final.with_name(REPLACED_PREFIX + final.name)
        files.remove(old)
        os.rename(final, old)
    try:
        file_writer.retry_transient_errors(lambda: os.rename(temporary, final))
    except FileNotFoundError:  # the rename worked, but the file server lost its answer, and it was retried
        with suppress(DamagedCheckpointError):
            if read_manifest(final) == contents:
                return
        raise
