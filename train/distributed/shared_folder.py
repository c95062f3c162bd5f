"""This module refuses a run whose folder is not the same one on all nodes.

For example, /tmp is a different folder on each node.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from entrypoint import ExitCode, Failure, file_writer
from train import files
from train.distributed.runtime import Runtime

# NFS may answer for 30 s from its cache of a folder (acdirmin), unless the folder is listed; many ranks may ask.
VISIBILITY_TIMEOUT_S, VISIBILITY_POLL_S = 35.0, 0.5


def refuse_unshared_folder(runtime: Runtime, folder: Path) -> None:
    """Refuse a run's folder in which some rank does not see a file that rank 0 has created.

    Raises:
        Failure: OUTPUT on all ranks, naming the nodes that do not see it; as in `files.ERRNO_MEANINGS` if rank 0
            cannot create it.
    """
    if runtime.cpu_group is None:
        return
    mark = folder / runtime.run_on_rank_zero(lambda: _write_marker(folder))
    seen = runtime.all_gather((socket.gethostname(), _wait_for_marker(mark)))
    if runtime.is_main:
        files.remove(mark)
    if apart := sorted({host for host, sees in seen if not sees}):
        raise Failure(
            "the run's folder is not the same one on all nodes: its checkpoints would stay on one of them",
            found=f"what {seen[0][0]} writes in {folder.absolute()} is not there on {', '.join(apart)}",
            expected="a folder on a file system that all nodes of the job share",
            fix="set run.output_dir to such a folder (/tmp and a node's own disk are none)",
            code=ExitCode.OUTPUT,
        )


def _write_marker(folder: Path) -> str:
    mark = file_writer.temporary_path(folder / "seen")
    with files.translate_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        files.create_file(mark, b"")
    return mark.name


def _wait_for_marker(mark: Path) -> bool:
    end = time.monotonic() + VISIBILITY_TIMEOUT_S
    while not os.path.exists(mark):  # Path.exists() of Python 3.11 raises NFS's error of a stale handle
        if time.monotonic() > end:
            return False
        for folder in (mark.parent.parent, mark.parent):
            with suppress(OSError):
                os.listdir(folder)
        time.sleep(VISIBILITY_POLL_S)
    return True
