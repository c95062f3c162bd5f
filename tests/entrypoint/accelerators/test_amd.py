"""How a machine shows AMD's GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from entrypoint.accelerators import amd


@pytest.mark.parametrize(
    ("versions", "accelerators"),
    [(("0", "90010"), True), (("0", "90402"), True), (("0", "90012"), False), (("110000",), False), ((), False)],
    ids=["MI200", "MI300", "integrated", "for a display", "none"],
)
def test_an_instinct_gpu_is_told_from_those_for_displays(
    tmp_path: Path, versions: tuple[str, ...], accelerators: bool
) -> None:
    for number, version in enumerate(versions):
        node = tmp_path / "sys/class/kfd/kfd/topology/nodes" / str(number)
        node.mkdir(parents=True)
        (node / "properties").write_text(f"simd_count 440\ngfx_target_version {version}\nvendor_id 4098\n")
    assert amd.has_accelerators(tmp_path) is accelerators


def test_the_driver_of_amd_is_known_by_its_device_file(tmp_path: Path) -> None:
    assert amd.find_device_file(tmp_path) == ""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kfd").touch()
    assert amd.find_device_file(tmp_path) == "/dev/kfd"
