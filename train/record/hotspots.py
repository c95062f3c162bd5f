"""What a profiler counted for each operation becomes a table of the costliest ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

HEAD: Final = ("calls", "CPU ms", "GPU ms", "share")
WIDTH: Final = 9  # of a column of numbers


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
