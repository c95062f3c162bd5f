"""Stock Accelerate with `save_state`: what a checkpoint adds to a block of steps. The last two are kept, as ours are.

python bench/peers/saving.py --batch 1 --steps 20
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # the image's Python does not look there by itself

import torch
import workload
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from torch.nn.functional import cross_entropy


def main() -> None:
    parser = workload.arguments(__doc__.partition(":")[0])
    parser.add_argument("--folder", help="where checkpoints go; without it into a temporary one")
    wanted = parser.parse_args()
    folder = wanted.folder or tempfile.mkdtemp(prefix="saving-")
    kept = ProjectConfiguration(project_dir=folder, automatic_checkpoint_naming=True, total_limit=2)
    accelerator = Accelerator(cpu=wanted.device == "cpu", project_config=kept)
    net = workload.network(wanted).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=wanted.lr, momentum=0.9, weight_decay=5e-4, fused=True)
    model, optimizer = accelerator.prepare(net, optimizer)
    pixels, labels = (tensor.to(accelerator.device) for tensor in workload.images(wanted))
    rows = workload.orders(wanted, accelerator.device)

    def block(steps: int, save: bool = False) -> dict[str, float]:
        """Seconds of all, and of the save alone, which comes after the first step."""
        took = 0.0
        workload.synchronize(accelerator.device)
        began = time.perf_counter()
        for number in range(steps):
            chosen = next(rows)
            images = pixels[chosen].permute(0, 3, 1, 2).float().sub_(workload.MIDDLE).div_(workload.SPREAD)
            accelerator.backward(cross_entropy(model(images), labels[chosen]))
            optimizer.step()
            optimizer.zero_grad()
            if save and number == 0:
                workload.synchronize(accelerator.device)
                before = time.perf_counter()
                accelerator.save_state()
                took = time.perf_counter() - before
        workload.synchronize(accelerator.device)
        return {"seconds": time.perf_counter() - began, "save_s": took}

    for _ in range(kept.total_limit + 1):  # until one is deleted for each that is saved
        block(max(1, wanted.warm_up), True)
    facts = {"peer": "saving", "device": workload.name(accelerator.device), "batch": wanted.batch}
    if wanted.pace:
        workload.paced(block, wanted.pace, facts)
        return
    told = [(block(wanted.steps, False), block(wanted.steps, True)) for _ in range(wanted.blocks)]
    extra = [after["seconds"] - before["seconds"] for before, after in told]
    print(json.dumps(facts | {"save_s": [after["save_s"] for _, after in told], "extra_s": extra}), flush=True)


if __name__ == "__main__":
    main()
