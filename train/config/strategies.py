"""This table holds what is known of each value of train.parallel. It loads no torch, so that a start can check them.

A new strategy, such as FSDP, is one row here and a subclass of `train.parallel.base.Parallel`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """How the ranks of a run share a step."""

    class_name: str  # the subclass of Parallel, as module:Class in train.parallel
    description: str  # for the banner
    is_single_process: bool = False  # which exchanges nothing with other processes
    warnings: tuple[str, ...] = ()  # for the start


STRATEGIES: Final[Mapping[str, Strategy]] = {
    "ddp": Strategy(class_name="strategies:DDP", description="DDP: one process for each rank, gradients are averaged"),
    "dp": Strategy(
        class_name="strategies:DP",
        description="DataParallel, one process for all GPUs",
        is_single_process=True,
        warnings=(
            "train.parallel dp: one process feeds all GPUs and copies the model to each of them in every step, which "
            "is slower than ddp and leaves the CPU's other cores idle. fix: train.parallel=ddp, unless you want to "
            "compare",
        ),
    ),
    "none": Strategy(class_name="base:Parallel", description="none: one process", is_single_process=True),
}
