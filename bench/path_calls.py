"""This module counts the system calls of a program's main thread that name a path, with strace."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.processes import run_to_end
from entrypoint import ExitCode, Failure

LIMIT_S: Final = 300.0
RESUMED: Final = " resumed>"  # the second half of a call that was interrupted by a call of another thread
SUCCEEDED: Final = re.compile(r"\) += 0$")  # strace aligns results of short lines
STARTED: Final = re.compile(r"^(\d+) +execve\(.*(\) = 0|<unfinished \.\.\.>)$")


def find_strace(environ: Mapping[str, str]) -> str | None:
    """The path of strace, if it is installed."""
    return shutil.which("strace", path=environ.get("PATH"))


def count_path_calls(
    strace: str, words: Sequence[str], environ: Mapping[str, str], folder: Path, *, mark: str | None = None
) -> int:
    """How many calls that name a path the main thread of `words` makes, or of its child whose words contain `mark`.

    Raises:
        Failure: PEER, if the program fails or hangs, or must not be traced.
    """
    trace = folder / "strace.txt"
    # --seccomp-bpf: only these calls stop the program.
    traced = [strace, "-f", "--seccomp-bpf", "-qq", "-s", "512", "-e", "trace=%file", "-e", "signal=none"]
    run_to_end([*traced, "-o", str(trace), *words], environ, folder, LIMIT_S)
    count = count_lines(trace.read_text(errors="replace").splitlines(), mark)
    if not count:  # its own start is one call
        fix = "measure again: python -m bench input"
        raise Failure(f"strace did not see {mark or words[0]} start", fix=fix, code=ExitCode.PEER)
    return count


def count_lines(lines: Sequence[str], mark: str | None) -> int:
    """Count the calls of the thread that became the program with `mark`; without a mark, of the first thread."""
    first = _find_thread(lines, mark)
    return sum(line.partition(" ")[0] == first for line in lines if first and RESUMED not in line)


def _find_thread(lines: Sequence[str], mark: str | None) -> str | None:
    """The first thread whose start succeeds, at once or when it resumes after a call of another thread."""
    interrupted = set[str]()
    for line in lines:
        thread, _, rest = line.partition(" ")
        if (mark is None or mark in line) and (start := STARTED.match(line)):
            if start[2] == ") = 0":
                return thread
            interrupted.add(thread)
        elif thread in interrupted and rest.lstrip().startswith(f"<... execve{RESUMED}"):
            if SUCCEEDED.search(rest):
                return thread
            interrupted.discard(thread)
    return None
