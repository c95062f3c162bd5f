"""DataParallel: one process, its network copied to all visible GPUs in every step. On the CPU it passes through.

python bench/peers/dataparallel.py --batch 1024
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # the image's Python does not look there by itself

import torch
import workload
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DataParallel


def main() -> None:
    parser = workload.arguments(__doc__.partition(":")[0])
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    wanted = parser.parse_args()
    device = torch.device(wanted.device)
    net = workload.network(wanted).to(device, memory_format=torch.channels_last)
    model = DataParallel(net) if wanted.device == "cuda" else net
    optimizer = torch.optim.SGD(
        net.parameters(), lr=wanted.lr, momentum=0.9, weight_decay=5e-4, fused=wanted.device == "cuda"
    )
    pixels, labels = (tensor.to(device) for tensor in workload.images(wanted))
    rows = workload.orders(wanted, device)
    low = torch.autocast(device.type, torch.bfloat16) if wanted.precision == "bf16" else nullcontext()

    def step() -> None:
        chosen = next(rows)
        x = pixels[chosen].permute(0, 3, 1, 2).float().sub_(workload.MIDDLE).div_(workload.SPREAD)
        with low:
            loss = cross_entropy(model(x), labels[chosen])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    gpus = torch.cuda.device_count() if wanted.device == "cuda" else 0
    workload.timed(step, wanted, device, peer="dataparallel", precision=wanted.precision, gpus=gpus)


if __name__ == "__main__":
    main()
