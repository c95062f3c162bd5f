"""A simulated wire: plain DDP on one GPU, whose exchange of gradients waits as long as a network would take.

Real buckets, and real overlap with the backward pass; nothing is sent. The default times are fitted to the published
nccl-tests of two nodes with four GPUs each (Slingshot): 179 us and 16.1 us per MB.

    python bench/peers/wire.py --batch 128 --precision bf16
    python bench/peers/wire.py --batch 128 --precision bf16 --alpha-us 0 --us-per-mb 0     # the same without a wire
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # the image's Python does not look there by itself

import torch
import workload
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

TRIED = 100_000_000  # cycles, to see how long the GPU takes for them


class Wire:
    """Gives each bucket back, as late as it would have arrived."""

    def __init__(self, device: torch.device, alpha_s: float, s_per_byte: float) -> None:
        self.device, self.alpha_s, self.s_per_byte = device, alpha_s, s_per_byte
        if device.type == "cuda":
            self.lane, self.cycles_per_s = torch.cuda.Stream(device), cycles_per_s()
        else:
            self.one_by_one = ThreadPoolExecutor(1)

    def carry(self, tensor: torch.Tensor) -> torch.futures.Future:
        seconds = self.alpha_s + self.s_per_byte * tensor.nbytes
        if self.device.type == "cpu":
            arrived = torch.futures.Future()
            self.one_by_one.submit(lambda: (time.sleep(seconds), arrived.set_result(tensor)))
            return arrived
        arrived = torch.futures.Future(devices=[self.device])
        self.lane.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.lane):
            torch.cuda._sleep(int(seconds * self.cycles_per_s))
            arrived.set_result(tensor)
        return arrived


def cycles_per_s() -> float:
    """Of the GPU's clock, as torch's sleep counts it; the second time, when it runs as fast as it does at work."""
    for _ in range(2):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        torch.cuda._sleep(TRIED)
        ended.record()
        torch.cuda.synchronize()
    return TRIED / (began.elapsed_time(ended) / 1e3)


def main() -> None:
    parser = workload.arguments(__doc__.partition(":")[0])
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--alpha-us", type=float, default=179.0, help="of each exchange")
    parser.add_argument("--us-per-mb", type=float, default=16.1, help="of 10^6 bytes")
    wanted = parser.parse_args()
    device = workload.in_a_group(wanted.device)
    backend = "gloo" if device.type == "cpu" else "nccl"
    torch.distributed.init_process_group(backend, store=torch.distributed.HashStore(), rank=0, world_size=1)
    net = workload.network(wanted).to(device, memory_format=torch.channels_last)
    ids = [device.index] if device.type == "cuda" else None
    model = DistributedDataParallel(net, device_ids=ids, gradient_as_bucket_view=True, broadcast_buffers=False)
    wire = Wire(device, wanted.alpha_us / 1e6, wanted.us_per_mb / 1e12)
    model.register_comm_hook(None, lambda state, bucket: wire.carry(bucket.buffer()))
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

    times = {"alpha_us": wanted.alpha_us, "us_per_mb": wanted.us_per_mb}
    workload.timed(step, wanted, device, peer="wire", precision=wanted.precision, simulated=True, **times)
    os._exit(0)  # the interpreter's own end has waited for ever for the hook and its thread


if __name__ == "__main__":
    main()
