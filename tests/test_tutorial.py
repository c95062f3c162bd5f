"""docs/tutorial: five short pages whose commands are typed here as they stand, or at least read."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from processes import python

from train.__main__ import build_parser
from train.config import load

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "tutorial").glob("*.md"))
SHORT = "train.max_steps=20"  # what a page's training is given on top, so that it takes seconds


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
        found = re.match(r"(?:[A-Z_]+=(?:\"[^\"]*\"|\S*) +)*", self.text)
        return dict(word.split("=", 1) for word in shlex.split(found[0] if found else ""))

    @property
    def train(self) -> list[str]:
        """What `train` is given, wherever in the line it stands; empty where it does not."""
        return self.words[self.words.index("train") + 1 :] if "train" in self.words else []


def commands(page: Path) -> list[Command]:
    """Those of all shell blocks of a page."""
    found = []
    for mark, block in re.findall(r"^```sh( run)?\n(.*?)^```", page.read_text(), re.S | re.M):
        for line in block.replace("\\\n", " ").splitlines():
            text, _, comment = line.partition("  #")
            code = re.search(r"exit code (\d+)", comment)
            found.append(Command(text=text.strip(), runs=bool(mark), code=int(code[1]) if code else 0))
    return found


RUN = {page: [command for command in commands(page) if command.runs] for page in PAGES}
READ = [command for page in PAGES for command in commands(page) if not command.runs]
# `section.key=value` in the text of the pages.
QUOTED = [text for page in PAGES for code in re.findall(r"`([^`\n]+)`", page.read_text()) for text in code.split()]
SETTINGS = sorted({text for text in QUOTED if re.fullmatch(r"(?:data|train|optim|model|eval|run)\.[a-z_]+=\S+", text)})


def shortened(command: Command) -> list[str]:
    """The program's module and its words; a training ends after a few steps."""
    program, *words = command.words
    trains = program == "train" and words[0].startswith("--") and "train.max_steps" not in command.text
    return ["-m", program, *words, *([SHORT] if trains else [])]


def name_of(page: Path) -> str:
    return page.stem


def test_there_are_five_pages_that_lead_to_each_other() -> None:
    assert [page.name[:2] for page in PAGES] == ["01", "02", "03", "04", "05"]
    assert all(f"]({after.name})" in before.read_text() for before, after in pairwise(PAGES))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_is_short(page: Path) -> None:
    assert len(page.read_text().splitlines()) <= 100


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_its_commands_end_as_the_page_says(page: Path, tmp_path: Path) -> None:
    for name in ("docs", "configs"):
        (tmp_path / name).symlink_to(ROOT / name)
    assert len(RUN[page]) >= 3 or page.stem.startswith("04")
    for command in RUN[page]:
        ended = python(*shortened(command), environ=command.environ, cwd=tmp_path)
        said = f"{command.text}\n{ended.stdout}{ended.stderr}"
        assert ended.returncode == command.code, said
        assert "Traceback" not in said


@pytest.mark.parametrize("command", READ, ids=lambda command: command.text[:60])
def test_a_command_that_is_not_run_is_one_that_there_is(command: Command) -> None:
    program = command.words[0]
    assert program in ("train", "srun") or (ROOT / program).is_file()
    for word in command.words:
        assert not word.startswith("configs/") or (ROOT / word).is_file(), word


@pytest.mark.parametrize("command", [one for one in READ if one.train], ids=lambda command: command.text[:60])
def test_what_it_asks_of_train_is_understood(command: Command) -> None:
    asked = build_parser().parse_intermixed_args(command.train)
    config = str(ROOT / asked.config) if asked.config and "/" in asked.config else None
    assert load.load_config(config, [word for word in asked.words if "=" in word])
    if asked.words[:1] == ["bench"]:
        assert (ROOT / "train" / "bench" / f"{asked.words[1]}.py").is_file()


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_that_a_page_names_is_one_that_there_is(setting: str) -> None:
    assert load.load_config(None, [setting])


def test_settings_of_the_exercises_are_among_them() -> None:
    assert {"optim.name=RMSprop", "data.workers=0", "train.reproducible=bitwise"} <= set(SETTINGS)
