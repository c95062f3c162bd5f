"""Whether shared memory holds what data workers put there: asked before training, where it is easily mended."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from entrypoint import ExitCode, Failure
from train.data.pools import PREFETCH, SHM

MIB: Final = 2**20


def refuse_small(workers: int, each: int, *, ranks: int, place: Path = Path(SHM)) -> None:
    """Refuse a start that would end at its first evaluation, or wherever training waits for the GPU.

    Args:
        workers: of one rank.
        each: bytes of one batch of training and one of evaluation, whose workers are there at the same time.
        ranks: on this node.

    Raises:
        Failure: RESOURCE.
    """
    need = ranks * workers * PREFETCH * each
    try:
        found = os.statvfs(place)
    except OSError:
        return  # not there: torch says what it misses
    free = found.f_bavail * found.f_frsize
    if need <= free:
        return
    some = f"{workers} worker{'s' * (workers != 1)}"
    who = some if ranks == 1 else f"{ranks} ranks x {some}"
    fewer = workers * free // need
    raise Failure(
        "shared memory is too small for the data workers",
        found=f"{place} of {found.f_blocks * found.f_frsize // MIB} MiB, {free // MIB} MiB free",
        expected=f"{-(-need // MIB)} MiB for {who} with {PREFETCH} batches of training and of evaluation each",
        fix=f"docker run --shm-size={-(-need // 2**30) + 1}g (or --ipc=host); or set data.workers={fewer}",
        code=ExitCode.RESOURCE,
    )
