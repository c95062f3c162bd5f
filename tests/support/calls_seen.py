"""What a process and its children asked of the kernel, seen by strace: the files they changed, where they listened."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CHANGES = (
    *("openat", "open", "creat", "truncate", "mkdir", "mkdirat", "rmdir", "unlink", "unlinkat", "rename", "renameat"),
    *(
        "renameat2",
        "link",
        "linkat",
        "symlink",
        "symlinkat",
        "mknod",
        "mknodat",
        "chmod",
        "fchmodat",
        "chown",
        "utimensat",
    ),
)
_CALL = re.compile(r"^\d+ +(?:\[pid +\d+\] )?(?P<name>\w+)\((?P<arguments>.*)\) += \d+")
_PATH = re.compile(r'(?:(?:AT_FDCWD|\d+)<(?P<folder>[^>]*)>, )?"(?P<name>(?:[^"\\]|\\.)*)"')
_PLACE = re.compile(r'sin6?_addr=inet_addr\("([^"]*)"\)|inet_pton\(AF_INET6, "([^"]*)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The exit code, the output, and the calls that succeeded: their names and arguments."""

    code: int
    said: str
    calls: Sequence[tuple[str, str]]

    def changed(self, cwd: Path) -> set[Path]:
        """The files and folders that were made, opened for writing, renamed or removed; as far as they have names."""
        return {path for name, arguments in self.calls for path in _changed(name, arguments, cwd)}

    def bound(self) -> set[str]:
        """The addresses, of internet sockets only, that sockets were bound to."""
        binds = [arguments for name, arguments in self.calls if name == "bind" and "AF_INET" in arguments]
        return {next(filter(None, found.groups())) for found in map(_PLACE.search, binds) if found}


def watched(command: Sequence[str], *, cwd: Path, environ: Mapping[str, str], record: Path, seconds: float) -> Seen:
    """Run `command` to its end under strace."""
    # --seccomp-bpf: only these calls stop the process; everything else runs at full speed.
    options = ("-f", "--seccomp-bpf", "-qq", "-y", "-s", "4096", "-e", f"trace={','.join(CHANGES)},bind")
    strace = ["strace", *options, "-e", "status=successful", "-o", str(record), *command]
    done = subprocess.run(strace, capture_output=True, text=True, cwd=cwd, env=dict(environ), timeout=seconds)
    found = (_CALL.match(line) for line in record.read_text(errors="replace").splitlines())
    calls = [(match["name"], match["arguments"]) for match in found if match]
    return Seen(code=done.returncode, said=done.stdout + done.stderr, calls=calls)


def between(
    command: Sequence[str], mark: str, *, cwd: Path, environ: Mapping[str, str], seconds: float
) -> list[list[str]]:
    """Run `command` under strace: the calls that name a path, by the thread that writes to the file `mark`, between
    each two of its writes."""
    record = cwd / "strace.txt"
    options = ("-f", "--seccomp-bpf", "-qq", "-y", "-e", "trace=%file,write", "-o", str(record))
    subprocess.run(["strace", *options, *command], capture_output=True, cwd=cwd, env=dict(environ), timeout=seconds)
    lines = [line.split(maxsplit=1) for line in record.read_text(errors="replace").splitlines()]
    marks = [(thread, said) for thread, said in lines if re.match(rf"write\(\d+<[^>]*{re.escape(mark)}>", said)]
    mine = [said for thread, said in lines if marks and thread == marks[0][0]]
    places = [at for at, said in enumerate(mine) if said in {said for _, said in marks}]
    return [
        # A call that another thread's interrupts is told in two halves.
        [said for said in mine[first + 1 : last] if not said.startswith(("write(", "<... "))]
        for first, last in itertools.pairwise(places)
    ]


def _changed(name: str, arguments: str, cwd: Path) -> Iterator[Path]:
    if name == "bind" or "O_TMPFILE" in arguments:  # a file without a name, to find out whether a place can be written
        return
    if name in ("open", "openat") and not re.search(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC", arguments):
        return
    for found in _PATH.finditer(arguments):
        yield Path(found["folder"] or cwd) / found["name"]
