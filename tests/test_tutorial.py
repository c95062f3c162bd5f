"""docs/tutorial: five short pages whose commands are typed here as they stand, or at least read."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from pages import Command, commands
from processes import python

from train.__main__ import build_parser
from train.config import load

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "tutorial").glob("*.md"))
SHORT = "train.max_steps=20"  # what a page's training is given on top, so that it takes seconds


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
        assert (ROOT / "bench" / f"{asked.words[1]}.py").is_file()


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_that_a_page_names_is_one_that_there_is(setting: str) -> None:
    assert load.load_config(None, [setting])


def test_settings_of_the_exercises_are_among_them() -> None:
    assert {"optim.name=RMSprop", "data.workers=0", "train.reproducible=bitwise"} <= set(SETTINGS)
