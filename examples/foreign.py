"""A script of your own that knows torch.distributed and nothing of this project. Copy it, or start yours the same way.

Start it with one process per GPU, under Slurm too, or with two processes on the CPU:

    entrypoint run -- python foreign.py
    entrypoint run --device cpu --procs-per-node 2 -- python foreign.py
"""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

# RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT are set, as torchrun sets them.
on_gpu = os.environ.get("ENTRYPOINT_DEVICE") != "cpu" and torch.cuda.is_available()
local = int(os.environ["LOCAL_RANK"]) % max(1, torch.cuda.device_count())  # 0 where each process sees one GPU only
device = torch.device("cuda", local) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if on_gpu else "gloo")  # waits until all processes are there
rank, world_size = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)  # the same first weights everywhere
model = DistributedDataParallel(torch.nn.Linear(8, 1).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
draw = torch.Generator().manual_seed(rank)  # other samples on each rank
for _ in range(50):
    samples = torch.randn(16, 8, generator=draw).to(device)
    loss = (model(samples).squeeze(1) - samples.sum(1)).square().mean()  # learn to add up eight numbers
    optimizer.zero_grad()
    loss.backward()  # here the ranks average their gradients
    optimizer.step()

dist.all_reduce(loss := loss.detach())  # the sum over all ranks
if rank == 0:
    print(f"{world_size} processes on {device.type}, mean loss {loss.item() / world_size:.6f}")
dist.destroy_process_group()
