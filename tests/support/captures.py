"""Captures are environments that processes of a real cluster found; tests/environs holds one file for each release.

A file lists the situations, and under each the processes. What all processes of a situation found stands once, at the
situation; a process lists the rest:

    [per-node]
    # where the capture comes from: the tool and the release
    $ the command that made the situation
    SLURM_JOB_ID=3
    [per-node/task-0@node01]
    SLURM_PROCID=0

`captures.py FILE NAME ORIGIN COMMAND FOLDER` writes a situation into a file, from FOLDER/PROCESS.env: what
tests/cluster/capture does after each.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

ENVIRONS = Path(__file__).parents[1] / "environs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What one command made on the cluster: the environment of each process, named KIND-RANK@NODE."""

    origin: str
    command: str
    environs: dict[str, dict[str, str]]


def _parse(lines: Iterable[str]) -> dict[str, str]:
    return dict(line.split("=", 1) for line in sorted(lines) if "=" in line)


def read_situations(path: Path) -> dict[str, Situation]:
    """Name -> situation, in the order of the file."""
    situations: dict[str, Situation] = {}
    for section in re.split(r"^\[", path.read_text(), flags=re.MULTILINE)[1:]:
        header, *lines = section.splitlines()
        name, _, process = header.removesuffix("]").partition("/")
        if not process:
            origin, command, *common = lines
            situations[name] = Situation(origin=origin[2:], command=command[2:], environs={})
        else:
            situations[name].environs[process] = _parse(common + lines)
    return situations


def write_situations(path: Path, situations: Mapping[str, Situation]) -> None:
    """The file that read_situations reads, situations by name."""
    lines = []
    for name, situation in sorted(situations.items()):
        common = set.intersection(*(set(environ.items()) for environ in situation.environs.values()))
        lines += [f"[{name}]", f"# {situation.origin}", f"$ {situation.command}"]
        lines += sorted(f"{variable}={value}" for variable, value in common)
        for process, environ in sorted(situation.environs.items()):
            rest = sorted(f"{variable}={value}" for variable, value in environ.items() - common)
            lines += [f"[{name}/{process}]", *rest]
        lines.append("")
    path.write_text("\n".join(lines).rstrip("\n") + "\n")


@functools.cache
def read_captures() -> dict[str, dict[str, str]]:
    """Every captured environment by its name, such as slurm-26.05/per-gpu/task-0@node01."""
    return {
        f"{path.stem}/{name}/{process}": environ
        for path in sorted(ENVIRONS.glob("*.txt"))
        for name, situation in read_situations(path).items()
        for process, environ in situation.environs.items()
    }


def main(path: str, name: str, origin: str, command: str, folder: str) -> None:
    """Write one situation into the file of its release, and keep the others."""
    file = Path(path)
    environs = {each.stem: _parse(each.read_text().splitlines()) for each in Path(folder).glob("*.env")}
    situations = read_situations(file) if file.exists() else {}
    situations[name] = Situation(origin=origin, command=command, environs=environs)
    write_situations(file, situations)


if __name__ == "__main__":
    main(*sys.argv[1:])
