"""Makes a subclass of an optimizer class of torch whose step does not load torch's compiler.

torch's own wrappers import torch._dynamo at the first step, and record each step for a profiler
that usually does not run.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Final

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as base

# torch marks these for its compiler when they are first called, and for that loads it.
COMPILER_WRAPPED_METHODS: Final = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")


def uncompiled_class(optimizer_type: type[Optimizer]) -> type[Optimizer]:
    """A subclass of the same name, for a class of torch.optim. Its step does the same: it is what torch's own has
    wrapped, without gradients.

    The compiler, torch._dynamo, is 1.2 s of imports in the first step of each rank (torch 2.15: `optim/optimizer.py`,
    `_use_grad_for_differentiable`, and `_compile.py`). Hooks, and the profiler's record of each step, cost 20 µs a step
    where nobody has asked for any (`profile_hook_step` there). Other classes may need what they have wrapped.
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

    step.hooked = True  # type: ignore[attr-defined]  # so that torch wraps it no more
    own: dict[str, Any] = {name: inspect.unwrap(getattr(optimizer_type, name)) for name in COMPILER_WRAPPED_METHODS}
    return type(
        optimizer_type.__name__,
        (optimizer_type,),
        own | {"step": step, "__doc__": optimizer_type.__doc__, "__module__": optimizer_type.__module__},
    )


def _has_hooks_or_profiler(optimizer: Optimizer) -> bool:
    """Whether a profiler runs, or anybody has a hook in a step of this optimizer or of all."""
    before, after = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    every = base._global_optimizer_pre_hooks or base._global_optimizer_post_hooks
    return bool(before or after or every) or torch.autograd._profiler_enabled()
