"""`collect_stacks` reads the Python stacks and /proc state of a process that hangs."""

from __future__ import annotations

import os
import re
import sysconfig
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from entrypoint.files import process_stat, read_text
from entrypoint.heartbeat import DUMP_SIGNAL, TRACE_PREFIX, TRACE_SIGNAL

DUMP_TIMEOUT_S: Final = 1.0  # for one process to write its stacks
DUMP_QUIET_S: Final = 0.05  # after a possible last line: silence for this long means the dump is complete
PROC_FILES: Final = ("status", "wchan", "stack")  # in /proc/PID; only root can read the last one
# The lines of status that tell why a process is silent.
STATUS_LINE: Final = re.compile(r"^(?:Name|State|PPid|TracerPid|VmRSS|Threads|SigPnd|ShdPnd|SigBlk):.*$", re.M)
_CAUGHT_SIGNALS_LINE: Final = re.compile(r"^SigCgt:\s*([0-9a-f]+)$", re.M)
_FRAME_LINE: Final = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<name>.*)$', re.M)
_THREAD_HEADER: Final = re.compile(r"^(?:Current thread|Thread) 0x.*$", re.M)
# The last line of a complete dump: the main thread's outermost frame, or `...` for a stack that is
# cut off.
_DUMP_END: Final = re.compile(rb"(?: in <module>| in _run_module_as_main|  \.\.\.)\n\Z")
_ANSWER_END: Final = re.compile(rb"\n\Z")
_LIBRARY_FOLDERS: Final = tuple(
    {sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
)
# Files whose code a rank executes while it waits for its data workers or for other ranks.
_DATALOADER_FILE: Final = "torch/utils/data/dataloader.py"
_COMMUNICATION_PATHS: Final = ("torch/distributed/", "torch/autograd/graph.py", "train/distributed/")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStacks:
    """The stacks of a rank's threads and processes.

    state: the letter in /proc. where: FILE:LINE of the main thread. waits: whether it sleeps in a
    collective operation. unfinished: the oldest one of NCCL that has not ended, with `, not begun` if its
    GPU has not reached it; empty if it tells none.
    """

    text: str
    state: str
    where: str | None
    waits: bool
    unfinished: str


def collect_stacks(pid: int, descriptor: int) -> ProcessStacks:
    """Collect the stacks that a rank and its descendants dump into `descriptor`."""
    state = process_state(pid)
    silence = "it is stopped" if state in "Tt" else "it waits in the kernel" if state == "D" else "it does not answer"
    parts, dump = [_read_proc_files(pid)], _request(pid, descriptor, DUMP_SIGNAL, _DUMP_END)
    parts.append(dump or f"no Python stacks of process {pid}: {silence}\n")
    child_dumps = {child: _request(child, descriptor, DUMP_SIGNAL, _DUMP_END) for child in descendant_pids(pid)}
    for child, child_dump in child_dumps.items():
        parts += [f"\n# process {child}, started by it\n", _read_proc_files(child, ("wchan",)), child_dump]
    answer = _request(pid, descriptor, TRACE_SIGNAL, _ANSWER_END).partition(TRACE_PREFIX)[2].strip()
    if answer:
        parts.append(f"\n{TRACE_PREFIX}{answer}\n")
    frame = _data_worker_frame(dump, child_dumps.values()) or innermost_frame(dump)
    return ProcessStacks(
        text="".join(parts),
        state=state,
        where=f"{frame[0]}:{frame[1]}" if frame else None,
        waits=is_in_collective(dump) and state != "R",
        unfinished=answer,
    )


def innermost_frame(dump: str) -> tuple[str, str] | None:
    """File and line of the main thread.

    The innermost frame outside Python and packages, or the innermost of all.
    """
    frames = _main_thread_frames(dump)
    own = [frame for frame in frames if not frame[0].startswith((*_LIBRARY_FOLDERS, "<"))]
    return next(iter(own or frames), None)


def _data_worker_frame(dump: str, workers: Iterable[str]) -> tuple[str, str] | None:
    """File and line of a busy data worker, if the rank waits for one.

    An idle one is in the same file as the rank.
    """
    frame, frames = innermost_frame(dump), _main_thread_frames(dump)
    if frame is None or not any(_DATALOADER_FILE in file for file, _ in frames[: frames.index(frame)]):
        return None
    return next(
        (
            worker_frame
            for worker_frame in map(innermost_frame, workers)
            if worker_frame and worker_frame[0] != frame[0]
        ),
        None,
    )


def is_in_collective(dump: str) -> bool:
    """Whether the main thread is in a collective operation."""
    frames = _main_thread_frames(dump)
    return bool(frames) and any(path in frames[0][0] for path in _COMMUNICATION_PATHS)


def _main_thread_frames(dump: str) -> list[tuple[str, str]]:
    """(file, line) of each frame, innermost first. Python lists the main thread last."""
    main_thread = _THREAD_HEADER.split(dump)[-1]
    return [(match["file"], match["line"]) for match in _FRAME_LINE.finditer(main_thread)]


def process_state(pid: int) -> str:
    """The state letter R, S, D, T, t or Z; `?` for a process that has ended."""
    return next(iter(process_stat("/proc", str(pid))), "?")


def descendant_pids(pid: int) -> list[int]:
    """The ids of all descendants of this process."""
    children: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            children += map(int, read_text(f"/proc/{pid}/task/{thread}/children").split())
    return [descendant for child in children for descendant in (child, *descendant_pids(child))]


def _request(pid: int, descriptor: int, number: int, end: re.Pattern[bytes]) -> str:
    """Signal the process and return what it writes, until that ends as `end` says.

    Empty for a stopped one, which handles no signal, and for one without a handler, which the signal would kill.
    """
    caught = _CAUGHT_SIGNALS_LINE.search(read_text(f"/proc/{pid}/status"))
    if process_state(pid) in "Tt?Z" or caught is None or not int(caught[1], 16) >> (number - 1) & 1:
        return ""
    start = os.fstat(descriptor).st_size
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
    dump, quiet, deadline = b"", 0.0, time.monotonic() + DUMP_TIMEOUT_S
    while time.monotonic() < deadline and (quiet < DUMP_QUIET_S or not end.search(dump)):
        time.sleep(0.01)
        current = os.pread(descriptor, os.fstat(descriptor).st_size - start, start)
        dump, quiet = current, 0.0 if current != dump else quiet + 0.01
    return dump.decode(errors="replace")


def _read_proc_files(pid: int, names: Iterable[str] = PROC_FILES) -> str:
    sections = ""
    for name in names:
        if text := read_text(f"/proc/{pid}/{name}").strip():
            text = "\n".join(STATUS_LINE.findall(text)) if name == "status" else text
            sections += f"# /proc/{pid}/{name}\n{text}\n"
    return sections + "\n"
