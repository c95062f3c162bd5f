"""The device's measure: products of square matrices, one a step.

python bench/peers/products.py --side 8192
"""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # the image's Python does not look there by itself

import torch
import workload


def main() -> None:
    parser = workload.arguments(__doc__.partition(":")[0])
    parser.add_argument("--side", type=int, default=8192)
    wanted = parser.parse_args()
    device = torch.device(wanted.device)
    kind = torch.bfloat16 if wanted.device == "cuda" else torch.float32
    shape = (wanted.side, wanted.side)
    left, right = torch.randn(shape, device=device).to(kind), torch.randn(shape, device=device).to(kind)
    result = torch.empty(shape, device=device, dtype=kind)
    wanted.batch = 0
    workload.timed(lambda: torch.mm(left, right, out=result), wanted, device, peer="products", side=wanted.side)


if __name__ == "__main__":
    main()
