"""One optimizer step, as early as a script with Accelerate gets to it; prints when that was.

accelerate launch --cpu bench/peers/first_step.py --batch 64 --depth 1 --width 1
"""

from __future__ import annotations

import json
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # the image's Python does not look there by itself

import torch
import workload
from accelerate import Accelerator
from torch.nn.functional import cross_entropy


def main() -> None:
    wanted = workload.arguments(__doc__.partition(":")[0]).parse_args()
    accelerator = Accelerator(cpu=wanted.device == "cpu")
    net = workload.network(wanted).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=wanted.lr, momentum=0.9, weight_decay=5e-4, fused=True)
    model, optimizer = accelerator.prepare(net, optimizer)
    pixels, labels = (tensor.to(accelerator.device) for tensor in workload.images(wanted))
    rows = next(workload.orders(wanted, accelerator.device))
    images = pixels[rows].permute(0, 3, 1, 2).float().sub_(workload.MIDDLE).div_(workload.SPREAD)
    loss = cross_entropy(model(images), labels[rows])
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    told = {"peer": "first_step", "device": workload.name(accelerator.device), "batch": wanted.batch}
    print(json.dumps(told | {"loss": loss.item(), "at": time.time()}), flush=True)


if __name__ == "__main__":
    main()
