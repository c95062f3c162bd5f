"""What torch's profiler counted for each operation becomes a table of the costliest ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch.autograd import DeviceType

HEAD: Final = ("calls", "CPU ms", "GPU ms", "share")
WIDTH: Final = 9  # of a column of numbers
KEPT, WIDE = 50, 120  # rows and columns of the file


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one operation, all its calls together and without the operations that it calls: milliseconds."""

    name: str
    calls: int
    cpu_ms: float
    gpu_ms: float


def costliest(costs: Iterable[Cost], *, on_gpu: bool) -> list[Cost]:
    """The same, those that a run waits for longest first: the GPU's time counts where there is one."""
    return sorted(costs, key=lambda cost: (-cost.gpu_ms if on_gpu else 0.0, -cost.cpu_ms, cost.name))


def table(costs: Sequence[Cost], *, total_ms: float, on_gpu: bool, most: int, width: int, what: str) -> str:
    """The first `most` of them, one a line of at most `width` letters, with each one's share of `total_ms`."""
    heads = [head for head in HEAD if on_gpu or head != "GPU ms"]
    names = width - WIDTH * len(heads)
    lines = [what.ljust(names) + "".join(head.rjust(WIDTH) for head in heads)]
    for cost in costs[:most]:
        share = (cost.gpu_ms if on_gpu else cost.cpu_ms) / total_ms if total_ms > 0 else 0.0
        cells = [f"{cost.calls:,}", f"{cost.cpu_ms:,.1f}", *([f"{cost.gpu_ms:,.1f}"] if on_gpu else []), f"{share:.1%}"]
        lines.append(_short(cost.name, names).ljust(names) + "".join(cell.rjust(WIDTH) for cell in cells))
    return "\n".join(lines)


def _short(name: str, width: int) -> str:
    """With a space behind it. Names come from the user's code too: what is no letter is left out."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in name)
    return plain if len(plain) < width else f"{plain[: width - 2]}…"


class Costs:
    """What torch's profiler counted. On a GPU each kernel counts for the operation that has started it."""

    def __init__(self, events: Sequence[Any], *, on_gpu: bool) -> None:
        on_cpu = [event for event in events if event.device_type == DeviceType.CPU]
        kernels = [event for event in events if event.device_type != DeviceType.CPU and not event.is_user_annotation]
        self._kernels = [_cost(event) for event in kernels]
        self._on_gpu = any(kernel.gpu_ms for kernel in self._kernels)
        self._blind = on_gpu and not self._on_gpu
        self._costs = costliest(map(_cost, on_cpu), on_gpu=self._on_gpu)
        gpu_ms, cpu_ms = sum(one.gpu_ms for one in self._kernels), sum(one.cpu_ms for one in self._costs)
        self._total_ms = gpu_ms if self._on_gpu else cpu_ms

    def table(self, *, most: int, width: int) -> str:
        """The costliest operations."""
        note = "\nnote: the driver lets nobody see what the GPU does: these are the CPU's times" if self._blind else ""
        return self._table(self._costs, "operation", most=most, width=width) + note

    def as_text(self) -> str:
        """The same at more length; on a GPU with its kernels, which a compiled model has without operations."""
        text = self.table(most=KEPT, width=WIDE)
        if not self._on_gpu:
            return text
        kernels = costliest(self._kernels, on_gpu=True)
        return f"{text}\n\n{self._table(kernels, 'kernel on the GPU', most=KEPT, width=WIDE)}"

    def _table(self, costs: Sequence[Cost], what: str, *, most: int, width: int) -> str:
        total, on_gpu = self._total_ms, self._on_gpu
        return table(costs, total_ms=total, on_gpu=on_gpu, most=most, width=width, what=what)


def _cost(event: Any) -> Cost:
    cpu_ms, gpu_ms = event.self_cpu_time_total / 1000, event.self_device_time_total / 1000
    return Cost(name=event.key, calls=event.count, cpu_ms=cpu_ms, gpu_ms=gpu_ms)
