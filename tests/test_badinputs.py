"""Bad inputs are refused with the right code, key and fix, and nothing is written or run: all of `make badinputs`."""

from __future__ import annotations

from pathlib import Path

import pytest
from bad import case, mutations, tables
from bad.case import Outcome

# A refused input leaves open what the end of its process would close: here one process meets them all.
pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]
Met = dict[str, tuple[case.Case, Outcome]]


@pytest.fixture(scope="module")
def met(tmp_path_factory: pytest.TempPathFactory) -> Met:
    """What each input gave."""
    folder = tmp_path_factory.mktemp("bad") / "work"
    return {bad_input.id: (bad_input, case.meet(bad_input, case.emptied(folder))) for bad_input in tables.cases()}


@pytest.mark.parametrize("theme", tables.THEMES)
def test_every_bad_input_is_answered_with_code_key_and_fix(met: Met, theme: str) -> None:
    wrong = {bad_input.id: case.wrong_in(*met[bad_input.id]) for bad_input in tables.THEMES[theme]}
    assert {name: words for name, words in wrong.items() if words} == {}


def test_no_name_stands_for_two_inputs() -> None:
    names = [bad_input.id for bad_input in tables.cases()]
    assert len(names) == len(set(names))


def test_100_random_changes_of_files_and_environments_get_an_answer(tmp_path: Path) -> None:
    asked = [
        (bad_input.id, case.meet(bad_input, case.emptied(tmp_path / "work")))
        for bad_input in mutations.cases(seed=1, number=50)
    ]
    stumbled = [name for name, out in asked if mutations.stumbled(out.code, out.text, out.written)]
    assert (len(asked), stumbled) == (100, [])
