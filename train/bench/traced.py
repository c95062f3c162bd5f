"""The path system calls of a program's main thread, counted by strace."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from entrypoint import ExitCode, Failure
from train.bench import once

LONGEST_S: Final = 300.0
RESUMED: Final = " resumed>"  # the second half of a call that another thread's has interrupted
STARTED: Final = re.compile(r"^(\d+) +execve\(.*(\) = 0|<unfinished \.\.\.>)$")


def strace(environ: Mapping[str, str]) -> str | None:
    """Where it is, if it is here."""
    return shutil.which("strace", path=environ.get("PATH"))


def calls(
    program: str, words: Sequence[str], environ: Mapping[str, str], folder: Path, *, mark: str | None = None
) -> int:
    """How many calls that name a path the main thread of `words` makes, or of its process whose words hold `mark`.

    Raises:
        Failure: PEER, where the program fails or hangs, or where it may not be watched.
    """
    record = folder / "strace.txt"
    # --seccomp-bpf: only these calls stop the program.
    watched = [program, "-f", "--seccomp-bpf", "-qq", "-s", "512", "-e", "trace=%file", "-e", "signal=none"]
    watched += ["-o", str(record), *words]
    once.done(watched, environ, folder, LONGEST_S)
    found = counted(record.read_text(errors="replace").splitlines(), mark)
    if not found:  # its own start is one
        name = mark or words[0]
        raise Failure(f"strace did not see {name} start", fix="measure again: train bench input", code=ExitCode.PEER)
    return found


def counted(lines: Sequence[str], mark: str | None) -> int:
    """Lines of the thread that became the program with `mark`; without one, of the first."""
    first = _thread(lines, mark)
    return sum(line.partition(" ")[0] == first for line in lines if first and RESUMED not in line)


def _thread(lines: Sequence[str], mark: str | None) -> str | None:
    """The first with such a start that succeeds, at once or once it goes on after another thread's call."""
    torn = set[str]()
    for line in lines:
        thread, _, rest = line.partition(" ")
        if (mark is None or mark in line) and (start := STARTED.match(line)):
            if start[2] == ") = 0":
                return thread
            torn.add(thread)
        elif thread in torn and rest.lstrip().startswith(f"<... execve{RESUMED}"):
            if rest.endswith(") = 0"):
                return thread
            torn.discard(thread)
    return None
