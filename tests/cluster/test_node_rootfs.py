"""The nodes' file system of a suite that moves: the last one that worked stays in use where today's cannot be built."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from machines import REPOSITORY

TOOL = REPOSITORY / "tests" / "cluster" / "node-rootfs"
WORKED = "slurmd 26.05.1-1\n"
pytestmark = pytest.mark.usefixtures("can_make_nodes")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache of its own, and a debootstrap (a stand-in) for a suite that is broken today."""
    (tmp_path / "bin").mkdir()
    broken = tmp_path / "bin" / "debootstrap"
    broken.write_text(
        '#!/bin/bash\necho "E: slurmd depends on what is not there"\necho >>"$TESTBED_CACHE/asked"\nexit 1\n'
    )
    broken.chmod(0o755)
    return tmp_path


def call(cache: Path, *words: object, **settings: str) -> subprocess.CompletedProcess[str]:
    """node-rootfs for sid, with that cache."""
    environ = {"TESTBED_CACHE": str(cache), "PATH": f"{cache / 'bin'}:{os.environ['PATH']}"} | settings
    return subprocess.run([TOOL, "sid", *map(str, words)], env=environ, capture_output=True, text=True, timeout=120)


def kept(cache: Path, days: int = 30, recipe: str = "") -> Path:
    """A tree that worked so many days ago, of this recipe or of another."""
    key = recipe or call(cache, "key").stdout.strip()
    tree = cache / "nodes" / f"sid-{key}-20260101T000000"
    (tree / "root").mkdir(parents=True)
    (tree / "versions").write_text(WORKED)
    then = time.time() - days * 86_400
    os.utime(tree / "versions", (then, then))
    return tree


def builds(cache: Path) -> int:
    """How often a build was tried."""
    asked = cache / "asked"
    return len(asked.read_text().splitlines()) if asked.exists() else 0


def test_a_tree_is_used_whatever_its_age_unless_asked(cache: Path) -> None:
    tree = kept(cache)
    assert call(cache).stdout == f"{tree}/root\n"
    assert builds(cache) == 0


def test_a_young_tree_is_not_built_anew(cache: Path) -> None:
    tree = kept(cache, days=2)
    assert call(cache, MAX_DAYS="7").stdout == f"{tree}/root\n"
    assert builds(cache) == 0


def test_where_the_suite_is_broken_the_last_that_worked_stays_and_it_is_said(cache: Path) -> None:
    tree = kept(cache)
    done = call(cache, MAX_DAYS="7")
    assert (done.returncode, done.stdout) == (0, f"{tree}/root\n")
    assert "slurmd depends on what is not there" in done.stderr
    assert "the last that worked stays in use" in done.stderr
    assert "slurmd 26.05.1-1" in done.stderr


def test_a_broken_suite_is_tried_once_a_day(cache: Path) -> None:
    kept(cache)
    call(cache, MAX_DAYS="7")
    call(cache, MAX_DAYS="7")
    assert builds(cache) == 1


def test_a_tree_of_an_older_recipe_helps_out(cache: Path) -> None:
    tree = kept(cache, recipe="0123456789ab")
    assert call(cache, HAVE="1").returncode == 1
    assert call(cache).stdout == f"{tree}/root\n"
    assert call(cache, HAVE="1").stdout == f"{tree}/root\n"


def test_a_cold_machine_says_that_nothing_is_kept(cache: Path) -> None:
    done = call(cache)
    assert done.returncode == 1
    assert "no earlier one is kept" in done.stderr
    assert f"{cache}/nodes/sid.log" in done.stderr


def test_changed_versions_are_said(cache: Path) -> None:
    tree = kept(cache)
    known = (REPOSITORY / "tests" / "cluster" / "versions" / "sid").read_text()
    slurmd = next(line.split()[1] for line in known.splitlines() if line.startswith("slurmd "))
    told = call(cache, "changes", tree).stderr
    assert f"changed: slurmd {slurmd} -> 26.05.1-1" in told
