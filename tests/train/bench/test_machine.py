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


def test_gpus_are_those_that_torch_may_use_and_parts_have_their_own_names() -> None:
    say = "print('a GPU MIG 1g.10gb', 'a GPU', 'a GPU', sep='\\n')"
    assert machine._device("cuda", say) == "a GPU MIG 1g.10gb, 2 x a GPU"


def test_gpus_that_torch_does_not_name_are_a_device_still() -> None:
    assert machine._device("cuda", "raise SystemExit('no driver')") == "cuda"
    assert machine._device("cuda", "import time; time.sleep(60)", limit_s=0.2) == "cuda"


def test_figures_of_the_smallest_sizes_are_marked() -> None:
    assert "mean nothing" in machine.facts("cpu", now=0.0, quick=True)["quick"]
    assert "quick" not in machine.facts("cpu", now=0.0)
