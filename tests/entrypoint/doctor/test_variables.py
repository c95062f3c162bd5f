"""Each variable that acts is told with what it does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from entrypoint.doctor import variables
from entrypoint.doctor.context import Finding


def told(name: str, value: str) -> Finding:
    (finding,) = variables.variable_findings({name: value})
    return finding


def test_an_environment_without_any_says_so() -> None:
    (found,) = variables.variable_findings({"EDITOR": "vi", "PATH": "/bin"})
    assert (found.state, "none" in found.text) == ("ok", True)


@pytest.mark.parametrize("pattern", variables.WARNED_VARIABLES)
def test_what_does_harm_is_a_warning_with_its_effect(pattern: str) -> None:
    name = pattern.replace("*", "SOMETHING")
    found = told(name, "1")
    assert (found.state, f"{name}=1: {variables.WARNED_VARIABLES[pattern]}") == ("warn", found.text)
    assert f"unset {name}" in found.fix


@pytest.mark.parametrize("pattern", variables.SHOWN_VARIABLES)
def test_what_was_chosen_is_shown(pattern: str) -> None:
    name = pattern.replace("*", "SOMETHING")
    assert (told(name, "1").state, told(name, "1").text) == ("ok", f"set, and used: {name}=1")


def test_all_that_was_chosen_is_one_finding() -> None:
    (found,) = variables.variable_findings({"NCCL_NET": "IB", "HF_HOME": "/data/hub", "NCCL_DEBUG": "INFO"})
    assert found.text == "set, and used: HF_HOME=/data/hub, NCCL_DEBUG=INFO, NCCL_NET=IB"


@pytest.mark.parametrize(
    ("name", "value", "state"),
    [("NCCL_P2P_DISABLE", "0", "ok"), ("NVIDIA_TF32_OVERRIDE", "0", "warn"), ("CUDA_LAUNCH_BLOCKING", "", "ok")],
)
def test_switched_off_is_not_warned_of(name: str, value: str, state: str) -> None:
    assert told(name, value).state == state


def test_a_secret_is_not_shown() -> None:
    assert "hunter2" not in told("ACCELERATE_API_TOKEN", "hunter2").text


def test_a_long_value_is_cut() -> None:
    assert len(told("NCCL_DEBUG", "x" * 500).text) < 150


def test_host_python_is_named() -> None:
    (found,) = variables.host_python_findings({"PYTHONPATH": "/somewhere", "HOME": "/nonexistent"})
    assert (found.state, "PYTHONPATH" in found.text) == ("warn", True)


def test_packages_in_the_home_folder_are_named(tmp_path: Path) -> None:
    site = tmp_path / f".local/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    site.mkdir(parents=True)
    (found,) = variables.host_python_findings({"HOME": str(tmp_path)})
    assert (found.state, str(site) in found.text) == ("warn", True)


def test_libraries_of_conda_are_named() -> None:
    environ = {"HOME": "/nonexistent", "CONDA_PREFIX": "/opt/conda", "LD_LIBRARY_PATH": "/usr/lib:/opt/conda/lib"}
    (found,) = variables.host_python_findings(environ)
    assert (found.state, "conda deactivate" in found.fix) == ("warn", True)


def test_nothing_that_leaks_is_ok() -> None:
    (found,) = variables.host_python_findings({"HOME": "/nonexistent"})
    assert found.state == "ok"
