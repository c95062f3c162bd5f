"""Copies tar shards to a disk of the node, or into its memory, while a training reads them (data.stage).

The first rank of each node copies, in a thread. A copy that agrees with the index appears under its name by a rename,
and all readers of the node open it instead of the original from then on. The copies of a start are in one folder, which
the parent process removes when its ranks have ended. If that was killed too, the next start with the same data.stage
does: a lock that ends with the first rank tells whether a folder is in use. This module imports neither torch nor
numpy, because the parent process uses it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Final

from entrypoint import (
    ExitCode,
    Failure,
    file_writer,
    filesystem_type,
    free_memory_mib,
    print_message,
    shell_command,
    start_daemon_thread,
    unmounted_path_failure,
)
from train import files
from train.config.schema import DataConfig

if TYPE_CHECKING:
    from train.data.shards.index import ShardIndex

FOLDER_PREFIX: Final = "train-stage-"
LOCK_FILE: Final = "lock"
MAX_TRIES: Final = 10  # to make a folder: another start may remove it as a leftover before it is locked
READ_BYTES: Final = 4 * 2**20
MIN_FREE_BYTES: Final = 2**30
MEMORY_FILE_SYSTEMS: Final = ("tmpfs", "ramfs")
FIX: Final = (
    "set data.stage to a folder on a disk of the node that you may write (in a container: mount one), or leave it out"
)
FIXES: Final = dict.fromkeys(ExitCode, FIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """Which shards a node copies: the first `shards` of all `total` that training and validation read.

    num_bytes, total_bytes: of these. keep_free: bytes that stay free there for others.
    """

    shards: int
    total: int
    num_bytes: int
    total_bytes: int
    keep_free: int

    def describe(self, stage: str, *, is_same_everywhere: bool = True) -> str:
        """A line for the banner. is_same_everywhere: whether all nodes copy as many."""
        copies = f"{self.shards:,} of {self.total:,} shards ({_gigabytes(self.num_bytes, self.total_bytes)})"
        if not is_same_everywhere:
            return f"data.stage: each node copies at least {copies} to {stage} while it trains"
        left = "" if self.shards == self.total else "; there is no room for the others, which are read from data.root"
        return f"data.stage: {copies} are copied to {stage} while training runs{left}"


def refuse_unusable_stage(data: DataConfig) -> None:
    """Refuse a data.stage that cannot hold copies here. Nothing is written.

    Raises:
        Failure: USAGE inside data.root, whose index would list the copies; OUTPUT if it is no folder, if this user may
            not write there, or if neither it nor the folder above it exists.
    """
    if data.stage is None:
        return
    stage = Path(data.stage)
    if stage.resolve().is_relative_to(Path(data.root).resolve()):
        raise Failure(
            "data.stage lies inside data.root",
            found=f"{stage}, in {data.root}",
            fix="set data.stage to a folder on a disk of the node, outside of data.root",
            code=ExitCode.USAGE,
        )
    if os.path.isdir(stage):
        reason = None if os.access(stage, os.W_OK | os.X_OK) else "it cannot be written"
    elif os.path.lexists(stage):
        reason = "it is no folder"
    elif not os.path.isdir(stage.parent):
        reason = f"there is no folder {stage.absolute().parent}"
    else:
        reason = None if os.access(stage.parent, os.W_OK | os.X_OK) else f"{stage.absolute().parent} cannot be written"
    if reason is not None:
        raise unmounted_path_failure("data.stage", stage.absolute().parent, code=ExitCode.OUTPUT) or Failure(
            f"cannot copy shards to data.stage {stage}", found=reason, fix=FIX, code=ExitCode.OUTPUT
        )


def make_folder(data: DataConfig) -> Path:
    """A new folder in data.stage for the copies of this start, in use until this process ends. Left ones are removed.

    data.stage itself is made, if only its last folder is missing.

    Raises:
        Failure: as `refuse_unusable_stage`; OUTPUT, IO or RESOURCE if the system refuses.
    """
    refuse_unusable_stage(data)
    stage = Path(data.stage or "")
    with files.translate_os_errors(stage, fixes=FIXES):
        stage.mkdir(exist_ok=True)
        remove_left_folders(stage)
        for _ in range(MAX_TRIES):
            folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=stage))
            if _lock(folder):
                return folder
        raise OSError(errno.EBUSY, "other starts remove the folder")


def remove_left_folders(stage: Path) -> None:
    """Remove the folders of starts whose first rank on this node has ended, as far as the system allows.

    A process must not call it while it holds a lock itself: POSIX locks do not tell a process from itself.
    """
    for folder in stage.glob(f"{FOLDER_PREFIX}*"):
        with suppress(OSError):
            status = folder.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
                _remove_if_unused(folder)


def start_copying(data: DataConfig, folder: Path) -> StagePlan:
    """Copy the shards of data.root to `folder`, as many as fit, in a thread that ends with the process.

    Raises:
        Failure: as `shard_index.read_index` and `plan_copies`.
    """
    from train.data.shards import index as shard_index  # numpy

    index = shard_index.read_index(Path(data.root))
    shard_index.refuse_wrong_entries(index)
    plan = plan_copies(index, folder)
    if plan.shards:
        start_daemon_thread(partial(copy_shards, index, folder, plan, partial(print_message, stream=sys.stderr)))
    return plan


def plan_copies(index: ShardIndex, folder: Path) -> StagePlan:
    """The shards that fit into `folder` beside what should stay free. Raises Failure: OUTPUT or IO.

    A quarter of the free memory stays free, or a twentieth of the disk, and MIN_FREE_BYTES at least: data workers and
    checkpoints need room too.
    """
    with files.translate_os_errors(folder, fixes=FIXES):
        free, disk = _free_bytes(folder), os.statvfs(folder)
    share = free // 4 if _is_in_memory(folder) else disk.f_blocks * disk.f_frsize // 20
    keep_free = max(MIN_FREE_BYTES, share)
    sums = [*accumulate(index.shards[number].size for number in _numbers_to_copy(index))]
    fitting = sum(size <= free - keep_free for size in sums)
    return StagePlan(
        shards=fitting,
        total=len(sums),
        num_bytes=sums[fitting - 1] if fitting else 0,
        total_bytes=sums[-1] if sums else 0,
        keep_free=keep_free,
    )


def copy_shards(index: ShardIndex, folder: Path, plan: StagePlan, warn: Callable[[str], None]) -> None:
    """Copy the planned shards one after the other. The first error of the system ends it, and the training goes on.

    warn: called with one line for that error, and one for each shard that differs from its index.
    """
    copied = 0
    for number in _numbers_to_copy(index)[: plan.shards]:
        shard = index.shards[number]
        try:
            if _free_bytes(folder) - shard.size < plan.keep_free:
                raise OSError(errno.ENOSPC, f"less than {_gigabytes(plan.keep_free)} would stay free")
            is_copied = _copy_shard(index, number, folder)
        except OSError as error:
            warn(
                f"warning: data.stage: copying stopped at {shard.name}: {error.strerror}; {copied:,} of "
                f"{plan.total:,} shards are copied, and the others are read from {index.folder}"
            )
            return
        copied += is_copied
        if not is_copied:
            warn(
                f"warning: data.stage: {index.folder / shard.name} is not what was indexed: it is not copied. "
                f"fix: copy it again; or, if it is right: {shell_command('train data index', index.folder)}"
            )


def _numbers_to_copy(index: ShardIndex) -> list[int]:
    """The shards that are read once per epoch, in order: test images are read once."""
    return [number for number, shard in enumerate(index.shards) if shard.split != "test"]


def _copy_shard(index: ShardIndex, number: int, folder: Path) -> bool:
    """Copy a shard, unless the copy differs from the index: whether it is there now. Raises OSError."""
    shard = index.shards[number]
    copy = folder / shard.name
    copy.parent.mkdir(exist_ok=True)  # of a name such as val/0001.tar
    with (
        suppress(ValueError),
        files.open_regular_file(index.folder / shard.name) as source,
        file_writer.replace_file(copy, durable=False) as target,
    ):
        shutil.copyfileobj(source, target, READ_BYTES)
        target.flush()
        if target.tell() != shard.size or not _holds_indexed_images(target.fileno(), index, number):
            raise ValueError("a copy that is not what was indexed gets no name")
        return True
    return False


def _holds_indexed_images(handle: int, index: ShardIndex, number: int) -> bool:
    """Whether all images of a shard have the crc32 of the index. Raises OSError."""
    first = sum(shard.images for shard in index.shards[:number])
    entries = index.entries[first : first + index.shards[number].images]
    columns = (entries[name].tolist() for name in ("offset", "length", "crc32"))
    return all(
        zlib.crc32(os.pread(handle, length, offset)) == crc32 for offset, length, crc32 in zip(*columns, strict=True)
    )


def _lock(folder: Path) -> bool:
    """Lock a new folder until this process ends; false if another start has just removed it. Raises OSError.

    Only a POSIX lock fits: forked data workers do not inherit it. The file stays open: closing it would end the lock.
    """
    path = folder / LOCK_FILE
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return False
    with suppress(BlockingIOError):
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.lexists(path):
            return True
    os.close(handle)
    return False


def _remove_if_unused(folder: Path) -> None:
    """Raises OSError, also if the folder is in use."""
    try:
        handle = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        folder.rmdir()  # killed before the lock; or about to lock, and then it tries again
        return
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for path in folder.iterdir():
            if path.name != LOCK_FILE:  # the last one: without it nobody would remove what a kill leaves now
                files.remove(path)
        (folder / LOCK_FILE).unlink()
        folder.rmdir()
    finally:
        os.close(handle)


def _free_bytes(folder: Path) -> int:
    """Of the file system, and of the memory if it is there. Raises OSError."""
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    memory_mib = free_memory_mib() if _is_in_memory(folder) else None
    return free if memory_mib is None else min(free, memory_mib << 20)


def _is_in_memory(folder: Path) -> bool:
    return filesystem_type(folder) in MEMORY_FILE_SYSTEMS


def _gigabytes(*counts: int) -> str:
    """`12.0 of 150.0 GB`, in MB if the last is less than 0.1 GB."""
    divisor, unit = (1e9, "GB") if counts[-1] >= 1e8 else (1e6, "MB")
    return " of ".join(f"{count / divisor:,.1f}" for count in counts) + f" {unit}"
