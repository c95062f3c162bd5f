"""Several real processes that meet over gloo, each running one function of a test's helper module."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from processes import TIMEOUT_S, start_python


def together(script: str, ranks: int, folder: Path, *arguments: str) -> None:
    """Run `script FOLDER RANK RANKS ARGUMENTS` once for each rank; raises with the output of one that fails.

    Ranks meet by a file in `folder`, so that no port can be taken.
    """
    folder.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        started = [
            start_python(script, str(folder), str(rank), str(ranks), *arguments, cwd=folder) for rank in range(ranks)
        ]
        for process in started:
            stack.enter_context(process)
            stack.callback(process.kill)
        for rank, process in enumerate(started):
            said, _ = process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == 0, f"rank {rank}: {said}"


def main(action: Callable[..., None]) -> None:
    """In the script: join the others, call `action(folder, rank, ranks, *arguments)`, and leave."""
    import torch
    from torch import distributed as dist

    torch.set_num_threads(1)
    folder, rank, ranks, *rest = sys.argv[1:]
    store = dist.FileStore(f"{folder}/store", int(ranks))
    dist.init_process_group("gloo", store=store, rank=int(rank), world_size=int(ranks), timeout=timedelta(seconds=60))
    try:
        action(Path(folder), int(rank), int(ranks), *rest)
        dist.barrier()
    finally:
        dist.destroy_process_group()
