"""Each variable that acts is told with what it does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from entrypoint.doctor import variables
from entrypoint.doctor.context import Finding


def variable_finding(name: str, value: str) -> Finding:
    (finding,) = variables.variable_findings({name: value})
    return finding


def test_an_environment_without_any_says_so() -> None:
    (finding,) = variables.variable_findings({"EDITOR": "vi", "PATH": "/bin"})
    assert (finding.state, "none" in finding.text) == ("ok", True)


@pytest.mark.parametrize("pattern", variables.WARNED_VARIABLES)
def test_what_does_harm_is_a_warning_with_its_effect(pattern: str) -> None:
    name = pattern.replace("*", "SOMETHING")
    finding = variable_finding(name, "1")
    assert (finding.state, f"{name}=1: {variables.WARNED_VARIABLES[pattern]}") == ("warn", finding.text)
    assert f"unset {name}" in finding.fix


@pytest.mark.parametrize("pattern", variables.SHOWN_VARIABLES)
def test_what_was_chosen_is_shown(pattern: str) -> None:
    name = pattern.replace("*", "SOMETHING")
    assert (variable_finding(name, "1").state, variable_finding(name, "1").text) == ("ok", f"set, and used: {name}=1")


def test_all_that_was_chosen_is_one_finding() -> None:
    (finding,) = variables.variable_findings({"NCCL_NET": "IB", "HF_HOME": "/data/hub", "NCCL_DEBUG": "INFO"})
    assert finding.text == "set, and used: HF_HOME=/data/hub, NCCL_DEBUG=INFO, NCCL_NET=IB"


@pytest.mark.parametrize(
    ("name", "value", "state"),
    [("NCCL_P2P_DISABLE", "0", "ok"), ("NVIDIA_TF32_OVERRIDE", "0", "warn"), ("CUDA_LAUNCH_BLOCKING", "", "ok")],
)
def test_switched_off_is_not_warned_of(name: str, value: str, state: str) -> None:
    assert variable_finding(name, value).state == state


def test_a_secret_is_not_shown() -> None:
    assert "hunter2" not in variable_finding("ACCELERATE_API_TOKEN", "hunter2").text


def test_a_long_value_is_cut() -> None:
    assert len(variable_finding("NCCL_DEBUG", "x" * 500).text) < 150


def test_host_python_is_named() -> None:
    (finding,) = variables.host_python_findings({"PYTHONPATH": "/somewhere", "HOME": "/nonexistent"})
    assert (finding.state, "PYTHONPATH" in finding.text) == ("warn", True)


def test_packages_in_the_home_folder_are_named(tmp_path: Path) -> None:
    site = tmp_path / f".local/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    site.mkdir(parents=True)
    (finding,) = variables.host_python_findings({"HOME": str(tmp_path)})
    assert (finding.state, str(site) in finding.text) == ("warn", True)


def test_libraries_of_conda_are_named() -> None:
    environ = {"HOME": "/nonexistent", "CONDA_PREFIX": "/opt/conda", "LD_LIBRARY_PATH": "/usr/lib:/opt/conda/lib"}
    (finding,) = variables.host_python_findings(environ)
    assert (finding.state, "conda deactivate" in finding.fix) == ("warn", True)


def test_nothing_that_leaks_is_ok() -> None:
    (finding,) = variables.host_python_findings({"HOME": "/nonexistent"})
    assert finding.state == "ok"
