"""The run's folder is one folder for all ranks, or the run is refused: /tmp is another one on each node."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from entrypoint import ExitCode, Failure
from train.files import durable, refusals
from train.ranks.runtime import Runtime

# NFS may go on for 30 s with what it knew of a folder (acdirmin), unless the folder is listed; many ranks may ask.
PATIENCE_S, PAUSE_S = 35.0, 0.5


def refuse_apart(runtime: Runtime, folder: Path) -> None:
    """Return where every rank sees a file that rank 0 has made in the run's folder.

    Raises:
        Failure: OUTPUT on all ranks, naming the nodes that do not; as in `refusals.MEANING` where it cannot be made.
    """
    if runtime.control is None:
        return
    mark = folder / runtime.shared(lambda: _leave(folder))
    seen = runtime.gathered((socket.gethostname(), _sees(mark)))
    if runtime.is_main:
        durable.remove(mark)
    if apart := sorted({host for host, sees in seen if not sees}):
        raise Failure(
            "the run's folder is not the same one on all nodes: its checkpoints would stay on one of them",
            found=f"what {seen[0][0]} writes in {folder.absolute()} is not there on {', '.join(apart)}",
            expected="a folder on a file system that all nodes of the job share",
            fix="set run.output_dir to such a folder (/tmp and a node's own disk are none)",
            code=ExitCode.OUTPUT,
        )


def _leave(folder: Path) -> str:
    mark = folder / f"{durable.TEMPORARY}seen-{os.urandom(8).hex()}"
    with refusals.told(folder):
        folder.mkdir(parents=True, exist_ok=True)
        durable.create(mark, b"")
    return mark.name


def _sees(mark: Path) -> bool:
    end = time.monotonic() + PATIENCE_S
    while not os.path.exists(mark):  # Path.exists() of Python 3.11 raises what NFS says of a stale handle
        if time.monotonic() > end:
            return False
        for folder in (mark.parent.parent, mark.parent):
            with suppress(OSError):
                os.listdir(folder)
        time.sleep(PAUSE_S)
    return True
