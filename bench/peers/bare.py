"""A loop by hand, with the same mathematics as ours: what torch alone can do, one process or DDP under torchrun.

python bench/peers/bare.py --batch 256 --precision bf16 --compile
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # the image's Python does not look there by itself

import torch
import workload
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = workload.arguments(__doc__.partition(":")[0])
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--augment", action="store_true", help="shifts of up to 4 pixels and mirror images")
    parser.add_argument("--compile", nargs="?", const="default", help="torch.compile with this mode")
    parser.add_argument("--no-channels-last", action="store_true")
    wanted = parser.parse_args()
    device = workload.in_a_group(wanted.device)
    layout = torch.contiguous_format if wanted.no_channels_last else torch.channels_last
    net = workload.network(wanted).to(device, memory_format=layout)
    optimizer = torch.optim.SGD(net.parameters(), lr=wanted.lr, momentum=0.9, weight_decay=5e-4, fused=True)
    ready = torch.compile(net, mode=wanted.compile) if wanted.compile else net
    model = together(ready, device) if workload.RANKS > 1 else ready
    pixels, labels = (tensor.to(device) for tensor in workload.images(wanted))
    rows = workload.orders(wanted, device)
    low = torch.autocast(device.type, torch.bfloat16) if wanted.precision == "bf16" else nullcontext()
    parameters, losses, hits = list(net.parameters()), [], []
    torch.backends.cudnn.benchmark = device.type == "cuda"

    def step() -> None:
        chosen = next(rows)
        x, y = batch(pixels, chosen, wanted.augment), labels[chosen]
        with low:
            logits = model(x)
            loss = cross_entropy(logits, y)
        loss.backward()
        optimizer.step()
        for parameter in parameters:
            parameter.grad = None
        losses.append(loss.detach())
        hits.append((logits.detach().argmax(1) == y).sum())
        if len(losses) == wanted.log_every:
            torch.stack([torch.stack(losses).sum(), torch.stack(hits).sum()]).tolist()
            losses.clear()
            hits.clear()

    workload.timed(step, wanted, device, peer="bare", precision=wanted.precision, compile=wanted.compile)


def together(net: nn.Module, device: torch.device) -> nn.Module:
    """DDP as it is usually tuned."""
    ids = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(net, device_ids=ids, gradient_as_bucket_view=True, broadcast_buffers=False)


def batch(pixels: Tensor, rows: Tensor, augment: bool) -> Tensor:
    """[n, 3, size, size], channels last in memory."""
    taken = pixels[rows] if not augment else moved(pixels, rows)
    return taken.permute(0, 3, 1, 2).float().sub_(workload.MIDDLE).div_(workload.SPREAD)


def moved(pixels: Tensor, rows: Tensor) -> Tensor:
    """Shifted by up to an eighth of the image and mirrored, all in one gather; borders are reflected."""
    size, here, number = pixels.shape[1], pixels.device, len(rows)
    reach = size // 8
    shift = torch.randint(-reach, reach + 1, (2, number, 1), device=here)
    across = torch.arange(size, device=here).expand(number, size)
    mirror = torch.rand(number, 1, device=here) < 0.5
    across = inside(torch.where(mirror, size - 1 - across, across) + shift[0], size)
    along = inside(torch.arange(size, device=here) + shift[1], size)
    return pixels[rows[:, None, None], along[:, :, None], across[:, None, :]]


def inside(place: Tensor, size: int) -> Tensor:
    return (size - 1) - ((size - 1) - place.abs()).abs()


if __name__ == "__main__":
    main()
