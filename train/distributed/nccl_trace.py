"""The collective operations that NCCL has not ended, as torch's flight recorder knows them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import torch

from entrypoint import file_writer

FLIGHT_RECORDER_VARIABLE: Final = "TORCH_FR_DUMP_TEMP_FILE"  # the path of its file, without the rank
NOT_BEGUN: Final = ", not begun"
NEW_BACKEND: Final = "nccl2"  # torch 2.15's own; its recorder is another one


def save_and_describe(rank: int, environ: Mapping[str, str]) -> str:
    """Write the flight recorder's file of this rank (for torch's `torchfrtrace`), and tell its oldest unfinished entry.

    `all_reduce 42 of 80 numbers`, with `, not begun` if this rank's GPU has not reached it. Empty if all have ended. It
    asks neither the GPU nor another rank.
    """
    recorder: Any = torch._C._distributed_c10d
    trace, pickled = json.loads(recorder._dump_nccl_trace_json()), recorder._dump_nccl_trace
    if not trace.get("entries"):
        with suppress(TypeError, AttributeError):  # torch 2.10 has one recorder
            trace = json.loads(recorder._dump_fr_trace_json(backend=NEW_BACKEND))
            pickled = lambda: recorder._dump_fr_trace(backend=NEW_BACKEND)  # noqa: E731
    if path := environ.get(FLIGHT_RECORDER_VARIABLE):
        with suppress(OSError, RuntimeError), file_writer.replace_file(Path(f"{path}{rank}"), durable=False) as file:
            file.write(pickled())
    unfinished = [entry for entry in trace.get("entries", []) if entry["state"] != "completed"]
    return _describe(unfinished[0]) if unfinished else ""


def _describe(entry: Mapping[str, Any]) -> str:
    name, numbers = entry["profiling_name"].rpartition(":")[2], sum(map(math.prod, entry["input_sizes"]))
    begun = "" if entry["state"] == "started" else NOT_BEGUN
    return f"{name} {entry['collective_seq_id']} of {numbers:,} numbers{begun}"
