"""The workflows of a pull request: they run others' code only by commit, and everything else by make."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def steps(path: Path) -> list[dict[str, Any]]:
    """The steps of all jobs of a workflow."""
    return [step for job in yaml.safe_load(path.read_text())["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_an_action_is_named_by_its_commit(path: Path) -> None:
    actions = [step["uses"] for step in steps(path) if "uses" in step]
    assert actions
    assert [action for action in actions if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_command_is_a_target_that_a_contributor_can_type(path: Path) -> None:
    commands = [step["run"] for step in steps(path) if "run" in step]
    assert commands
    assert all(command.startswith("make ") for command in commands)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_it_may_only_read(path: Path) -> None:
    assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}
