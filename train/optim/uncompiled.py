"""An optimizer's class becomes the same one that does not load torch's compiler, which an eager step has no use for."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Final

import torch
from torch.optim import Optimizer

# torch marks these for its compiler when they are first called, and for that loads it.
MARKED: Final = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")


def uncompiled(kind: type[Optimizer]) -> type[Optimizer]:
    """A subclass of the same name. Its step does the same: it is what torch's own has wrapped, without gradients.

    The compiler, torch._dynamo, is 1.2 s of imports in the first step of each rank (torch 2.15: `optim/optimizer.py`,
    `_use_grad_for_differentiable`, and `_compile.py`).
    """
    bare = inspect.unwrap(kind.step)

    @functools.wraps(bare)
    def step(self: Optimizer, *arguments: Any) -> Any:
        with torch.set_grad_enabled(self.defaults.get("differentiable", False)):
            return bare(self, *arguments)

    own: dict[str, Any] = {name: inspect.unwrap(getattr(kind, name)) for name in MARKED}
    return type(kind.__name__, (kind,), own | {"step": step, "__doc__": kind.__doc__, "__module__": kind.__module__})
