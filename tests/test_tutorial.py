"""The commands of docs/tutorial are typed as they stand and end as their page says."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import Command, commands
from processes import python

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "tutorial").glob("*.md"))
SHORT = "train.max_steps=20"  # what a page's training is given on top, so that it takes seconds
RUN = {page: [command for command in commands(page) if command.runs] for page in PAGES}


def shortened(command: Command) -> list[str]:
    """The program's module and its words; a training ends after a few steps."""
    program, *words = command.words
    trains = program == "train" and words[0].startswith("--") and "train.max_steps" not in command.text
    return ["-m", program, *words, *([SHORT] if trains else [])]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_its_commands_end_as_the_page_says(page: Path, tmp_path: Path) -> None:
    for name in ("docs", "configs"):
        (tmp_path / name).symlink_to(ROOT / name)
    assert len(RUN[page]) >= 3 or page.stem.startswith("04")
    for command in RUN[page]:
        ended = python(*shortened(command), environ=command.environ, cwd=tmp_path)
        output = f"{command.text}\n{ended.stdout}{ended.stderr}"
        assert ended.returncode == command.code, output
        assert "Traceback" not in output
