"""The parser expands Slurm's compressed host lists and task counts.

`rack[1-2]n[03,07-09]-ib` is expanded to host names, `4(x2),1` to counts. Source of the grammar:
slurm's `hostlist(3)` and the SLURM_TASKS_PER_NODE entry of `sbatch(1)`.
"""

from __future__ import annotations

import re
from itertools import product

from entrypoint.errors import ExitCode, Failure

MAX_NAMES = 65_536  # Slurm's own default limit on one list (MAX_SLURM_NODES); guards against `n[0-99999999]`
_ITEM = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_PART = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_COUNT = re.compile(r"(\d{1,18})(?:\(x(\d{1,18})\))?", re.ASCII)
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?", re.ASCII)


def expand_hosts(text: str, variable: str) -> tuple[str, ...]:
    """Host names in Slurm's order; `variable` names the source in errors.

    Raises:
        Failure: LAUNCH_CONFLICT, for text outside the grammar or more than MAX_NAMES names.
    """
    items = _ITEM.findall(text.strip())
    if not items or ",".join(items) != text.strip():
        raise _unreadable_failure(text, variable, "names such as n1,rack[1-2]n[03,07-09]-ib")
    names: list[str] = []
    for item in items:
        names += _expand_item(item, text, variable)
        if len(names) > MAX_NAMES:
            raise _unreadable_failure(text, variable, f"at most {MAX_NAMES} names")
    return tuple(names)


def expand_counts(text: str, variable: str) -> tuple[int, ...]:
    """Counts in node order: `2(x3),1` is (2, 2, 2, 1).

    Raises:
        Failure: LAUNCH_CONFLICT, for text outside the grammar.
    """
    matches = [_COUNT.fullmatch(item) for item in text.strip().split(",")]
    pairs = [(int(m[1]), int(m[2] or 1)) for m in matches if m]
    if len(pairs) != len(matches) or sum(repeat for _, repeat in pairs) > MAX_NAMES:
        raise _unreadable_failure(text, variable, "counts such as 4(x2),1")
    return tuple(count for count, repeat in pairs for _ in range(repeat))


def _expand_item(item: str, text: str, variable: str) -> list[str]:
    alternatives: list[list[str]] = []
    total = 1
    for bracket, plain in _PART.findall(item):
        alternatives.append([plain] if plain else _expand_bracket(bracket, text, variable))
        total *= len(alternatives[-1])
    if total > MAX_NAMES:
        raise _unreadable_failure(text, variable, f"at most {MAX_NAMES} names")
    return ["".join(combination) for combination in product(*alternatives)]


def _expand_bracket(bracket: str, text: str, variable: str) -> list[str]:
    numbers: list[str] = []
    for range_text in bracket.split(","):
        match = _RANGE.fullmatch(range_text)
        if not match:
            raise _unreadable_failure(text, variable, "numbers or ranges such as [03,07-09] in brackets")
        first, last = match[1], match[2] or match[1]
        if not 0 <= int(last) - int(first) < MAX_NAMES:
            raise _unreadable_failure(text, variable, f"a rising range of at most {MAX_NAMES}")
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return numbers


def _unreadable_failure(text: str, variable: str, expected: str) -> Failure:
    return Failure(
        f"{variable} cannot be read",
        found=f"{variable}={text[:200]}",
        expected=expected,
        fix=f"do not set {variable} by hand; start the program with srun",
        code=ExitCode.LAUNCH_CONFLICT,
    )
