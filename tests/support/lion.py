"""Lion (https://arxiv.org/abs/2302.06675), an optimizer outside torch.optim: `optim.name: lion:Lion`."""

import torch
from torch.optim import Optimizer


class Lion(Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0, mode="plain"):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay, mode=mode))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                moment = state.setdefault("moment", torch.zeros_like(weight))
                state["seen"] = True
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.sub_(group["lr"] * moment.lerp(weight.grad, 1 - group["betas"][0]).sign())
                moment.lerp_(weight.grad, 1 - group["betas"][1])
