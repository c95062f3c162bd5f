"""docs/tutorial has five short pages whose commands and settings exist."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from pages import Command, commands

from train.__main__ import build_parser
from train.config import load

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "tutorial").glob("*.md"))
READ = [command for page in PAGES for command in commands(page) if not command.runs]
# `section.key=value` in the text of the pages.
QUOTED = [text for page in PAGES for code in re.findall(r"`([^`\n]+)`", page.read_text()) for text in code.split()]
SETTINGS = sorted({text for text in QUOTED if re.fullmatch(r"(?:data|train|optim|model|eval|run)\.[a-z_]+=\S+", text)})


def test_there_are_five_pages_that_lead_to_each_other() -> None:
    assert [page.name[:2] for page in PAGES] == ["01", "02", "03", "04", "05"]
    assert all(f"]({after.name})" in before.read_text() for before, after in pairwise(PAGES))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_short(page: Path) -> None:
    assert len(page.read_text().splitlines()) <= 100


@pytest.mark.parametrize("command", READ, ids=lambda command: command.text[:60])
def test_a_command_that_is_not_run_is_one_that_there_is(command: Command) -> None:
    program = command.words[0]
    assert program in ("train", "srun", "sbatch") or (ROOT / program).is_file()
    for word in command.words:
        assert not word.startswith(("configs/", "launch/")) or (ROOT / word).is_file(), word


@pytest.mark.parametrize(
    "command", [command for command in READ if command.train], ids=lambda command: command.text[:60]
)
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
