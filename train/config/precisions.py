"""This table describes the values of train.precision, so that they are checked without loading torch.

A new precision needs one row here and its name in TrainConfig.precision; a test holds both together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """A precision to compute in; the weights are fp32."""

    accelerate_name: str  # what Accelerate calls it
    autocast_dtype: str | None  # the attribute of torch that the forward pass casts to; None without autocast
    on_cpu: bool = True  # whether a CPU computes in it
    description: str = ""  # for the banner


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
