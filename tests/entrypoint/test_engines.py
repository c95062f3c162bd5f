"""A container is known by its mark, and each fix names what every engine takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from entrypoint import engines


@pytest.mark.parametrize(
    ("mark", "engine"),
    [(".singularity.d/actions/", "apptainer"), (".dockerenv", "docker"), ("run/.containerenv", "docker")],
)
def test_a_container_is_known_by_its_mark(tmp_path: Path, mark: str, engine: str) -> None:
    path = tmp_path / mark
    path.mkdir(parents=True) if mark.endswith("/") else (path.parent.mkdir(exist_ok=True), path.touch())
    assert engines.detect(tmp_path) == engine


def test_a_plain_machine_is_no_container(tmp_path: Path) -> None:
    assert engines.detect(tmp_path) == "none"


def test_a_fix_names_each_engine_that_has_an_option() -> None:
    assert engines.fix("shm", size=16) == "docker run --shm-size=16g (or --ipc=host); apptainer without --contain"
    assert engines.fix("bind", ", ", target="/data") == "docker run -v DIR:/data, apptainer --bind DIR:/data"


@pytest.mark.parametrize(
    ("capabilities", "enough"), [("compute,utility", True), ("all", True), ("utility", False), ("", False)]
)
def test_enroot_passes_gpus_on_where_both_variables_ask_for_them(capabilities: str, enough: bool) -> None:
    environ = {"NVIDIA_DRIVER_CAPABILITIES": capabilities}
    assert engines.requests_gpus_of_enroot(environ | {"NVIDIA_VISIBLE_DEVICES": "all"}) is enough
    assert not engines.requests_gpus_of_enroot(environ)
