"""This module writes what torch's profiler has recorded, as a table and as a timeline."""

from __future__ import annotations

import gzip
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from torch.autograd import DeviceType
from torch.profiler import profile

from entrypoint import file_writer, join_lines

COLUMN_HEADERS: Final = ("calls", "CPU ms", "GPU ms", "share")
COLUMN_WIDTH: Final = 9  # of a column of numbers
FILE_ROWS, FILE_COLUMNS = 50, 120
CONSOLE_ROWS, CONSOLE_COLUMNS = 10, 79
NOT_SEEN_NOTE: Final = "note: the driver lets nobody see what the GPU does: these are the CPU's times"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationCost:
    """Of one operation, all its calls together and without the operations that it calls: milliseconds."""

    name: str
    calls: int
    cpu_ms: float
    gpu_ms: float


def format_cost_table(
    costs: Iterable[OperationCost], *, total_ms: float, on_gpu: bool, most: int, width: int, what: str
) -> str:
    """The costliest, at most `most`, one a line of at most `width` letters, with each one's share of `total_ms`.

    They are those that a run waits for longest: the GPU's time counts where there is one.
    """
    ordered = sorted(costs, key=lambda cost: (-cost.gpu_ms if on_gpu else 0.0, -cost.cpu_ms, cost.name))
    heads = [head for head in COLUMN_HEADERS if on_gpu or head != "GPU ms"]
    names = width - COLUMN_WIDTH * len(heads)
    lines = [what.ljust(names) + "".join(head.rjust(COLUMN_WIDTH) for head in heads)]
    for cost in ordered[:most]:
        share = (cost.gpu_ms if on_gpu else cost.cpu_ms) / total_ms if total_ms > 0 else 0.0
        cells = [f"{cost.calls:,}", f"{cost.cpu_ms:,.1f}", *([f"{cost.gpu_ms:,.1f}"] if on_gpu else []), f"{share:.1%}"]
        lines.append(_shorten_name(cost.name, names).ljust(names) + "".join(cell.rjust(COLUMN_WIDTH) for cell in cells))
    return join_lines(lines)


def _shorten_name(name: str, width: int) -> str:
    """With a space behind it. Names come from the user's code too: what is no letter is left out."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in name)
    return plain if len(plain) < width else f"{plain[: width - 2]}…"


def describe_costs(events: Iterable[Any], *, on_gpu: bool) -> tuple[str, str]:
    """What torch's profiler counted: the costliest operations for the console, and more of them for a file.

    On a GPU each kernel counts for the operation that has started it. The file lists the kernels too, since a compiled
    model has kernels without operations.
    """
    operations, kernels = list[OperationCost](), list[OperationCost]()
    for event in events:
        if event.device_type == DeviceType.CPU:
            operations.append(_operation_cost(event))
        elif not event.is_user_annotation:
            kernels.append(_operation_cost(event))
    gpu_ms, cpu_ms = sum(kernel.gpu_ms for kernel in kernels), sum(operation.cpu_ms for operation in operations)
    sees_gpu = any(kernel.gpu_ms for kernel in kernels)
    table = partial(format_cost_table, total_ms=gpu_ms if sees_gpu else cpu_ms, on_gpu=sees_gpu)
    console = [table(operations, what="operation", most=CONSOLE_ROWS, width=CONSOLE_COLUMNS)]
    text = [table(operations, what="operation", most=FILE_ROWS, width=FILE_COLUMNS)]
    if sees_gpu:
        text += ["", table(kernels, what="kernel on the GPU", most=FILE_ROWS, width=FILE_COLUMNS)]
    elif on_gpu:
        console.append(NOT_SEEN_NOTE)
        text.append(NOT_SEEN_NOTE)
    return join_lines(console), join_lines(text)


def _operation_cost(event: Any) -> OperationCost:
    cpu_ms, gpu_ms = event.self_cpu_time_total / 1000, event.self_device_time_total / 1000
    return OperationCost(name=event.key, calls=event.count, cpu_ms=cpu_ms, gpu_ms=gpu_ms)


TIMELINE_END_BYTES: Final = 64  # they hold the end of a complete timeline


def write_timeline(recording: profile, path: Path) -> None:
    """The profiler's own JSON, packed. It writes to a path only, and tells nobody of a full disk.

    Raises:
        OSError: it cannot be written, or was not written whole.
    """
    with tempfile.TemporaryDirectory(prefix=file_writer.TEMPORARY_PREFIX, dir=path.parent) as scratch:
        plain = Path(scratch) / "timeline.json"
        recording.export_chrome_trace(str(plain))
        with plain.open("rb") as source:
            source.seek(max(0, plain.stat().st_size - TIMELINE_END_BYTES))
            if not source.read().rstrip().endswith(b"}"):
                raise OSError(f"{path.name} was not written whole")
            source.seek(0)
            with file_writer.replace_file(path) as stream, gzip.open(stream, "wb", compresslevel=6) as target:
                shutil.copyfileobj(source, target)
