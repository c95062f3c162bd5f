"""What single ranks notice (a signal, the clock) becomes a decision that all ranks take at the same step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """stop: save and leave; save: take a checkpoint and go on; written: the step whose checkpoint is not written on
    any more, be it committed or failed (0: none)."""

    stop: bool = False
    save: bool = False
    written: int = 0


class Agreement:
    """Flags are sent off before a step and read after it, so that the exchange costs the step no time.

    Any rank's wish counts. Alone, a rank decides at once.
    """

    def __init__(self, group: dist.ProcessGroup | None, wishes: Callable[[], Decision]) -> None:
        """wishes: what this rank alone would do now."""
        self._group, self._wishes = group, wishes
        self._sent: tuple[dist.Work, Tensor] | None = None

    def propose(self) -> None:
        """Send this rank's wishes off. All ranks call it, then `decided`, once per step."""
        if self._group is not None:
            decision = self._wishes()
            flags = torch.tensor([decision.stop, decision.save, decision.written])
            work = dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
            assert work is not None  # every member of the group gets one
            self._sent = (work, flags)

    def decided(self) -> Decision:
        """What all ranks' last proposals came to; what this rank wishes now where there is one."""
        if self._group is None:
            return self._wishes()
        if self._sent is None:
            return Decision()
        work, flags = self._sent
        self._sent = None
        work.wait()
        stop, save, written = flags.tolist()
        return Decision(stop=bool(stop), save=bool(save), written=written)
