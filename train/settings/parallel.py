"""`train.parallel` to what it means for processes: how many may train together, and what is said about it."""

from __future__ import annotations

from typing import Final

from entrypoint import ExitCode, Failure
from train.settings import bitwise
from train.settings.config import Train

SLOW: Final = (
    "train.parallel dp: one process feeds all GPUs and copies the model to each of them in every step, which is slower "
    "than ddp and leaves the CPU's other cores idle. fix: train.parallel=ddp, unless you want to compare"
)
WORDS: Final = {
    "ddp": "DDP: one process for each rank, gradients are averaged",
    "dp": "DataParallel, one process for all GPUs",
    "none": "none: one process",
}
TREE: Final = "one process for each rank, whose gradients meet in pairs"
ALONE: Final = "none: one process, nobody to exchange gradients with"


def describe(train: Train, world_size: int) -> str:
    """For the start of a run."""
    if train.parallel == "ddp" and world_size == 1:
        return ALONE
    return TREE if bitwise.asked_for(train) else WORDS[train.parallel]


def one_process(kind: str) -> bool:
    """Whether this kind has exactly one process, on however many GPUs."""
    return kind != "ddp"


def warnings(kind: str) -> tuple[str, ...]:
    """What is to be said at every start."""
    return (SLOW,) if kind == "dp" else ()


def refuse_unfit(train: Train) -> None:
    """Refuse what needs a process for each GPU, where there is one for all.

    Raises:
        Failure: USAGE.
    """
    if train.parallel == "dp" and train.compile is not False:
        raise Failure(
            "train.compile does not go with train.parallel dp, which copies the model to each GPU in every step",
            found=f"train.compile: {train.compile}",
            fix="set train.parallel=ddp, or train.compile=false",
            code=ExitCode.USAGE,
        )


def refuse_several(kind: str, world_size: int) -> None:
    """Refuse more ranks than `train.parallel` has: each would train alone, and all would write the same files.

    Raises:
        Failure: USAGE, with the numbers.
    """
    if one_process(kind) and world_size > 1:
        raise Failure(
            f"train.parallel {kind} is one process",
            found=f"{world_size} ranks",
            expected="1 rank",
            fix="set train.parallel=ddp, or start one process: --procs-per-node 1 on one node, srun --ntasks=1",
            code=ExitCode.USAGE,
        )
