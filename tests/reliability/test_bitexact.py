"""A run killed at any time ends with the bits of one that nobody killed: the smaller size of `make bitexact`."""

from __future__ import annotations

from pathlib import Path

import bitexact
import pytest


@pytest.mark.every_run
@pytest.mark.timeout(600)
def test_three_killed_runs_end_with_the_bits_of_those_that_nobody_killed(tmp_path: Path) -> None:
    done = list(bitexact.run(3, seed=2, place=tmp_path, at_once=2))
    assert [(trial.process, trial.observed, trial.lines) for trial in done if not trial.ok] == []
    assert len(done) == 3


@pytest.mark.timeout(1200)
def test_ten_killed_runs_end_with_the_bits_of_those_that_nobody_killed(tmp_path: Path) -> None:
    done = list(bitexact.run(10, seed=1, place=tmp_path, at_once=2))
    assert [(trial.process, trial.observed, trial.lines) for trial in done if not trial.ok] == []
    assert len(done) == 10


def test_the_plans_kill_the_parent_and_single_ranks_of_every_world_at_all_times() -> None:
    plans = bitexact.plans(200, seed=1)
    assert {(plan.mode, plan.before) for plan in plans} == {(m, w) for m in bitexact.MODES for w in bitexact.WORLDS}
    assert {plan.victim for plan in plans} == {None, 0, 1, 2, 3}
    assert 0.1 < sum(plan.moment < 0 for plan in plans) / len(plans) < 0.3
    assert {(p.before, p.after) for p in plans if p.mode == "bitwise"} == {
        (a, b) for a in bitexact.WORLDS for b in bitexact.WORLDS
    }


def test_the_same_seed_makes_the_same_plans() -> None:
    assert bitexact.plans(20, seed=1) == bitexact.plans(20, seed=1) != bitexact.plans(20, seed=2)


def test_a_run_that_is_faster_than_the_one_that_was_measured_is_killed_earlier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[float] = []

    def strike(plan: bitexact.Plan, place: Path, reference: bitexact.Reference, share: float) -> str | None:
        shares.append(share)
        return "it" if share < 0.2 else None

    monkeypatch.setattr(bitexact, "strike", strike)
    measured = bitexact.Reference(left={}, start_s=8.0, train_s=8.0)
    assert bitexact.killed(bitexact.plans(1, seed=1)[0], tmp_path / "run", measured) == "it"
    assert shares == [1.0, 0.5, 0.25, 0.125]
