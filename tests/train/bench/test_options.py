"""What a bench is asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from entrypoint import Failure
from entrypoint import LaunchOptions as Launch
from train.bench import options
from train.bench.options import Options


@pytest.fixture
def asked(tmp_path: Path) -> Options:
    """A bench on the CPU with nothing special."""
    environ = {"PATH": "/bin", "COVERAGE_PROCESS_START": "x"}
    return Options(
        device="cpu", launch=Launch(), scratch=tmp_path, peers=tmp_path, environ=environ, tell=lambda line: None
    )


def test_pairs_are_those_asked_for_else_two_in_a_hurry_else_the_rows_own(asked: Options) -> None:
    assert asked.count(30) == 30
    assert replace(asked, quick=True).count(30) == 2
    assert replace(asked, quick=True, pairs=7).count(30) == 7


def test_coverage_is_not_measured_too(asked: Options) -> None:
    assert "COVERAGE_PROCESS_START" not in asked.variables()
    assert asked.variables(RANK="0")["RANK"] == "0"


def test_the_projects_peers_are_found() -> None:
    assert (options.find_peers(None) or Path()).name == "peers"


def test_packages_without_peers_name_the_option_only_where_one_is_needed(
    asked: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "PEERS", (Path("/nowhere"),))
    bare = replace(asked, peers=options.find_peers(None))
    with pytest.raises(Failure, match="not there") as caught:
        bare.peer("bare")
    assert "--peers DIR" in caught.value.fix


def test_peers_that_are_not_there_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="none"):
        options.find_peers(str(tmp_path / "none"))


def test_a_list_of_numbers_is_read_in_rising_order_and_nothing_below_one() -> None:
    assert options.numbers("4,1,4") == [1, 4]
    with pytest.raises(ValueError, match=r"^$"):
        options.numbers("0,1")
