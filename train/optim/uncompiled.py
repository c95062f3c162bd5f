"""Makes a subclass of a torch optimizer class whose step does not load torch's compiler.

torch's own wrappers import torch._dynamo in the first step, and record each step for a profiler
that usually does not run.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Final

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as base

# The first call of each of these loads torch's compiler, to mark the method for it.
COMPILER_WRAPPED_METHODS: Final = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")


def uncompiled_class(optimizer_type: type[Optimizer]) -> type[Optimizer]:
    """Make a subclass with the same name of a class of torch.optim.

    Its step calls the function that torch has wrapped, without gradients. Do not use it for classes
    of other packages: they may need their wrappers.

    Importing the compiler, torch._dynamo, takes 1.2 s in the first step of each rank (torch 2.15:
    `optim/optimizer.py`, `_use_grad_for_differentiable`, and `_compile.py`). `profile_hook_step` in
    the same file takes 20 µs in each step, even without a hook or a profiler.
    """
    bare = inspect.unwrap(optimizer_type.step)

    @functools.wraps(bare)
    def alone(self: Optimizer, *arguments: Any) -> Any:
        with torch.set_grad_enabled(self.defaults.get("differentiable", False)):
            return bare(self, *arguments)

    recorded = Optimizer.profile_hook_step(alone)

    @functools.wraps(bare)
    def step(self: Optimizer, *arguments: Any) -> Any:
        return recorded(self, *arguments) if _has_hooks_or_profiler(self) else alone(self, *arguments)

    step.hooked = True  # type: ignore[attr-defined]  # so that torch does not wrap it again
    own: dict[str, Any] = {name: inspect.unwrap(getattr(optimizer_type, name)) for name in COMPILER_WRAPPED_METHODS}
    return type(
        optimizer_type.__name__,
        (optimizer_type,),
        own | {"step": step, "__doc__": optimizer_type.__doc__, "__module__": optimizer_type.__module__},
    )


def _has_hooks_or_profiler(optimizer: Optimizer) -> bool:
    """Whether a profiler runs, or this optimizer or all optimizers have hooks for a step."""
    before, after = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    every = base._global_optimizer_pre_hooks or base._global_optimizer_post_hooks
    return bool(before or after or every) or torch.autograd._profiler_enabled()
