"""`collect_stacks` gets a silent process's Python stacks and /proc state without its help."""

from __future__ import annotations

import os
import re
import sysconfig
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from entrypoint.heartbeat import DUMP_SIGNAL

DUMP_TIMEOUT_S: Final = 1.0  # for one process to write its stacks
DUMP_QUIET_S: Final = 0.05  # without another byte behind what may be the last line, they are whole
PROC_FILES: Final = ("status", "wchan", "stack")  # of /proc/PID; the last one is root's
# Of sixty lines in status, those that tell why a process is silent.
STATUS_LINE: Final = re.compile(r"^(?:Name|State|PPid|TracerPid|VmRSS|Threads|SigPnd|ShdPnd|SigBlk):.*$", re.M)
_FRAME_LINE: Final = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<name>.*)$', re.M)
_THREAD_HEADER: Final = re.compile(r"^(?:Current thread|Thread) 0x.*$", re.M)
# The last line of a whole dump: where the main thread began, or that it stands too deep to be shown.
_DUMP_END: Final = re.compile(rb"(?: in <module>| in _run_module_as_main|  \.\.\.)\n\Z")
_LIBRARY_FOLDERS: Final = tuple(
    {sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
)
# Where Python stands while a rank waits for others.
_DATALOADER_FILE: Final = "torch/utils/data/dataloader.py"
_COMMUNICATION_PATHS: Final = ("torch/distributed/", "torch/autograd/graph.py", "train/distributed/")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStacks:
    """state: the letter in /proc. where: FILE:LINE of the main thread. waits: it sleeps in an exchange with others."""

    text: str
    state: str
    where: str | None
    waits: bool


def collect_stacks(pid: int, descriptor: int) -> ProcessStacks:
    """The stacks of a rank and of its data workers, which dump them into `descriptor`."""
    state = process_state(pid)
    parts, dump = [_read_proc_files(pid)], _request_dump(pid, descriptor)
    parts.append(dump or f"no Python stacks of process {pid}: {_describe_silence(state)}\n")
    below = {child: _request_dump(child, descriptor) for child in descendant_pids(pid)}
    for child, its in below.items():
        parts += [f"\n# process {child}, started by it\n", _read_proc_files(child, ("wchan",)), its]
    frame = _data_worker_frame(dump, below.values()) or innermost_frame(dump)
    where = f"{frame[0]}:{frame[1]}" if frame else None
    return ProcessStacks(text="".join(parts), state=state, where=where, waits=is_in_collective(dump) and state != "R")


def innermost_frame(dump: str) -> tuple[str, str] | None:
    """File and line of the main thread: the deepest that is not Python's own or a package's, else the deepest."""
    frames = _main_thread_frames(dump)
    own = [frame for frame in frames if not frame[0].startswith((*_LIBRARY_FOLDERS, "<"))]
    return next(iter(own or frames), None)


def _data_worker_frame(dump: str, workers: Iterable[str]) -> tuple[str, str] | None:
    """Where a data worker stands that the rank waits for. An idle one was forked where the rank stands."""
    frame, above = innermost_frame(dump), _main_thread_frames(dump)
    if frame is None or not any(_DATALOADER_FILE in file for file, _ in above[: above.index(frame)]):
        return None
    return next((at for at in map(innermost_frame, workers) if at and at[0] != frame[0]), None)


def is_in_collective(dump: str) -> bool:
    """Whether the main thread stands in an exchange with other ranks."""
    frames = _main_thread_frames(dump)
    return bool(frames) and any(place in frames[0][0] for place in _COMMUNICATION_PATHS)


def _main_thread_frames(dump: str) -> list[tuple[str, str]]:
    """Deepest first. Python lists the main thread last."""
    last = _THREAD_HEADER.split(dump)[-1]
    return [(found["file"], found["line"]) for found in _FRAME_LINE.finditer(last)]


def process_state(pid: int) -> str:
    """R, S, D, T, t, Z; `?` for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "?"


def descendant_pids(pid: int) -> list[int]:
    """All processes below this one."""
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                found += [int(word) for word in Path(f"/proc/{pid}/task/{thread}/children").read_text().split()]
    return [below for child in found for below in (child, *descendant_pids(child))]


def handles_dump_signal(pid: int) -> bool:
    """Whether the process has a handler for DUMP: without one it would die of it."""
    with suppress(OSError, ValueError, IndexError):
        status = Path(f"/proc/{pid}/status").read_text()
        return bool(int(status.split("SigCgt:")[1].split()[0], 16) >> (DUMP_SIGNAL - 1) & 1)
    return False


def _request_dump(pid: int, descriptor: int) -> str:
    """What the process writes when it is asked; nothing from one that is stopped, which no signal reaches."""
    if process_state(pid) in "Tt?Z" or not handles_dump_signal(pid):
        return ""
    begun = os.fstat(descriptor).st_size
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, DUMP_SIGNAL)
    said, quiet, deadline = b"", 0.0, time.monotonic() + DUMP_TIMEOUT_S
    while time.monotonic() < deadline and (quiet < DUMP_QUIET_S or not _DUMP_END.search(said)):
        time.sleep(0.01)
        now = os.pread(descriptor, os.fstat(descriptor).st_size - begun, begun)
        said, quiet = now, 0.0 if now != said else quiet + 0.01
    return said.decode(errors="replace")


def _read_proc_files(pid: int, names: Iterable[str] = PROC_FILES) -> str:
    told = ""
    for name in names:
        with suppress(OSError):
            text = Path(f"/proc/{pid}/{name}").read_text(errors="replace").strip()
            text = "\n".join(STATUS_LINE.findall(text)) if name == "status" else text
            told += f"# /proc/{pid}/{name}\n{text}\n"
    return told + "\n"


def _describe_silence(state: str) -> str:
    return "it is stopped" if state in "Tt" else "it waits in the kernel" if state == "D" else "it does not answer"
