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
    troubles = [each for each in findings(place, tmp_path) if each["name"] == place.name and each["state"] != "ok"]
    (finding,) = [each for each in troubles if place.words in each["text"]] or [troubles]
    assert isinstance(finding, dict), f"of {place.name} it says {troubles}"
    assert finding["state"] == place.state
    assert finding["fix"]
    assert place.fix in finding["fix"]
