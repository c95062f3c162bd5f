"""Several real processes that meet over gloo, each running one function of a test's helper module."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from processes import TIMEOUT_S

# One process of each test worker has loaded torch, and forks a rank within milliseconds.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["torch.nn.parallel", "accelerate", "train.distributed.runtime", "train.models.registry"])


def together(script: str, ranks: int, folder: Path, *arguments: str) -> None:
    """Run `script FOLDER RANK RANKS ARGUMENTS` once for each rank; raises with the output of one that fails.

    Ranks meet by a file in `folder`, so that no port can be taken.
    """
    folder.mkdir(parents=True)
    started = [
        SERVER.Process(target=_rank, args=([script, str(folder), str(rank), str(ranks), *arguments], dict(os.environ)))
        for rank in range(ranks)
    ]
    deadline = time.monotonic() + TIMEOUT_S
    try:
        for process in started:
            process.start()
        for rank, process in enumerate(started):
            process.join(max(0.0, deadline - time.monotonic()))
            assert process.exitcode == 0, f"rank {rank}, {process.exitcode}: {_output(folder, rank).read_text()}"
    finally:
        for process in started:
            process.kill()
            process.join()
            process.close()


def _output(folder: Path, rank: int) -> Path:
    return folder.with_name(f"{folder.name}-output-{rank}")


def _rank(line: list[str], environ: dict[str, str]) -> None:
    """What a rank does first: it becomes `python SCRIPT ...` in its folder."""
    folder = Path(line[1])
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(folder)
    descriptor = os.open(_output(folder, int(line[2])), os.O_WRONLY | os.O_CREAT)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.argv = line
    if (coverage := sys.modules.get("coverage")) and (measured := coverage.Coverage.current()):
        measured.switch_context(environ["PYTEST_CURRENT_TEST"])  # that of the server is another test's
    runpy.run_path(line[0], run_name="__main__")


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
