"""Valid files and environments, changed at random: whatever comes of it, the program answers in its own words."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

from bad.case import MARK, Case, through_entrypoint, through_train
from captures import read_captures
from machines import REPOSITORY

TOKENS = (
    *(
        "",
        " ",
        "\t",
        "\n",
        "\r\n",
        "\0",
        "\x1b[2J",
        "\ufeff",
        "\ud800",
        "ü",
        "0",
        "-1",
        "1e999",
        "9" * 400,
        ".nan",
        "null",
    ),
    *(
        "~",
        "true",
        "no",
        "[",
        "]",
        "{",
        "}",
        ":",
        ": ",
        "- ",
        "#",
        "&a ",
        "*a",
        "!!python/name:os.system ",
        "'",
        '"',
        "|",
    ),
    *("$(touch executed)", "../..", "/dev/zero", "n[0-99]", "4(x9)", "a:b", "[[[[[[", "=", ",", "%", "@", "\u0661"),
)


def mutated(text: str, draw: random.Random) -> str:
    """`text` with one to four pieces put in, taken out, or said twice."""
    for _ in range(draw.randint(1, 4)):
        at, end = sorted((draw.randint(0, len(text)), draw.randint(0, len(text))))
        end = min(end, at + 12)
        piece = draw.choice((draw.choice(TOKENS), "", text[at:end] * 2))
        text = text[:at] + piece + text[end if draw.random() < 0.5 else at :]
    return text


def cases(seed: int, number: int) -> Iterator[Case]:
    """So many files for `train check`, and as many environments for `entrypoint show`."""
    draw = random.Random(seed)
    files = sorted((REPOSITORY / "configs").glob("*.yaml"))
    environs = list(read_captures().values())
    for count in range(number):
        text = mutated(draw.choice(files).read_text(), draw).encode("utf-8", "surrogatepass")
        yield _case(f"file-{seed}-{count}", config=text, door=through_train)
        yield _case(f"environ-{seed}-{count}", environ=_environ(draw.choice(environs), draw), door=through_entrypoint)


def _environ(captured: Mapping[str, str], draw: random.Random) -> dict[str, str]:
    """Some of the launcher's variables changed. What no environment can hold is left out."""
    environ = {name: value for name, value in captured.items() if name.startswith(("SLURM", "PMI", "OMPI"))}
    for name in draw.sample(sorted(environ), min(3, len(environ))):
        environ[name] = mutated(environ[name], draw).replace("\0", "").replace("\ud800", "")
    return environ


def _case(name: str, **what: object) -> Case:
    line = ("show", "--device", "cpu") if what["door"] is through_entrypoint else ("check",)
    return Case(id=name, code=0, says=(), fix="", line=line, **what)  # type: ignore[arg-type]


def stumbled(code: int, text: str, written: tuple[str, ...]) -> bool:
    """Whether this was no answer: a traceback, a bug's code, something written or run."""
    return code == 70 or "Traceback" in text or bool(written) or MARK in written
