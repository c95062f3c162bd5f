"""Run by a Python on a null GPU: which models use an operation that has no repeatable kernel on GPUs.

null_gpu_models.py NAME...    prints a JSON object: for each model torch's refusal, or an empty text
"""

from __future__ import annotations

import json
import sys

import torch

from train.config.schema import ModelConfig
from train.data.shape import Shape
from train.models import registry
from train.worker import exit_now

CLASSES = 4


def refusal(name: str, size: int) -> str:
    """What torch says of a step of this model with repeatable kernels only."""
    config = ModelConfig(name=name)
    network = registry.build_model(config, classes=CLASSES, shape=Shape(channels=3, size=(size, size)), seed=0).cuda()
    try:
        network(torch.zeros(2, 3, size, size, device="cuda")).sum().backward()
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        return str(error).partition(" ")[0]
    return ""


def main(names: list[str]) -> None:
    """Print the refusals."""
    torch.use_deterministic_algorithms(True)
    sizes = {"inception_v3": 96, "maxvit_t": 224}
    print(json.dumps({name: refusal(name, sizes.get(name, 64)) for name in names}))


if __name__ == "__main__":
    main(sys.argv[1:])
    exit_now(0)  # in the interpreter's own end, autograd's thread for a GPU has turned it into a SIGABRT
