"""What figures hold for."""

from __future__ import annotations

from pathlib import Path

from train.bench import machine


def test_the_machine_is_named_with_its_cores_versions_and_the_day() -> None:
    found = machine.facts("cpu", now=0.0)
    assert "cores" in found["cpu"]
    assert found["device"] == "cpu"
    assert found["torch"] != "not installed"
    assert found["date"] == "1970-01-01"


def test_a_processor_without_a_name_is_its_architecture(tmp_path: Path) -> None:
    assert machine._processor(tmp_path / "none") == machine.platform.machine()
