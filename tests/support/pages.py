"""The commands in the shell blocks of a page of docs/, for the tests that type them as they stand."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One line of a shell block. runs: the block is marked `sh run`. code: with which it says that it ends."""

    text: str
    runs: bool
    code: int

    @property
    def words(self) -> list[str]:
        """The words, without the variables before them."""
        words = shlex.split(self.text)
        return words[len(self.environ) :]

    @property
    def environ(self) -> dict[str, str]:
        match = re.match(r"(?:[A-Z_]+=(?:\"[^\"]*\"|\S*) +)*", self.text)
        return dict(word.split("=", 1) for word in shlex.split(match[0] if match else ""))

    @property
    def train(self) -> list[str]:
        """What `train` is given, wherever in the line it stands; empty where it does not."""
        return self.words[self.words.index("train") + 1 :] if "train" in self.words else []


def commands(page: Path) -> list[Command]:
    """Those of all shell blocks of a page."""
    listed = []
    for mark, block in re.findall(r"^```sh( run)?\n(.*?)^```", page.read_text(), re.S | re.M):
        for line in block.replace("\\\n", " ").splitlines():
            text, _, comment = line.partition("  #")
            code = re.search(r"exit code (\d+)", comment)
            listed.append(Command(text=text.strip(), runs=bool(mark), code=int(code[1]) if code else 0))
    return listed
