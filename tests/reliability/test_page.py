"""docs/evidence/reliability.md names what exists, and keeps what was seen."""

from __future__ import annotations

import json
import re
from pathlib import Path

import chaos
import page

from train import fault_injection

TEXT = page.PAGE.read_text()


def cells(table: str) -> list[str]:
    """The first cells of a table's rows."""
    inside = TEXT.split(page.BEGIN.format(table))[1].split(page.END.format(table))[0]
    return [line.split(" | ")[0].removeprefix("| ") for line in inside.strip().splitlines()[2:]]


def test_every_proof_of_the_makefile_is_shown_and_exists() -> None:
    (targets,) = re.findall(r"^TRIALS := (.*)$", (page.ROOT / "Makefile").read_text(), re.M)
    assert list(page.ASKED) == targets.split()
    for name in page.ASKED:
        assert f"make {name}" in TEXT
        assert (page.ROOT / "tests/reliability" / f"{name}.py").exists(), name


def test_the_faults_shown_are_rows_that_are_played() -> None:
    assert {int(cell) for cell in cells("faults")} <= set(chaos.ROWS)


def test_every_site_and_action_of_fault_is_told() -> None:
    told = set(re.findall(r"`([a-z0-9-]+)`", TEXT.split("## FAULT")[1]))
    values = {action for actions in fault_injection.VALUE_ACTIONS.values() for action in actions}
    assert {*fault_injection.SITES, *fault_injection.ACTIONS, *values} <= told


def test_what_was_not_run_again_stays(tmp_path: Path) -> None:
    assert page.written(TEXT, tmp_path) == TEXT


def test_a_proof_that_was_run_takes_its_row(tmp_path: Path) -> None:
    trial = {"row": "1", "injector": "a|b", "process": "rank 0", "observed": 69, "ok": True}
    summary = {"summary": "chaos", "trials": 1, "wrong": 0, "seconds": 2.0, "machine": "m", "date": "2000-01-02"}
    (tmp_path / "chaos.jsonl").write_text(f"{json.dumps(trial)}\n{json.dumps(summary)}\n")
    found = page.written(TEXT, tmp_path)
    assert "| 1 | a\\|b | rank 0 | 69 |" in found
    assert "1 of 1 |  | 2000-01-02 | m, 2 s |" in found


def test_a_fault_that_ended_otherwise_is_shown(tmp_path: Path) -> None:
    trial = {"row": "1", "injector": "x", "process": "rank 0"}
    trials = [trial | {"observed": 69, "ok": True}, trial | {"observed": 0, "ok": False}]
    (tmp_path / "chaos.jsonl").write_text("".join(json.dumps(one) + "\n" for one in trials))
    assert "| 1 | x | rank 0 | 69 (1x), 0 (1x); **1 of 2 not as specified** |" in page.written(TEXT, tmp_path)


def test_of_a_proof_that_broke_off_only_the_trials_are_shown(tmp_path: Path) -> None:
    trial = {"row": "1", "injector": "x", "process": "rank 0", "observed": 69, "ok": True}
    (tmp_path / "chaos.jsonl").write_text(json.dumps(trial) + "\n")
    found = page.written(TEXT, tmp_path)
    assert "| 1 | x | rank 0 | 69 |" in found
    assert found.split("## The faults")[0] == TEXT.split("## The faults")[0]
