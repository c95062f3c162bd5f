"""BatchNorm's running statistics, updated once in a step from those of all its micro batches, in any order."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class RunningStatistics:
    """While a step lasts, the buffers hold one micro batch's mean and variance; after it what torch would have made of
    them with one update: (1 - momentum) x before + momentum x their mean.

    Torch's own order, one update for each micro batch, cannot be cut into ranks.
    """

    def __init__(self, net: nn.Module) -> None:
        found = [module for module in net.modules() if isinstance(module, _BatchNorm)]
        self._norms = [norm for norm in found if norm.running_mean is not None]
        self._momenta = [norm.momentum for norm in self._norms]
        self._before: list[list[Tensor]] = []
        for norm in self._norms:
            norm.momentum = 1.0  # into zeros: what is there afterwards is the batch's own

    @staticmethod
    def names(net: nn.Module) -> set[str]:
        """The names of all buffers that it is about."""
        norms = {name: module for name, module in net.named_modules() if isinstance(module, _BatchNorm)}
        return {f"{name}.{buffer}".lstrip(".") for name, norm in norms.items() for buffer, _ in norm.named_buffers()}

    def open(self) -> None:
        """Before the first micro batch of a step. Norms that a model has frozen are left alone."""
        self._before = [[buffer.clone() for buffer in _buffers(norm)] if norm.training else [] for norm in self._norms]
        self._clear()

    def taken(self) -> list[Tensor]:
        """The last micro batch's mean, variance, and whether it came here (1 or 0), for each norm."""
        leaf = []
        for norm in self._training():
            mean, variance, used = _buffers(norm)
            leaf += [mean.clone(), variance.clone(), used.clamp(max=1).to(mean.dtype)]
        self._clear()
        return leaf

    def settle(self, sums: list[Tensor]) -> None:
        """After the last: `sums` is what `taken` gave, added up over all micro batches of the step."""
        left = iter(sums)
        for norm, momentum, before in zip(self._norms, self._momenta, self._before, strict=True):
            if before:
                _update(norm, momentum, before, [next(left) for _ in before])

    def _training(self) -> list[_BatchNorm]:
        return [norm for norm, before in zip(self._norms, self._before, strict=True) if before]

    def _clear(self) -> None:
        for norm in self._training():
            for buffer in _buffers(norm):
                buffer.zero_()


def _buffers(norm: _BatchNorm) -> list[Tensor]:
    found = norm.running_mean, norm.running_var, norm.num_batches_tracked
    return [buffer for buffer in found if buffer is not None]


def _update(norm: _BatchNorm, momentum: float | None, before: list[Tensor], sums: list[Tensor]) -> None:
    """A norm that no micro batch came to keeps what it had. No host sync."""
    used, count = (sums[2] > 0), sums[2].clamp(min=1)
    tracked = before[2] + used
    part = (1 / tracked.clamp(min=1) if momentum is None else torch.full_like(count, momentum)) * used
    for buffer, old, summed in zip(_buffers(norm), before[:2], sums, strict=False):
        buffer.copy_(old.lerp(summed / count, part.to(old.dtype)))
    _buffers(norm)[2].copy_(tracked)
