"""This table holds what is known of each value of train.precision. It loads no torch, so that a start can check them.

A new precision, such as fp64, is one row here: `TrainConfig.precision` allows the names of this table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """A precision to compute in; the weights are fp32, unless `convert` makes them something else."""

    accelerate_name: str  # Accelerate casts in the forward pass, and scales losses with fp16
    autocast_dtype: str | None  # the attribute of torch that the forward pass casts to; None without autocast
    on_cpu: bool = True  # whether a CPU computes in it
    description: str = ""  # for the banner
    # Takes and returns a network, before DDP wraps it. It may give its parameters another type, and let a forward
    # pre-hook cast what the network reads, which is fp32. The optimizer knows the parameters already: they must stay.
    convert: Callable[[Any], Any] = lambda network: network


PRECISIONS: Final[Mapping[str, Precision]] = {
    "fp32": Precision(accelerate_name="no", autocast_dtype=None),
    "bf16": Precision(accelerate_name="bf16", autocast_dtype="bfloat16", description="autocast; weights in fp32"),
    "fp16": Precision(
        accelerate_name="fp16",
        autocast_dtype="float16",
        on_cpu=False,
        description="autocast, loss scaling; weights in fp32",
    ),
}
