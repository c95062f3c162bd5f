"""The published recipe ("PyTorch on Olivia", 4 GPUs), re-typed: plain DDP, fp16 with a scaler, 8 loader workers that
read PIL images one by one, NCHW, the loss read in every step. Not tuned: this is what is published.

    torchrun --nproc-per-node 4 bench/peers/published.py
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # the image's Python does not look there by itself

import torch
import workload
from pillow import Pictures
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def main() -> None:
    parser = workload.arguments(__doc__.partition(":")[0])
    parser.add_argument("--precision", choices=("fp32", "fp16"), default="fp16")
    parser.add_argument("--workers", type=int, default=8)
    wanted = parser.parse_args()
    device = workload.in_a_group(wanted.device)
    if workload.RANKS == 1:  # the recipe wraps in DDP whatever the number of processes
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group(
            "gloo" if device.type == "cpu" else "nccl", store=store, rank=0, world_size=1
        )
    net = workload.network(wanted).to(device)
    model = DistributedDataParallel(net, device_ids=[device.index] if device.type == "cuda" else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=wanted.lr, momentum=0.9, weight_decay=5e-4)
    half = wanted.precision == "fp16"
    scaler = torch.amp.GradScaler(device.type, enabled=half and device.type == "cuda")
    batches = epochs(wanted)

    def step() -> None:
        x, y = next(batches)
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.float16 if device.type == "cuda" else torch.bfloat16, enabled=half):
            loss = cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        loss.item()

    workload.timed(step, wanted, device, peer="published", precision=wanted.precision, workers=wanted.workers)


def epochs(wanted: argparse.Namespace) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches for ever; the workers start again for each epoch."""
    pictures = Pictures(*workload.images(wanted))
    sampler = DistributedSampler(pictures, num_replicas=workload.RANKS, rank=workload.RANK)
    loader = DataLoader(
        pictures,
        batch_size=wanted.batch,
        sampler=sampler,
        num_workers=wanted.workers,
        pin_memory=wanted.device == "cuda",
        drop_last=True,
    )
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


if __name__ == "__main__":
    main()
