"""Each place with a trouble that this machine can really have, and the command typed in it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from sick import PLACES, findings


@pytest.mark.parametrize("name", PLACES)
def test_the_doctor_names_the_trouble_of_a_place(name: str, tmp_path: Path) -> None:
    place = PLACES[name]
    if place.before and not shutil.which(place.before[0]):
        pytest.skip(f"machine: {place.before[0]} is not installed")
    found = [one for one in findings(place, tmp_path) if one["name"] == place.name and one["state"] != "ok"]
    (told,) = [one for one in found if place.words in one["text"]] or [found]
    assert isinstance(told, dict), f"of {place.name} it says {found}"
    assert told["state"] == place.state
    assert told["fix"]
    assert place.fix in told["fix"]
