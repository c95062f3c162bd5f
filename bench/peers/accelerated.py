"""Stock Accelerate: the loop of its own documentation, with the same network, images and optimizer.

python bench/peers/accelerated.py --batch 256 --precision bf16
accelerate launch bench/peers/accelerated.py --device cpu
"""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # the image's Python does not look there by itself

import torch
import workload
from accelerate import Accelerator
from torch.nn.functional import cross_entropy


def main() -> None:
    parser = workload.arguments(__doc__.partition(":")[0])
    parser.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="fp32")
    wanted = parser.parse_args()
    words = {"fp32": "no"}
    accelerator = Accelerator(mixed_precision=words.get(wanted.precision, wanted.precision), cpu=wanted.device == "cpu")
    device = accelerator.device
    net = workload.network(wanted).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=wanted.lr, momentum=0.9, weight_decay=5e-4, fused=True)
    model, optimizer = accelerator.prepare(net, optimizer)
    pixels, labels = (tensor.to(device) for tensor in workload.images(wanted))
    rows = workload.orders(wanted, device)
    losses, hits = [], []

    def step() -> None:
        chosen = next(rows)
        x = pixels[chosen].permute(0, 3, 1, 2).float().sub_(workload.MIDDLE).div_(workload.SPREAD)
        y = labels[chosen]
        with accelerator.accumulate(model):
            logits = model(x)
            loss = cross_entropy(logits, y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
        hits.append((logits.detach().argmax(1) == y).sum())
        if len(losses) == wanted.log_every:
            torch.stack([torch.stack(losses).sum(), torch.stack(hits).sum()]).tolist()
            losses.clear()
            hits.clear()

    workload.timed(step, wanted, device, peer="accelerated", precision=wanted.precision)


if __name__ == "__main__":
    main()
